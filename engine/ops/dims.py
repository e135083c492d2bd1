"""Sizes as exact expressions of symbols: what N, C·H·W, ⌊(H + 1)/2⌋ stand for before a run.

A size is an int, a symbol (``str``) or a :class:`Size`, a ``str`` whose text is canonical: two sizes with the
same text are equal in every run. A size is held as a polynomial with integer coefficients over *atoms*:
symbols, and functions of polynomials (floor, trunc, max, min) where nothing simpler is exact.

Symbols stand for sizes, so for integers of at least 0. None is an unknown size; every function here takes it
and then answers None. Integers alone take a short way: most models have no symbols at all.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from math import gcd
from typing import TypeAlias

from graphdoc.engine.ops.table import Dim

Known: TypeAlias = int | str
"""A size that is not unknown."""

Monomial: TypeAlias = tuple[str, ...]
"""Atoms in the order of their text, repeated for powers; () for the constant."""

Terms: TypeAlias = Mapping[Monomial, int]
"""A polynomial: coefficient, not 0, by monomial."""

MAX_TERMS = 24
"""Longer polynomials count as unknown: nobody reads them, and products of them explode."""

MAX_TEXT = 400
"""Longer texts count as unknown: functions of functions grow with the depth of the model."""

MAX_COEFFICIENT = 1 << 52
"""Larger coefficients count as unknown: a run would be near the end of int64, where it wraps."""

_DEPTH = 4
"""How many functions a proof looks into."""


class Size(str):
    """A polynomial of atoms; the text is canonical.

    terms: the polynomial. function: (name, arguments) of an atom that is a function, else None.
    """

    __slots__ = ("function", "terms")

    terms: Terms
    function: tuple[str, tuple[Known, ...]] | None

    @staticmethod
    def polynomial(terms: Terms) -> "Size":
        """Return the size of a polynomial that is neither a constant nor an atom."""
        size = Size(_text(terms))
        size.terms, size.function = terms, None
        return size

    @staticmethod
    def of_function(name: str, *arguments: Known) -> "Size":
        """Return the atom that stands for a function of sizes."""
        size = Size(_WRITTEN[name](*map(_wrapped, arguments)))
        size.terms, size.function = {(size,): 1}, (name, arguments)
        return size

    def __reduce__(self) -> tuple[Callable[..., Dim], tuple[object, ...]]:
        if self.function is not None:
            return Size.of_function, (self.function[0], *self.function[1])
        return Size.polynomial, (dict(self.terms),)


# ---- text ---------------------------------------------------------------------------------------------


def _wrapped(argument: Known) -> tuple[str, bool]:
    """Return the text of an argument, and whether it is more than one factor."""
    compound = isinstance(argument, Size) and argument.function is None
    return str(argument), compound


def _quotient(name: str) -> Callable[[tuple[str, bool], tuple[str, bool]], str]:
    def written(a: tuple[str, bool], b: tuple[str, bool]) -> str:
        top, bottom = (f"({text})" if compound else text for text, compound in (a, b))
        return f"{name}({top}/{bottom})"

    return written


def _listed(name: str) -> Callable[..., str]:
    return lambda *arguments: f"{name}({', '.join(text for text, _ in arguments)})"


_WRITTEN: dict[str, Callable[..., str]] = {
    "floor": _quotient("floor"),
    "trunc": _quotient("trunc"),
    "max": _listed("max"),
    "min": _listed("min"),
}


def _product_text(monomial: Monomial) -> str:
    counts: dict[str, int] = {}
    for atom in monomial:
        counts[atom] = counts.get(atom, 0) + 1
    return "*".join(str(atom) if count == 1 else f"{atom}**{count}" for atom, count in counts.items())


def _term_text(monomial: Monomial, coefficient: int) -> str:
    size = abs(coefficient)
    if not monomial:
        return str(size)
    product = _product_text(monomial)
    return product if size == 1 else f"{size}*{product}"


def _text(terms: Terms) -> str:
    """Return terms by falling degree, then by text, the constant last: 2*N*C - N + 1."""
    rows = sorted(terms.items(), key=lambda item: (-len(item[0]), item[0]))
    text = ""
    for place, (monomial, coefficient) in enumerate(rows):
        sign = ("-" if coefficient < 0 else "") if place == 0 else (" - " if coefficient < 0 else " + ")
        text += sign + _term_text(monomial, coefficient)
    return text


# ---- polynomials --------------------------------------------------------------------------------------


def terms_of(dim: Known) -> Terms:
    """Return the polynomial of a size."""
    if isinstance(dim, Size):
        return dim.terms
    if isinstance(dim, str):
        return {(dim,): 1}
    return {(): dim} if dim else {}


def size_of(terms: Terms) -> Dim:
    """Return the size of a polynomial: an int or a symbol where it is one; None when it is too long."""
    kept = {monomial: coefficient for monomial, coefficient in terms.items() if coefficient}
    if not kept:
        return 0
    if len(kept) == 1:
        [(monomial, coefficient)] = kept.items()
        if not monomial:
            return coefficient
        if coefficient == 1 and len(monomial) == 1:
            return monomial[0]
    if len(kept) > MAX_TERMS or any(abs(c) > MAX_COEFFICIENT for c in kept.values()):
        return None
    return _short(Size.polynomial(kept))


def _short(size: Size) -> Dim:
    return size if len(size) <= MAX_TEXT else None


def _function(name: str, *arguments: Known) -> Dim:
    return _short(Size.of_function(name, *arguments))


def add(a: Dim, b: Dim) -> Dim:
    """Return a + b."""
    if a is None or b is None:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    total = dict(terms_of(a))
    for monomial, coefficient in terms_of(b).items():
        total[monomial] = total.get(monomial, 0) + coefficient
    return size_of(total)


def multiply(a: Dim, b: Dim) -> Dim:
    """Return a · b; 0 also where the other one is unknown."""
    if a == 0 or b == 0:
        return 0
    if a is None or b is None:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    product: dict[Monomial, int] = {}
    for left, m in terms_of(a).items():
        for right, n in terms_of(b).items():
            monomial = tuple(sorted(left + right))
            product[monomial] = product.get(monomial, 0) + m * n
    return size_of(product)


def negate(a: Dim) -> Dim:
    """Return −a."""
    return multiply(-1, a)


def subtract(a: Dim, b: Dim) -> Dim:
    """Return a − b."""
    return add(a, negate(b))


def total(dims: Iterable[Dim]) -> Dim:
    """Return the sum of sizes."""
    start: Dim = 0
    return reduce(add, dims, start)


def product(dims: Iterable[Dim]) -> Dim:
    """Return the product of sizes."""
    start: Dim = 1
    return reduce(multiply, dims, start)


# ---- division -----------------------------------------------------------------------------------------


def _monomial_quotient(a: Monomial, b: Monomial) -> Monomial | None:
    rest = list(a)
    for atom in b:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def _leading(terms: Terms) -> tuple[Monomial, int]:
    """Return the first term in an order that multiplication keeps: by degree, then by the atoms' powers."""
    atoms = sorted({atom for monomial in terms for atom in monomial})
    return max(terms.items(), key=lambda item: (len(item[0]), [item[0].count(atom) for atom in atoms]))


