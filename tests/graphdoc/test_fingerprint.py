"""Fingerprints: what they see, and how near their distance is to the true one."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graphdoc.fingerprint import SHORT, distance, fingerprint

RNG = np.random.default_rng(3)


def true_distance(a: Any, b: Any) -> float:
    """The definition, in float64."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.sqrt(np.mean((b - a) ** 2)) / np.sqrt(np.mean(a**2)))


@pytest.mark.parametrize("size", [9, 100, 16384, 16385, 200_000])
def test_the_estimate_is_near_the_truth(size: int) -> None:
    """Over many pairs the mean square of estimate ÷ truth is 1, and no estimate is far off."""
    ratios = []
    rng = np.random.default_rng(size)
    for _ in range(200 if size < 100_000 else 20):
        a = rng.standard_normal(size)
        b = a + 1e-3 * rng.standard_normal(size)
        ratios.append(distance(fingerprint(a), fingerprint(b)) / true_distance(a, b))

    assert np.sqrt(np.mean(np.square(ratios))) == pytest.approx(1.0, abs=0.25)
    assert min(ratios) > 0.03
    assert max(ratios) < 3


@pytest.mark.parametrize("place", [0, 1, 777_777, 999_999])
def test_one_wrong_element_among_a_million_is_seen_exactly(place: int) -> None:
    """No sample need hit it: the sketch holds every element."""
    a = RNG.standard_normal(1_000_000).astype(np.float32)
    b = a.copy()
    b[place] += 1.0

    assert distance(fingerprint(a), fingerprint(b)) == pytest.approx(true_distance(a, b), rel=1e-3)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[::-1].copy(),
        lambda x: np.roll(x, 1),
        lambda x: -x,
        lambda x: np.sort(x),
        lambda x: x.reshape(64, 512).T.copy().ravel(),
        lambda x: np.roll(x.reshape(2, -1), 1, axis=0).ravel(),
        lambda x: x * 1.01,
    ],
    ids=["reversed", "shifted", "negated", "sorted", "transposed", "blocks swapped", "scaled"],
)
def test_structured_changes_are_seen(change: Any) -> None:
    """What keeps norm, or all elements, is as far away as it is, over 20 values; one estimate has 4 sums."""
    ratios = []
    for seed in range(20):
        a = np.random.default_rng(seed).standard_normal(32768)
        b = change(a)
        ratios.append(distance(fingerprint(a), fingerprint(b)) / true_distance(a, b))

    assert 0.6 < np.sqrt(np.mean(np.square(ratios))) < 1.5


@pytest.mark.parametrize("size", range(1, SHORT + 1))
def test_short_values_are_exact(size: int) -> None:
    """Up to SHORT elements the distance is the definition."""
    a, b = RNG.standard_normal((2, size))

    assert distance(fingerprint(a), fingerprint(b)) == pytest.approx(true_distance(a, b))


VALUES: dict[str, Any] = {
    "float32": RNG.standard_normal((3, 5)).astype(np.float32),
    "float16": RNG.standard_normal((3, 5)).astype(np.float16),
    "bfloat16": RNG.standard_normal((3, 5)).astype(ml_dtypes.bfloat16),
    "float8": RNG.standard_normal((3, 5)).astype(ml_dtypes.float8_e4m3fn),
    "int4": np.arange(-8, 8).astype(ml_dtypes.int4),
    "uint8": np.arange(40, dtype=np.uint8),
    "int64 past 2^53": np.array([2**60 + 1, 5], np.int64),
    "bool": np.array([True, False, True]),
    "complex": np.array([1 + 2j, 3 - 4j], np.complex64),
    "string": np.array(["a", "ü", ""], dtype=object),
    "scalar": np.float32(2.5),
    "empty": np.zeros((0, 4), np.float32),
    "not finite": np.array([1.0, np.nan, np.inf, -np.inf], np.float32),
    "huge": np.array([1e300, -1e300]),
    "tiny": np.array([5e-324, 0.0, 0.0]),
    "zero": np.zeros(20, np.float32),
    "sequence": [np.ones(3), np.zeros((2, 2))],
    "map": [{"cat": 0.25, "dog": 0.75}],
    "nothing": None,
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_equals_itself_and_no_other(name: str) -> None:
    """Distance 0 to itself, inf to anything of another kind; no warning on the way."""
    own = fingerprint(VALUES[name])

    assert distance(own, fingerprint(VALUES[name])) == 0
    others = [other for other in VALUES if other != name]
    assert [o for o in others if distance(own, fingerprint(VALUES[o])) != math.inf] == []


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.ones(20, np.float32), np.ones(20, np.float64)),
        (np.ones(20), np.ones((4, 5))),
        (np.zeros(20), np.full(20, 1e-30)),
        (np.array([1.0, np.nan, 2.0]), np.array([1.0, 2.0, np.nan])),
        (np.array([1.0, np.inf]), np.array([1.0, -np.inf])),
        (np.array(["a", "b"], dtype=object), np.array(["b", "a"], dtype=object)),
        (np.array(["ab", "c"], dtype=object), np.array(["a", "bc"], dtype=object)),
        ([{"cat": 0.5}], [{"dog": 0.5}]),
        ([np.ones(3), np.ones(3)], [np.ones(6)]),
        (np.ones(3), None),
    ],
    ids=["dtype", "shape", "zero", "NaN", "inf", "strings", "joined strings", "keys", "parts", "nothing"],
)
def test_what_cannot_be_close_is_infinitely_far(a: Any, b: Any) -> None:
    """In both directions."""
    assert distance(fingerprint(a), fingerprint(b)) == math.inf


def test_integers_that_float64_cannot_tell_apart_differ() -> None:
    """2^60 and 2^60 + 1 are not the same."""
    a, b = (fingerprint(np.array([value], np.int64)) for value in (2**60, 2**60 + 1))

    assert distance(a, b) > 0


def test_the_signs_are_fixed() -> None:
    """A baseline made today is read by every later version: these numbers must never change."""
    seen = fingerprint(np.arange(20.0))

    assert seen.digest == "8b6ba7a8b4532250"
    assert seen.sketch == pytest.approx((-2.2360679775, 0.4472135955, -9.3914855055, -4.0249223595))
