"""Strings, sequences and optionals: against ONNX Runtime where it has them, and what they refuse."""

import itertools
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphdoc.engine.errors import RunnerError
from graphdoc.engine.interpreter import Interpreter
from tests.engine.single import agree, engine, model, oracle, run, same


def words(*values: str) -> np.ndarray[Any, Any]:
    return np.asarray(values, object)


# ---- strings ------------------------------------------------------------------------------------------


def test_concat() -> None:
    """Broadcasting, and a result of rank 0."""
    agree("StringConcat", words("a", "b"), np.asarray("x", object))
    agree("StringConcat", np.asarray("a", object), np.asarray("b", object))
    agree("StringConcat", np.asarray([["a"], ["b"]], object), words("x", "y", "z"))


@pytest.mark.parametrize(
    ("texts", "options"),
    [
        (("a,b,,c", "", ",", "x"), {"delimiter": ","}),
        ((" a b  c ", "", "  ", "x"), {}),
        ((" a b  c d ", "x"), {"maxsplit": 1}),
        (("a--b---c", "-"), {"delimiter": "--", "maxsplit": 1}),
        (("a,b",), {"delimiter": ",", "maxsplit": 0}),
        (("", ""), {}),
        ((), {}),
    ],
)
def test_split(texts: Any, options: Any) -> None:
    agree("StringSplit", words(*texts), outputs=2, **options)


def test_split_at_any_white_space() -> None:
    """The specification says white space; ONNX Runtime cuts at blanks only."""
    assert run("StringSplit", words("a\tb"), outputs=2).tolist() == [["a", "b"]]


PATTERNS = {
    r"\d+": ("12", "١٢", "1\n"),
    r"[[:alpha:]]+": ("abc", "a1"),
    r"[^[:digit:]]": ("a", "1"),
    r"a$": ("a", "a\n"),
    "a$\n": ("a\n",),
    "(?m)a$\n^b": ("a\nb",),
    "(?i)é": ("É", "e"),
    "(?i)[^k]": ("K", "K"),
    r"a.b": ("a\nb", "axb"),
    r"(?s)a.b": ("a\nb",),
    r"(?s-i:.)(?i:A)b": ("\naB", "xab"),
    r"\w+": ("é", "e_1"),
    r"[\W]|[^\W]x": ("é", "a", "ax"),
    r"[\S]\s": ("\x0b ", " \x0b", "a\t"),
    r"\bfoo\b|\B": ("foo", ""),
    r"a\z": ("a", "a\n"),
    r"(?P<n>a)(?<m>b)": ("ab",),
    r"\x{41}\x42\103": ("ABC",),
    r"\Qa.b\E": ("a.b", "axb"),
    r"a{2,3}": ("aa", "a", "aaaa"),
    r"a{,2}": ("a{,2}", "aa"),
    r"[]a]+[^]b]": ("]aa", "]]"),
    r"[[a&&b~~c]+": ("[&~", "x"),
    r"a|ab|": ("ab", ""),
    r"\\d\.\/": ("\\d./",),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_regular_expressions(pattern: str) -> None:
    """RE2's meaning, not Python's."""
    agree("RegexFullMatch", words(*PATTERNS[pattern]), pattern=pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a(?=b))b",
        r"(a)\1",
        "(",
        "a++",
        r"\pL",
        r"\Z",
        "(?a)a",
        "(?#c)a",
        "(?x) a",
        r"\N{DIGIT ONE}",
        "a(?i)b",
    ],
)
def test_regular_expressions_that_are_refused(pattern: str) -> None:
    """What RE2 lacks, or Python cannot express, is an error rather than another meaning."""
    with pytest.raises(RunnerError, match="RegexFullMatch"):
        run("RegexFullMatch", words("a"), pattern=pattern)


