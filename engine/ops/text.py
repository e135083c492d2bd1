"""Strings: joining, splitting, matching, cleaning and counting. Everything here runs on the host."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphdoc.engine.ops.dtypes import INT64, STRING
from graphdoc.engine.ops.host import strings, to_host
from graphdoc.engine.ops.re2 import compile_re2
from graphdoc.engine.ops.shapes import BOOL, broadcast, same_shape
from graphdoc.engine.ops.table import Array, Call, TensorType, op


@op("StringConcat", 20, infer=broadcast)
def string_concat(call: Call, x: Array, y: Array) -> Array:
    """x followed by y, element by element, with broadcasting (ONNX StringConcat-20)."""
    return np.asarray(x + y, dtype=object)


def _parts(text: str, delimiter: str, limit: int) -> list[str]:
    if delimiter:
        return text.split(delimiter, limit) if text else []
    return text.strip().split(None, limit)


def _split_type(call: Call, x: TensorType, **_: Any) -> tuple[TensorType, TensorType]:
    parts = None if x.shape is None else (*x.shape, None)
    return TensorType(STRING, parts), TensorType(INT64, x.shape)


@op("StringSplit", 20, infer=_split_type)
def string_split(
    call: Call, x: Array, *, delimiter: str = "", maxsplit: int | None = None
) -> tuple[Array, Array]:
    """The parts of each string on a new last axis, filled up with "", and their number (int64) (ONNX
    StringSplit-20).

    An empty delimiter stands for any run of white space; ``maxsplit`` bounds the number of cuts.
    """
    limit = -1 if maxsplit is None else maxsplit
    parts = [_parts(text, delimiter, limit) for text in x.reshape(-1)]
    counts = np.asarray([len(part) for part in parts], np.int64).reshape(x.shape)
    width = int(counts.max(initial=0))
    flat = [item for part in parts for item in part + [""] * (width - len(part))]
    return strings(flat, (*x.shape, width)), counts


@op("RegexFullMatch", 20, infer=same_shape(BOOL))
def regex_full_match(call: Call, x: Array, *, pattern: str) -> Array:
    """Whether each whole string matches the pattern (RE2 syntax), bool.

    Raises ValueError for a pattern that is not RE2, or that Python cannot express.
    """
    match = compile_re2(pattern).fullmatch
    flat = np.asarray([match(text) is not None for text in x.reshape(-1)], np.bool_)
    return call.xp.asarray(flat.reshape(x.shape))


def _by_character(change: Callable[[str], str]) -> Callable[[str], str]:
    """Return a change of case that keeps the number of characters, as one of wide characters does."""

    def changed(text: str) -> str:
        if text.isascii():
            return change(text)
        return "".join(new if len(new := change(old)) == 1 else old for old in text)

    return changed


_CASES: dict[str, Callable[[str], str]] = {
    "NONE": str,
    "LOWER": _by_character(str.lower),
    "UPPER": _by_character(str.upper),
}


def _normalizer_type(call: Call, x: TensorType, *, stopwords: Sequence[str] = (), **_: Any) -> TensorType:
    if not x.shape:
        return TensorType(STRING)
    # A size that is not known may be 0, and then one empty string comes out.
    kept = not stopwords and isinstance(x.shape[-1], int) and x.shape[-1] > 0
    return TensorType(STRING, x.shape if kept else (*x.shape[:-1], None))


@op("StringNormalizer", 10, infer=_normalizer_type)
def string_normalizer(
    call: Call,
    x: Array,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str = "",
    stopwords: Sequence[str] = (),
) -> Array:
    """The strings of [C] or [1, C] without the stop words, in lower or upper case if asked for (ONNX
    StringNormalizer-10).

    When nothing is left the result is one empty string. Case follows Unicode; ``locale`` is not used.
    """
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise ValueError(f"StringNormalizer takes [C] or [1, C], not {list(x.shape)}")
    fold = str if is_case_sensitive else _CASES["LOWER"]
    banned = {fold(word) for word in stopwords}
    kept = [_CASES[case_change_action](text) for text in x.reshape(-1) if fold(text) not in banned]
    kept = kept or [""]
    return strings(kept, (len(kept),) if x.ndim == 1 else (1, len(kept)))


# ---- TfIdfVectorizer ----------------------------------------------------------------------------------

_Ints = np.ndarray[Any, np.dtype[np.int64]]


def _look_up(known: np.ndarray[Any, Any], items: np.ndarray[Any, Any]) -> _Ints:
    """Return the place of each item in the sorted ``known``, -1 where it is not there."""
    if not known.size:
        return np.full(items.shape, -1, np.int64)
    place = np.minimum(np.searchsorted(known, items), known.size - 1)
    return np.where(known[place] == items, place, -1)


def _match(pool: _Ints, windows: _Ints, words: int) -> _Ints:
    """Return the row of ``pool`` [P, n] that equals each window [..., n], -1 for none.

    Words are numbered from 0 (-1: unknown). Prefixes of growing length are numbered in turn, so that
    numbers stay below P · words.
    """
    pool_code, code = pool[:, 0], windows[..., 0]
    for place in range(1, pool.shape[1]):
        pairs, pool_code = np.unique(pool_code * words + pool[:, place], return_inverse=True)
        word = windows[..., place]
        pair = np.where((code < 0) | (word < 0), -1, code * words + word)
        code = _look_up(pairs, pair)
    codes, rows = np.unique(pool_code, return_index=True)
    found = _look_up(codes, code)
    return np.where(found < 0, -1, rows[found])


def _windows(rows: _Ints, length: int, step: int) -> _Ints:
    """Return all n-grams [N, W, n] of rows [N, C] whose words lie ``step`` apart."""
    count = max(rows.shape[1] - step * (length - 1), 0)
    return rows[:, np.arange(count)[:, None] + step * np.arange(length)]


def _ngram_counts(
    rows: _Ints, pools: list[_Ints], lengths: range, skips: int, words: int
) -> list[tuple[int, _Ints]]:
    """Return (length, matches [N, …]) of every pool looked for; single words do not depend on skips."""
    return [
        (length, _match(pools[length - 1], _windows(rows, length, skip + 1), words))
        for length in lengths
        if length <= len(pools) and len(pools[length - 1])
        for skip in range(skips + 1 if length > 1 else 1)
    ]


def _tf_idf_type(call: Call, x: TensorType, *, ngram_indexes: Sequence[int], **_: Any) -> TensorType:
    shape = None if x.shape is None else (*x.shape[:-1], max(ngram_indexes) + 1)
    return TensorType(call.real(np.float32), shape)


@op("TfIdfVectorizer", 9, infer=_tf_idf_type)
def tf_idf_vectorizer(
    call: Call,
    x: Array,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] = (),
    pool_strings: Sequence[str] = (),
    weights: Sequence[float] = (),
) -> Array:
    """How often each n-gram of the pool stands in x [C] or [N, C]: float32 [max(ngram_indexes) + 1], [N, …]
    (ONNX TfIdfVectorizer-9).

    Mode IDF gives the weight where the count is not 0, TFIDF count times weight. Words of an n-gram lie
    1 … max_skip_count + 1 apart.
    """
    tokens = to_host(x)
    pool = np.asarray(pool_strings if tokens.dtype.kind == "O" else pool_int64s)
    known, numbered = np.unique(pool, return_inverse=True)
    rows = tokens.reshape(-1, tokens.shape[-1]) if tokens.ndim > 1 else tokens.reshape(1, -1)
    rows = _look_up(known, rows.astype(known.dtype) if rows.dtype.kind != "O" else rows.astype(str))
    ends = [*ngram_counts[1:], pool.size]
    parts = zip(ngram_counts, ends, range(1, len(ends) + 1), strict=True)
    pools = [numbered[start:end].reshape(-1, length) for start, end, length in parts]
    first = np.cumsum([0, *(len(part) for part in pools)])
    lengths = range(min_gram_length, max_gram_length + 1)
    counts = np.zeros((len(rows), len(ngram_indexes)), np.int64)
    for length, found in _ngram_counts(rows, pools, lengths, max_skip_count, known.size):
        entry, place = np.nonzero(found >= 0)
        np.add.at(counts, (entry, found[entry, place] + first[length - 1]), 1)
    result = _weighted(call, counts, mode, weights, ngram_indexes)
    return call.xp.asarray(result if tokens.ndim > 1 else result[0])


def _weighted(
    call: Call, counts: _Ints, mode: str, weights: Sequence[float], indexes: Sequence[int]
) -> np.ndarray[Any, Any]:
    """Return the counts, weighted by mode, at the output column of each n-gram."""
    scale = np.asarray(weights or [1.0] * counts.shape[1], np.float32)
    values = {"TF": counts, "IDF": (counts > 0) * scale, "TFIDF": counts * scale}[mode]
    result = np.zeros((len(counts), max(indexes) + 1), call.real(np.float32))
    result[:, list(indexes)] = values
    return result