def exact_quotient(a: Dim, b: Dim) -> Dim:
    """Return a ÷ b where it is a polynomial, else None. Valid for b ≠ 0."""
    if a is None or b is None or b == 0:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a // b if a % b == 0 else None
    rest, divisor = dict(terms_of(a)), terms_of(b)
    lead, factor = _leading(divisor)
    quotient: dict[Monomial, int] = {}
    for _ in range(MAX_TERMS):
        if not rest:
            return size_of(quotient)
        monomial, coefficient = _leading(rest)
        part = _monomial_quotient(monomial, lead)
        if part is None or coefficient % factor:
            return None
        scale = coefficient // factor
        quotient[part] = quotient.get(part, 0) + scale
        for other, c in divisor.items():
            at = tuple(sorted(part + other))
            rest[at] = rest.get(at, 0) - scale * c
            if not rest[at]:
                del rest[at]
    return None


def _nested(terms: Terms) -> tuple[tuple[Known, ...], Known] | None:
    """Return ((top, bottom), rest) where a polynomial is ⌊top/bottom⌋ by a number, plus a rest."""
    for monomial, coefficient in terms.items():
        atom = monomial[0] if len(monomial) == 1 and coefficient == 1 else None
        name, arguments = atom.function if isinstance(atom, Size) and atom.function else ("", ())
        if name == "floor" and isinstance(arguments[1], int):
            rest = size_of({m: c for m, c in terms.items() if m != monomial})
            return None if rest is None else (arguments, rest)
    return None