def test_normalizer() -> None:
    """Stop words go, case changes, and nothing left is one empty string."""
    x = words("Mon", "tue", "WED", "ß")
    options = {"stopwords": ["mon", "WED"], "opset": 20}

    agree("StringNormalizer", x, is_case_sensitive=1, **options)
    assert run("StringNormalizer", x, case_change_action="UPPER", **options).tolist() == ["TUE", "ß"]
    assert run("StringNormalizer", words("mon"), **options).tolist() == [""]
    assert run("StringNormalizer", np.asarray([["mon"]], object), **options).tolist() == [[""]]
    with pytest.raises(RunnerError, match=r"takes \[C\] or \[1, C\]"):
        run("StringNormalizer", np.asarray([["a"], ["b"]], object))


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skips", [0, 1, 3])
@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (1, 2), (2, 3), (3, 3)])
def test_tf_idf(mode: str, skips: int, shortest: int, longest: int) -> None:
    """Grams of 1 … 3 words with gaps; weights follow the gram, not its column."""
    rng = np.random.default_rng(skips)
    pairs, triples = list(itertools.permutations(range(4), 2)), list(itertools.product(range(3), repeat=3))
    pool = [0, 1, 2, 3, *np.ravel(pairs), *np.ravel(triples)]
    size = 4 + len(pairs) + len(triples)
    options = {
        "mode": mode,
        "min_gram_length": shortest,
        "max_gram_length": longest,
        "max_skip_count": skips,
        "ngram_counts": [0, 4, 4 + 2 * len(pairs)],
        "ngram_indexes": rng.permutation(size).tolist(),
        "weights": rng.random(size).astype(np.float32).tolist(),
    }
    tokens = rng.integers(-1, 5, (3, 12))

    agree("TfIdfVectorizer", tokens, pool_int64s=[int(i) for i in pool], rtol=1e-6, **options)
    texts = np.asarray([str(i) for i in tokens[0]], object)
    agree("TfIdfVectorizer", texts, pool_strings=[str(i) for i in pool], rtol=1e-6, **options)


# ---- sequences and optionals --------------------------------------------------------------------------


def ran(text: str, feeds: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the outputs of level 0 and of ONNX Runtime for a model in ONNX's text form."""
    proto = onnx.parser.parse_model(text)
    return engine(proto, feeds), oracle(proto, feeds)


def test_sequences() -> None:
    """Positions count from both ends; inserting and erasing leave the first sequence alone."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N] a, float[M] b) => (seq(float[K]) s, seq(float[K]) t, float[K] joined, int64 n, float[K] last)
    {
        s = SequenceConstruct(a, b)
        front = Constant<value = int64 {-2}>()
        t1 = SequenceInsert(s, b, front)
        t2 = SequenceInsert(t1, a)
        back = Constant<value = int64 {-1}>()
        t = SequenceErase(t2, back)
        joined = ConcatFromSequence<axis = 0>(t)
        n = SequenceLength(t)
        last = SequenceAt(t, back)
    }"""
    feeds = {"a": np.asarray([1, 2], np.float32), "b": np.asarray([3], np.float32)}

    for got, want in zip(*ran(text, feeds), strict=True):
        same(got, want)


@pytest.mark.parametrize("split", [None, 2, [1, 4, 0], 7])
def test_split_to_sequence(split: Any) -> None:
    """keepdims counts without sizes alone."""
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    sizes = None if split is None else np.asarray(split, np.int64)

    agree("SplitToSequence", x, sizes, axis=1)
    if split is None:
        agree("SplitToSequence", x, axis=1, keepdims=0)
    else:
        flat = run("SplitToSequence", x, sizes, axis=1, keepdims=0)
        same(flat, run("SplitToSequence", x, sizes, axis=1))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("y = SequenceAt(s, p)", "out of bounds for a sequence of 1"),
        ("z = SequenceErase(s, p) y = SequenceAt(z, p)", "out of bounds"),
        ("z = SequenceInsert(s, a, p) y = SequenceAt(z, p)", "out of bounds"),
        ("z = SequenceEmpty() y = ConcatFromSequence<axis = 0>(z)", "empty sequence"),
    ],
)
def test_sequences_refuse(line: str, message: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[N] a) => (float[K] y) {{
        s = SequenceConstruct(a)
        p = Constant<value = int64 {{5}}>()
        {line}
    }}"""

    with pytest.raises(RunnerError, match=message):
        engine(onnx.parser.parse_model(text), {"a": np.ones(2, np.float32)})


def test_sequence_map() -> None:
    """Sequences are walked together, tensors are given whole."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N] a, float[N] b) => (seq(float[N]) sums, seq(float[N]) firsts) {
        s = SequenceConstruct(a, b)
        sums, firsts = SequenceMap <body = one (float[N] x, float[N] y, float[N] w)
            => (float[N] z, float[N] f) { xy = Add(x, y) z = Mul(xy, w) f = Identity(x) }> (s, s, a)
    }"""
    a, b = np.asarray([1, 2], np.float32), np.asarray([3, 5], np.float32)

    sums, firsts = engine(onnx.parser.parse_model(text), {"a": a, "b": b})

    same(sums, [2 * a * a, 2 * b * a])
    same(firsts, [a, b])


def optional_model(value: str) -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g (float[N] a, bool c) => (bool has, float[N] y) {{
        o = {value}
        has = OptionalHasElement(o)
        y = If <then_branch = t () => (float[N] p) {{ p = OptionalGetElement(o) }},
                else_branch = e () => (float[N] q) {{ q = Neg(a) }}> (c)
    }}"""
    return onnx.parser.parse_model(text)


