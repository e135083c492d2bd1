"""Sizes as expressions of symbols, held against plain integers."""

import pickle
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given, settings

from graphdoc.engine.ops import dims

SYMBOLS = ("N", "H", "W")

OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[[int, int], int]]] = {
    "+": (dims.add, lambda a, b: a + b),
    "-": (dims.subtract, lambda a, b: a - b),
    "*": (dims.multiply, lambda a, b: a * b),
    "//": (dims.floor_divide, lambda a, b: a // b),
    "ceil": (dims.ceil_divide, lambda a, b: -(-a // b)),
    "trunc": (dims.trunc_divide, lambda a, b: int(a / b)),
    "%": (dims.modulo, lambda a, b: a % b),
    "max": (dims.maximum, max),
    "min": (dims.minimum, min),
}
"""Our operation, and what it means for integers."""

NEEDS_POSITIVE = {"//", "ceil", "trunc", "%"}
"""Operations whose second operand must be positive: a divisor."""


def trees() -> st.SearchStrategy[Any]:
    """Return nested tuples (operation, tree, tree) over symbols and small numbers."""
    leaves = st.sampled_from(SYMBOLS) | st.integers(-6, 12)
    return st.recursive(
        leaves, lambda inner: st.tuples(st.sampled_from(sorted(OPERATIONS)), inner, inner), max_leaves=7
    )


def built(tree: Any) -> Any:
    """Return our expression of a tree."""
    if not isinstance(tree, tuple):
        return tree
    return OPERATIONS[tree[0]][0](built(tree[1]), built(tree[2]))


class UndefinedError(Exception):
    """A tree divides by what is not positive."""


def computed(tree: Any, sizes: dict[str, int]) -> int:
    """Return the value of a tree by integer arithmetic alone."""
    if not isinstance(tree, tuple):
        return sizes[tree] if isinstance(tree, str) else int(tree)
    name, (a, b) = tree[0], (computed(part, sizes) for part in tree[1:])
    if name in NEEDS_POSITIVE and b <= 0:
        raise UndefinedError
    return OPERATIONS[name][1](a, b)


BINDINGS = st.fixed_dictionaries({name: st.integers(0, 40) for name in SYMBOLS})


@settings(max_examples=200, deadline=None)
@given(trees(), BINDINGS)
def test_an_expression_is_what_integers_give(tree: Any, sizes: dict[str, int]) -> None:
    """With numbers put in, an expression has the value of the operations it was made of."""
    try:
        value = computed(tree, sizes)
    except UndefinedError:
        assume(False)
    expression = built(tree)

    assert expression is None or dims.substitute(expression, dict(sizes)) == value


@settings(max_examples=150, deadline=None)
@given(trees(), trees(), BINDINGS)
def test_the_same_text_means_the_same_size(a: Any, b: Any, sizes: dict[str, int]) -> None:
    """Two expressions with one text, or proven to be in order, are so for all numbers."""
    try:
        x, y = computed(a, sizes), computed(b, sizes)
    except UndefinedError:
        assume(False)
    left, right = built(a), built(b)

    assert left is None or left != right or x == y
    assert not dims.at_least(left, right) or x >= y
    assert left is None or (low := dims.lower_bound(left)) is None or low <= x
    assert not dims.never_one(left) or x != 1


@settings(max_examples=30, deadline=None)
@given(trees())
def test_an_expression_survives_pickling(tree: Any) -> None:
    """A copy has the same text and the same terms."""
    expression = built(tree)
    copy = pickle.loads(pickle.dumps(expression))  # noqa: S301 (made here)

    assert copy == expression
    assert dims.substitute(copy, dict.fromkeys(SYMBOLS, 7)) == dims.substitute(
        expression, dict.fromkeys(SYMBOLS, 7)
    )


N, H, C = "N", "H", "C"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (dims.add(dims.multiply(2, N), 1), "2*N + 1"),
        (dims.add(1, dims.multiply(N, 2)), "2*N + 1"),
        (dims.multiply(dims.add(N, 1), dims.subtract(N, 1)), "N**2 - 1"),
        (dims.product((C, N, 49)), "49*C*N"),
        (dims.floor_divide(H, 2), "floor(H/2)"),
        (dims.floor_divide(dims.add(dims.multiply(H, 2), 3), 4), "floor((H + 1)/2)"),
        (dims.floor_divide(dims.floor_divide(H, 2), 3), "floor(H/6)"),
        (dims.ceil_divide(dims.ceil_divide(H, 2), 2), "floor((H + 3)/4)"),
        (dims.floor_divide(dims.multiply(6, N), 4), "N + floor(N/2)"),
        (dims.negate(N), "-N"),
        (dims.maximum(dims.subtract(N, 1), 0), "max(N - 1, 0)"),
        (dims.minimum(512, N), "min(N, 512)"),
        (dims.minimum(N, dims.minimum(H, 4)), "min(H, N, 4)"),
        (dims.floor_divide(N, H), "floor(N/H)"),
        (dims.trunc_divide(dims.subtract(N, 3), 2), "trunc((N - 3)/2)"),
    ],
)
def test_texts_are_canonical(size: Any, text: str) -> None:
    """An expression reads the same whichever way it was made, and equals its text."""
    assert size == text
    assert hash(size) == hash(text)


@pytest.mark.parametrize(
    ("size", "number"),
    [
        (dims.subtract(N, N), 0),
        (dims.exact_quotient(dims.product((N, C, 49)), dims.multiply(C, 49)), N),
        (dims.exact_quotient(dims.multiply(dims.add(N, 1), dims.add(H, N)), dims.add(N, 1)), "H + N"),
        (dims.exact_quotient(N, 2), None),
        (dims.exact_quotient(N, 0), None),
        (dims.floor_divide(dims.multiply(N, C), C), N),
        (dims.modulo(dims.multiply(N, 4), 2), 0),
        (dims.maximum(N, 0), N),
        (dims.minimum(N, dims.add(N, 1)), N),
        (dims.maximum(3, 5), 5),
        (dims.trunc_divide(-7, 2), -3),
        (dims.multiply(None, 0), 0),
        (dims.multiply(None, N), None),
        (dims.add(None, 1), None),
        (dims.maximum(None, 3), None),
        (dims.floor_divide(N, 0), None),
        (dims.multiply(N, 1 << 60), None),
    ],
)
def test_what_cancels_is_gone(size: Any, number: Any) -> None:
    """Exact arithmetic leaves numbers and symbols where they are the answer, None where there is none."""
    assert size == number


@pytest.mark.parametrize(
    ("a", "b", "certain"),
    [
        (N, 0, True),
        (N, 1, False),
        (dims.add(N, 1), N, True),
        (N, dims.minimum(N, 512), True),
        (N, dims.maximum(dims.subtract(N, 1), 0), True),
        (dims.maximum(N, 4), 4, True),
        (N, dims.floor_divide(N, 2), True),
        (dims.floor_divide(dims.add(N, 1), 2), 0, True),
        (N, H, False),
        (None, 0, False),
    ],
)
def test_order_is_proven_or_left_open(a: Any, b: Any, certain: bool) -> None:
    """Symbols stand for sizes of at least 0; only what follows is certain."""
    assert dims.at_least(a, b) == certain


def test_growth_is_bounded() -> None:
    """Expressions that nobody could read become unknown instead of slow."""
    size: Any = "N"
    for step in range(60):
        size = dims.multiply(size, dims.add(f"s{step}", 1))

    assert size is None


def test_symbols_of_an_expression() -> None:
    """The symbols inside functions count too."""
    size = dims.add(dims.floor_divide(dims.add(H, 1), 2), dims.maximum(N, C))

    assert dims.symbols(size) == {"N", "H", "C"}
    assert dims.symbols(4) == frozenset()