def _floor_by_number(a: Known, divisor: int) -> Dim:
    """Return ⌊a / divisor⌋ for a divisor > 1: multiples of it leave the function, floors of floors join."""
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in terms_of(a).items():
        whole[monomial], rest[monomial] = divmod(coefficient, divisor)
    inner = size_of(rest)
    if inner is None or isinstance(inner, int):
        return None if inner is None else size_of(whole)
    nested = _nested(terms_of(inner))
    if nested is not None:
        (top, bottom), more = nested
        joined = floor_divide(add(top, multiply(more, bottom)), multiply(bottom, divisor))
        return add(size_of(whole), joined)
    # A constant smaller than the common factor of all else never reaches the next whole number.
    common = gcd(divisor, *(coefficient for monomial, coefficient in rest.items() if monomial))
    reduced = size_of({m: c // common for m, c in rest.items()})
    if reduced is None:
        return None
    return add(size_of(whole), _function("floor", reduced, divisor // common))


def floor_divide(a: Dim, b: Dim) -> Dim:
    """Return ⌊a / b⌋ (Python's a // b); None for b = 0. Symbols in b are taken not to be 0."""
    if a is None or b is None or b == 0:
        return None
    if isinstance(b, int):
        if isinstance(a, int):
            return a // b
        if b < 0:
            return floor_divide(negate(a), -b)
        return a if b == 1 else _floor_by_number(a, b)
    exact = exact_quotient(a, b)
    return exact if exact is not None else _function("floor", a, b)


def ceil_divide(a: Dim, b: Dim) -> Dim:
    """Return ⌈a / b⌉ for b > 0."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b) if b else None
    return floor_divide(add(a, subtract(b, 1)), b)


def trunc_divide(a: Dim, b: Dim) -> Dim:
    """Return a / b cut off toward zero, as integers of ONNX divide; None for b = 0."""
    if a is None or b is None or b == 0:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a // b if (a < 0) == (b < 0) else -(-a // b)
    if at_least(a, 0) and at_least(b, 0):
        return floor_divide(a, b)
    exact = exact_quotient(a, b)
    return exact if exact is not None else _function("trunc", a, b)


def modulo(a: Dim, b: Dim) -> Dim:
    """Return a − b·⌊a / b⌋, the remainder with the sign of b."""
    return subtract(a, multiply(b, floor_divide(a, b)))


# ---- order --------------------------------------------------------------------------------------------


def lower_bound(dim: Known) -> int | None:
    """Return a number that a size never falls below, None when there is none."""
    return _bounds(dim)[0]


_Range: TypeAlias = tuple[int | None, int | None]


def _bounds(dim: Known) -> _Range:
    """Return the smallest interval that follows from the atoms taken one by one."""
    if isinstance(dim, int):
        return dim, dim
    if not isinstance(dim, Size):
        return 0, None
    if dim.function is not None:
        return _FUNCTION_BOUNDS[dim.function[0]](*map(_bounds, dim.function[1]))
    low: int | None = 0
    high: int | None = 0
    for monomial, coefficient in dim.terms.items():
        a, b = _scaled(_product_bounds(monomial), coefficient)
        low = None if low is None or a is None else low + a
        high = None if high is None or b is None else high + b
    return low, high


def _scaled(bounds: _Range, factor: int) -> _Range:
    low, high = (None if bound is None else bound * factor for bound in bounds)
    return (low, high) if factor > 0 else (high, low)


def _product_bounds(monomial: Monomial) -> _Range:
    low, high = 1, 1
    for a, b in map(_bounds, monomial):
        if a is None or a < 0:
            return None, None
        low = low * a
        high = None if high is None or b is None else high * b  # type: ignore[assignment]
    return low, high


def _quotient_bounds(top: _Range, bottom: _Range) -> _Range:
    number = bottom[0] if bottom[0] == bottom[1] else None
    if number is not None and number > 0:
        return tuple(None if bound is None else bound // number for bound in top)  # type: ignore[return-value]
    return (0, top[1]) if top[0] is not None and top[0] >= 0 and (bottom[0] or 0) >= 0 else (None, None)


def _trunc_bounds(top: _Range, bottom: _Range) -> _Range:
    return None, None


def _max_bounds(*ranges: _Range) -> _Range:
    lows = [low for low, _ in ranges if low is not None]
    highs = [high for _, high in ranges if high is not None]
    return max(lows, default=None), (max(highs) if len(highs) == len(ranges) else None)


def _min_bounds(*ranges: _Range) -> _Range:
    lows = [low for low, _ in ranges if low is not None]
    highs = [high for _, high in ranges if high is not None]
    return (min(lows) if len(lows) == len(ranges) else None), min(highs, default=None)


_FUNCTION_BOUNDS: dict[str, Callable[..., _Range]] = {
    "floor": _quotient_bounds,
    "trunc": _trunc_bounds,
    "max": _max_bounds,
    "min": _min_bounds,
}


def at_least(a: Dim, b: Dim) -> bool:
    """Return whether a ≥ b is certain in every run."""
    if a is None or b is None:
        return False
    if isinstance(a, int) and isinstance(b, int):
        return a >= b
    difference = subtract(a, b)
    return difference is not None and _not_negative(difference, _DEPTH)


def _not_negative(dim: Known, depth: int) -> bool:
    """Prove dim ≥ 0 by intervals, else by looking into one function after the other."""
    low = lower_bound(dim)
    if low is not None and low >= 0:
        return True
    if depth == 0 or not isinstance(dim, Size):
        return False
    for monomial, coefficient in dim.terms.items():
        atom = monomial[0] if len(monomial) == 1 else None
        if isinstance(atom, Size) and atom.function is not None:
            rest = size_of({m: c for m, c in dim.terms.items() if m != monomial})
            for cases in _weaker(atom.function, coefficient, rest):
                if all(case is not None and _not_negative(case, depth - 1) for case in cases):
                    return True
    return False


def _weaker(function: tuple[str, tuple[Known, ...]], coefficient: int, rest: Dim) -> list[list[Dim]]:
    """Return lists of sizes; where all of one list are at least 0, so is rest + coefficient · function."""
    name, arguments = function
    if name in ("min", "max"):
        cases = [add(rest, multiply(coefficient, argument)) for argument in arguments]
        # min is one of its arguments, and at most each of them; max at least each of them.
        return [cases] if (name == "min") == (coefficient > 0) else [[case] for case in cases]
    top, bottom = arguments if name == "floor" else (0, "")
    if isinstance(bottom, int):
        # ⌊p/d⌋ lies between (p − d + 1)/d and p/d.
        bound = top if coefficient < 0 else add(top, 1 - bottom)
        return [[add(multiply(rest, bottom), multiply(coefficient, bound))]]
    return []


def maximum(*dims: Dim) -> Dim:
    """Return the largest of sizes."""
    return _extreme("max", max, lambda a, b: at_least(a, b), dims)


def minimum(*dims: Dim) -> Dim:
    """Return the smallest of sizes."""
    return _extreme("min", min, lambda a, b: at_least(b, a), dims)


def _flat(name: str, dims: Iterable[Dim]) -> list[Dim]:
    found: list[Dim] = []
    for dim in dims:
        nested = isinstance(dim, Size) and dim.function is not None and dim.function[0] == name
        found += list(dim.function[1]) if nested and isinstance(dim, Size) and dim.function else [dim]
    return found


def _extreme(
    name: str, pick: Callable[..., int], wins: Callable[[Known, Known], bool], dims: Iterable[Dim]
) -> Dim:
    listed = _flat(name, dims)
    known = [dim for dim in dict.fromkeys(listed) if dim is not None]
    if len(known) < len(set(listed)):
        return None
    if all(isinstance(dim, int) for dim in known):
        return pick(known)
    kept: list[Known] = []
    for place, dim in enumerate(known):
        others = [*kept, *known[place + 1 :]]
        if not any(wins(other, dim) for other in others):
            kept.append(dim)
    if len(kept) == 1:
        return kept[0]
    return _function(name, *sorted(kept, key=lambda dim: (isinstance(dim, int), str(dim))))


def never_one(dim: Dim) -> bool:
    """Return whether a size is certainly not 1: at least 2, or a multiple of something else."""
    if isinstance(dim, Size) and gcd(*dim.terms.values()) > 1:
        return True
    return at_least(dim, 2) or dim == 0


def minimum_of(dim: Dim) -> tuple[Known, ...]:
    """Return the sizes of which this one is the smallest; () when it is no minimum."""
    function = dim.function if isinstance(dim, Size) else None
    return function[1] if function is not None and function[0] == "min" else ()


# ---- use ----------------------------------------------------------------------------------------------


def symbols(dim: Dim) -> frozenset[str]:
    """Return the symbols that a size depends on."""
    if not isinstance(dim, str):
        return frozenset()
    if not isinstance(dim, Size):
        return frozenset((dim,))
    if dim.function is not None:
        return frozenset().union(*map(symbols, dim.function[1]))
    return frozenset().union(*(symbols(atom) for monomial in dim.terms for atom in monomial))


_COMPUTED: dict[str, Callable[..., Dim]] = {
    "floor": floor_divide,
    "trunc": trunc_divide,
    "max": maximum,
    "min": minimum,
}


def substitute(dim: Dim, sizes: Mapping[str, Dim]) -> Dim:
    """Return a size with symbols replaced by what ``sizes`` has for them; an int when all are ints."""
    if not isinstance(dim, Size):
        return sizes.get(dim, dim) if isinstance(dim, str) else dim
    if dim.function is not None:
        name, arguments = dim.function
        return _COMPUTED[name](*(substitute(argument, sizes) for argument in arguments))
    return total(
        product((coefficient, *(substitute(atom, sizes) for atom in monomial)))
        for monomial, coefficient in dim.terms.items()
    )