def test_optionals() -> None:
    """An optional with a value gives it back; one without says so, and refuses to give."""
    a = np.asarray([1, 2], np.float32)
    empty = "Optional<type = float[N]>()"

    has, y = engine(optional_model("Optional(a)"), {"a": a, "c": np.asarray(True)})
    hasnt, other = engine(optional_model(empty), {"a": a, "c": np.asarray(False)})

    assert (bool(has), bool(hasnt)) == (True, False)
    same(y, a)
    same(other, -a)
    with pytest.raises(RunnerError, match="empty optional"):
        engine(optional_model(empty), {"a": a, "c": np.asarray(True)})


def test_sequence_input_in_truth_mode() -> None:
    """Items of sequences are promoted like tensors."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (seq(float[N]) s) => (float[K] y) { y = ConcatFromSequence<axis = 0>(s) }"""
    runner = Interpreter(ir.from_proto(onnx.parser.parse_model(text)), truth=True)

    assert runner.run({"s": [np.ones(2, np.float32)]})["y"].dtype == np.float64


# ---- losses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [None, 1, -5])
def test_losses(reduction: str, weighted: bool, ignore: Any) -> None:
    """Against float64 by hand, sample by sample."""
    rng = np.random.default_rng(9)
    scores = rng.standard_normal((3, 4, 5))
    labels = rng.integers(0, 4, (3, 5))
    if ignore == -5:
        labels[0, 0] = -5
    weights = rng.random(4) if weighted else np.ones(4)
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    used = labels != (999 if ignore is None else ignore)
    factor = np.where(used, weights[np.where(used, labels, 0)], 0)
    loss = -np.take_along_axis(logs, np.where(used, labels, 0)[:, None], 1)[:, 0] * factor
    want = {"none": loss, "sum": loss.sum(), "mean": loss.sum() / factor.sum()}[reduction]
    options = {"reduction": reduction} | ({} if ignore is None else {"ignore_index": ignore})
    given = (labels, weights if weighted else None)

    got = run("SoftmaxCrossEntropyLoss", scores, *given, opset=13, outputs=2, **options)
    nll = run("NegativeLogLikelihoodLoss", logs, *given, opset=13, **options)

    same(got, np.asarray(want), rtol=1e-12)
    same(nll, np.asarray(want), rtol=1e-12)


def test_loss_refuses_another_reduction() -> None:
    with pytest.raises(RunnerError, match="unknown reduction 'max'"):
        run("NegativeLogLikelihoodLoss", np.ones((1, 2)), np.zeros(1, np.int64), reduction="max")


def test_loss_of_half_precision_sums_in_float32() -> None:
    """4096 losses of 1 sum to 4096 in float16; one by one they would stop at 2048."""
    x = np.full((4096, 2), -1, np.float16)
    proto, feeds = model("NegativeLogLikelihoodLoss", x, np.zeros(4096, np.int64), reduction="sum")

    assert float(engine(proto, feeds)[0]) == 4096
