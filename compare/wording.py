"""Layers → verdict: the class, the sentence, the facts and the next commands, worded once for every form."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from graphdoc.compare.causes import FADED, HALF_MAX
from graphdoc.compare.judge import UNSURE, is_wrong
from graphdoc.compare.metrics import epsilon
from graphdoc.compare.numbers import group, number, times
from graphdoc.compare.result import Kind, Layer, Side, Skip, Status, Verdict

HIDDEN = 0.1
"""A layer hides an error if less than this share of it comes out."""

STEPS = "steps of codes"
"""Stands in the reason of limits that count them (rounding.py)."""

CUT = "which its codes can hold"
"""Stands in the note of a layer that reads values which were cut off."""

CLOSER = 3.0
"""One side is called closer to float64 only if its distance is smaller by this factor."""


@dataclass(frozen=True, slots=True)
class Case:
    """What the verdict is worded from.

    command: of this comparison without options for output. model, suspect: the reference and the test as they
    were typed, for the next steps. skipped: values that were not compared although both sides have them.
    alone: operators of the values that only A has, and that only B has. magnified: what one unit in the last
    place of the inputs makes of the outputs, where it was measured.
    """

    layers: Sequence[Layer]
    a: Side
    b: Side
    skipped: Sequence[Skip]
    inputs: int
    seed: int | None
    command: str
    model: str
    suspect: str
    alone: Mapping[str, Sequence[str]] = field(default_factory=dict)
    magnified: tuple[float, float] | None = None


def verdict(case: Case) -> Verdict:
    """Return the verdict; of several classes that fit, the first in Kind's order."""
    kind, first = classify(case.layers)
    sentence, facts = _FORMS[kind]
    symbol, word, code = _HEADS[kind]
    return Verdict(
        kind=kind,
        exit_code=code,
        symbol=symbol,
        word=word,
        sentence=sentence(case, first),
        facts=tuple(facts(case, first)),
        next_steps=tuple(_next_steps(case, kind)),
        first=first.index if first else None,
    )


def classify(layers: Sequence[Layer]) -> tuple[Kind, Layer | None]:
    """Return the class and the layer it is about."""
    if not any(layer.status is not Status.SKIPPED for layer in layers):
        return Kind.NOTHING, None
    wrong = next((x for x in layers if x.status in (Status.OWN, Status.NAN)), None)
    inherited = next((x for x in layers if x.status is Status.INHERITED), None)
    if wrong is not None:
        return _fault(wrong), wrong
    if inherited is not None:
        return (Kind.REMARK if _outputs_agree(layers) else Kind.INHERITED), inherited
    if random := next((x for x in layers if x.status is Status.REMARK and x.note.startswith("random")), None):
        return Kind.RANDOM, random
    if tied := next((x for x in layers if x.status is Status.REMARK and x.note.startswith("ties")), None):
        return Kind.TIES, tied
    if unsure := [x for x in layers if x.is_output and x.note.startswith(UNSURE)]:
        return Kind.UNSURE, max(unsure, key=lambda x: (x.error or 0.0, -x.index))
    return Kind.AGREES, None


def _outputs_agree(layers: Sequence[Layer]) -> bool:
    outputs = [x for x in layers if x.is_output]
    return bool(outputs) and all(x.agrees for x in outputs)


def _fault(layer: Layer) -> Kind:
    if _overflowed(layer):
        return Kind.OVERFLOW
    if layer.status is Status.NAN:
        return Kind.NAN
    limit = layer.own_limit.value if layer.own_limit else 0.0
    truth = (layer.truth_a, layer.truth_b)
    if all(d is not None and d > limit for d in truth) and not closer(layer):
        return Kind.ILL_CONDITIONED
    return Kind.OWN


def _overflowed(layer: Layer) -> bool:
    """Whether B holds infinities in float16 where A holds larger finite numbers."""
    m = layer.metrics
    return "exceed fp16" in layer.note and m is not None


def closer(layer: Layer) -> str:
    """Return "A" or "B" for the side clearly closer to float64, "" when neither is or it is not known."""
    a, b = layer.truth_a, layer.truth_b
    if a is None or b is None:
        return ""
    if a * CLOSER < b:
        return "A"
    return "B" if b * CLOSER < a else ""


# Sentences


def _at(layer: Layer) -> str:
    return f"#{layer.index} {layer.op}"


def _compared(case: Case) -> list[Layer]:
    return [layer for layer in case.layers if layer.status is not Status.SKIPPED]


def _say_nothing(case: Case, first: Layer | None) -> str:
    return "A and B share no value name and no structure"


def _from(case: Case, first: Layer | None) -> str:
    return f"from {_place(first)} of {group(len(_compared(case)))} on"


def _place(first: Layer | None) -> str:
    return f"#{first.index}" if first else "the start"


def _say_overflow(case: Case, first: Layer | None) -> str:
    m = first.metrics if first else None
    count = f"{group(m.inf_b)} of {group(m.size)} values" if m else "values"
    return f"{_from(case, first)}: {count} exceed fp16 (max {group(int(HALF_MAX))}) and became infinity"


def _say_nan(case: Case, first: Layer | None) -> str:
    m = first.metrics if first else None
    what, count = ("NaN", m.nan_b) if m and m.nan_b != m.nan_a else ("infinity", m.inf_b if m else 0)
    side, other = ("B", "A")
    if m and (m.nan_a > m.nan_b or m.inf_a > m.inf_b):
        side, other, count = "A", "B", max(m.nan_a, m.inf_a)
    where = _at(first) if first else ""
    size = f" of {group(m.size)}" if m else ""
    born = f"the first {what} is born at {where} in {side}"
    return f"{born} ({group(count)}{size} elements); {other} has none there"


def _say_ill(case: Case, first: Layer | None) -> str:
    distance = number(max(first.truth_a or 0, first.truth_b or 0)) if first else ""
    return f"{_from(case, first)}, but neither side is wrong: both are {distance} from float64"


def _say_own(case: Case, first: Layer | None) -> str:
    wrong = {"A": "B is wrong", "B": "A is wrong", "": ""}[closer(first) if first else ""]
    blame = f"; {wrong}, by this layer's own error" if wrong else "; by this layer's own error"
    if first is not None and CUT in first.note:
        blame += ": values lie outside the range of their codes"
    elif first is not None and FADED in first.note:
        blame += ": values too small for fp16 became 0"
    return _from(case, first) + blame


def _say_inherited(case: Case, first: Layer | None) -> str:
    return f"at {_place(first)}, but no layer is wrong by itself: small errors add up and pass the limit here"


def _say_random(case: Case, first: Layer | None) -> str:
    count = sum(layer.status is Status.REMARK for layer in case.layers)
    layers = f"{_count(count, 'layer')} {_verb(count, 'depend')} on {_at(first) if first else 'a layer'}"
    return f"where it can be checked: {layers}, which is random; only shape and dtype were compared there"


def _say_ties(case: Case, first: Layer | None) -> str:
    at = _at(first) if first else ""
    if first is not None and "step" in first.note:
        return f"up to ties: inputs of {at} agree within rounding, but lie on different sides of a step"
    return f"up to ties: {at} picks another index among equal values"


def _say_remark(case: Case, first: Layer | None) -> str:
    count = sum(x.status in (Status.OWN, Status.INHERITED, Status.NAN) for x in case.layers)
    hider = _hider(case.layers, first)
    tail = f"; #{hider.index} {hider.op} hides it again" if hider else ""
    return f"the outputs agree. {_count(count, 'layer')} inside {_verb(count, 'do')} not{tail}"


def _say_unsure(case: Case, first: Layer | None) -> str:
    at = f"the output {_at(first)} by {number(first.error)}" if first else "the outputs"
    return f"as far as can be judged: no layer is wrong by itself; rounding on the way moves {at}"


def _say_agrees(case: Case, first: Layer | None) -> str:
    compared = _compared(case)
    agreeing = sum(x.status is Status.AGREES for x in compared)
    dtype = _dtypes(compared)
    how = f"within {dtype} rounding" if dtype else "exactly"
    if any(map(_is_coded, compared)):
        how += " and the steps of their codes"
    given = [x.limit is not None and x.limit.reason.startswith("given") for x in compared]
    if all(given):
        how = "within the given tolerance"
    elif any(given):
        how += f" or, {group(sum(given))} of them, a given tolerance"
    text = f"{group(agreeing)} of {group(len(compared))} layers agree {how}"
    near = max(compared, key=lambda x: (x.of_limit or 0.0, -x.index))
    if near.of_limit:
        text += f"; the closest to its limit is {_at(near)} at {number(near.of_limit)} of it"
    return text


def _is_coded(layer: Layer) -> bool:
    """Whether a layer's limit counts the steps of codes."""
    return layer.own_limit is not None and STEPS in layer.own_limit.reason


def _hider(layers: Sequence[Layer], first: Layer | None) -> Layer | None:
    """Return the first layer after the fault, reading a wrong one, that agrees again."""
    wrong = {x.index: x.error or 0.0 for x in layers if is_wrong(x.status)}
    after = (x for x in layers if first and x.index > first.index and x.agrees and "float" in x.dtype)
    for layer in after:
        brought = max((wrong[i] for i in layer.inputs if i in wrong), default=0.0)
        if (layer.error or 0.0) < HIDDEN * brought:
            return layer
    return None


def _count(count: int, noun: str) -> str:
    return f"{group(count)} {noun}" + ("" if count == 1 else "s")


def _verb(count: int, verb: str) -> str:
    return verb if count != 1 else {"do": "does"}.get(verb, verb + "s")


def _dtypes(layers: Sequence[Layer]) -> str:
    floats = Counter(x.dtype for x in layers if "float" in x.dtype)
    return floats.most_common(1)[0][0] if floats else ""


# Facts

Facts = Iterator[tuple[str, str]]


def _facts_none(case: Case, first: Layer | None) -> Facts:
    if case.skipped:
        yield (
            "skipped",
            f"{_count(len(case.skipped), 'value')}; {case.skipped[0].value}: {case.skipped[0].reason}",
        )


def _facts_agree(case: Case, first: Layer | None) -> Facts:
    yield from _facts_outputs(case)
    if first is not None:
        yield "where", f"{_at(first)}  {first.node}"
    yield from _facts_unsure(case)
    yield from _facts_truths(case)
    yield from _facts_magnified(case)
    yield "compared", _facts_sides(case)
    yield from _facts_coverage(case)


def _facts_unsure(case: Case) -> Facts:
    unsure = [x for x in case.layers if x.note.startswith(UNSURE)]
    if unsure:
        more = f" (and {_count(len(unsure) - 1, 'layer')} more)" if len(unsure) > 1 else ""
        yield "unsure", f"{_at(unsure[0])} {unsure[0].note}{more}"


def _facts_differ(case: Case, first: Layer | None) -> Facts:
    if first is None:
        return
    yield "where", f"{_at(first)}  {first.node}"
    if first.own_error is not None and first.own_limit is not None and first.own_limit.value == 0:
        yield "own", f"{number(first.own_error)}, where {first.own_limit.reason}"
    elif first.own_error is not None and first.own_limit is not None:
        inherited = (
            f"   (inherited {number(first.inherited_error)})" if first.inherited_error is not None else ""
        )
        limit = f"{times(first.of_limit)} its limit of {number(first.own_limit.value)}"
        yield "own", f"{number(first.own_error)}{_in_steps(first)}, {limit}{inherited}"
    elif first.error is not None and first.limit is not None:
        yield "error", f"{number(first.error)}, limit {number(first.limit.value)}"
    if first.own_limit is not None and first.own_limit.value > 0:
        yield "limit", first.own_limit.reason
    yield from _facts_why(first)
    if first.truth_a is not None and first.truth_b is not None:
        yield "truth", _truth(case, first, first.truth_a, first.truth_b)
    yield from _facts_magnified(case)
    yield from _facts_outputs(case)
    if _outputs_agree(case.layers) and (hider := _hider(case.layers, first)):
        yield "hidden", f"the outputs agree: {_at(hider)} hides it again on this input"
    yield "layers", _facts_counts(case)
    yield from _facts_coverage(case)


def _in_steps(layer: Layer) -> str:
    """Return an own error in steps of the layer's codes: " (0.29 of a step)"."""
    steps = layer.own_steps
    if steps is None:
        return ""
    return f" ({number(steps)} of a step)" if steps < 1 else f" ({number(steps)} steps)"


def _truth(case: Case, layer: Layer, a: float, b: float) -> str:
    """Say how far both sides are from float64, in units of the last place too, and who is the outlier."""
    units = "float" in layer.dtype and layer.step is None  # of codes a step says more
    eps = epsilon(layer.dtype.rpartition("/")[2]) if units else 0.0
    distances = [f"{number(x)}" + (f" ({number(x / eps)} ulp)" if eps else "") for x in (a, b)]
    text = f"A is {distances[0]} from float64, B {distances[1]}"
    nearer = closer(layer)
    if not nearer or case.a.runner == case.b.runner:
        return text
    outlier = case.b if nearer == "A" else case.a
    return f"{text}: {_RUNNERS.get(outlier.runner, outlier.runner)} is the outlier"


_RUNNERS = {
    "ort": "ONNX Runtime",
    "engine": "the engine",
    "engine:1": "the engine",
    "reference": "onnx.reference",
}

ILL = 1000.0
"""From this magnification of the inputs' last place on, a model is called ill-conditioned."""


def _facts_magnified(case: Case) -> Facts:
    if case.magnified is None:
        return
    step, change = case.magnified
    ill = change > ILL * step
    name = "ill-conditioned" if ill else "well-conditioned"
    gain = f", {times(change / step)} as much" if ill else ""
    moved = f"one ulp at the inputs ({number(step)}) moves the outputs by {number(change)}{gain}"
    yield "inputs", f"the model is {name} here: {moved}"


def _facts_truths(case: Case) -> Facts:
    """Say who is nearer to float64 over all layers, where every layer was held against it."""
    known = [layer for layer in case.layers if layer.truth_a is not None and layer.truth_b is not None]
    if len(known) < len(case.layers) / 2 or not known:
        return
    nearer = Counter(closer(layer) for layer in known)
    parts = [f"{group(nearer[side])} nearer in {side}" for side in "AB" if nearer[side]]
    parts += [f"{group(nearer[''])} as near" if parts else "both are as near"] if nearer[""] else []
    yield "truth", f"{_count(len(known), 'layer')} held against float64: {', '.join(parts)}"


def _facts_why(first: Layer) -> Facts:
    m = first.metrics
    if first.note:
        yield "why", first.note
    if m is None or m.worst is None:
        return
    at = ", ".join(map(str, m.worst))
    a, b = (x if isinstance(x, str) else number(x, 7) for x in (m.a_worst, m.b_worst))
    yield "worst", f"element [{at}]: A {a}, B {b}"


def _facts_outputs(case: Case) -> Facts:
    outputs = [x for x in case.layers if x.is_output and x.error is not None]
    for layer in sorted(outputs, key=lambda x: -(x.error or 0.0))[:1]:
        limit = f", limit {number(layer.limit.value)}" if layer.limit else ""
        yield "output", f"{layer.value}    error {number(layer.error)}{limit}"


def _facts_sides(case: Case) -> str:
    a, b = (f"{side.runner} {side.version}".rstrip() for side in (case.a, case.b))
    sides = f"A {a}  against  B {b}"
    seed = "" if case.seed is None else f", seed {case.seed}"
    return f"{sides}, {_count(case.inputs, 'input')}{seed}"


def _facts_counts(case: Case) -> str:
    counts = Counter(layer.status for layer in case.layers)
    words = {
        Status.AGREES: "agree",
        Status.OWN: "own error",
        Status.NAN: "NaN or Inf",
        Status.INHERITED: "inherited",
        Status.REMARK: "set aside",
    }
    return ", ".join(f"{group(counts[s])} {word}" for s, word in words.items() if counts[s])


def _facts_coverage(case: Case) -> Facts:
    """Say what was not compared as loudly as what was."""
    if case.skipped:
        reasons = Counter(skip.reason for skip in case.skipped)
        reason, count = reasons.most_common(1)[0]
        others = f", and {group(len(case.skipped) - count)} for other reasons" if len(reasons) > 1 else ""
        yield "skipped", f"{_count(count, 'value')}: {reason}{others}"
    for label, operators in case.alone.items():
        if operators:
            yield f"only {label}", f"{_count(len(operators), 'layer')}: {_tally(operators)}"
    for side in (case.a, case.b):
        if side.fallbacks:
            yield "fallback", f"{side.label} uses another implementation for {'; '.join(side.fallbacks)}"


def _tally(words: Sequence[str]) -> str:
    """Return the commonest words with their counts: 52 QuantizeLinear, 8 Add, 3 more kinds."""
    counts = sorted(Counter(words).items(), key=lambda row: (-row[1], row[0]))
    rest = len(counts) - MOST_KINDS
    more = f", {rest} more kind{'s' if rest > 1 else ''}" if rest > 0 else ""
    return ", ".join(f"{group(count)} {word}" for word, count in counts[:MOST_KINDS]) + more


MOST_KINDS = 4

_HEADS: Mapping[Kind, tuple[str, str, int]] = {
    Kind.NOTHING: ("–", "nothing was compared", 5),
    Kind.OVERFLOW: ("✗", "differs", 1),
    Kind.NAN: ("∅", "differs", 1),
    Kind.ILL_CONDITIONED: ("▲", "differs", 1),
    Kind.OWN: ("✗", "differs", 1),
    Kind.INHERITED: ("✗", "differs", 1),
    Kind.RANDOM: ("▲", "agrees", 0),
    Kind.TIES: ("✓", "agrees", 0),
    Kind.REMARK: ("▲", "agrees", 0),
    Kind.UNSURE: ("▲", "agrees", 0),
    Kind.AGREES: ("✓", "agrees", 0),
}
"""Symbol, word and exit code of each class."""

_FORMS: Mapping[Kind, tuple[Callable[..., str], Callable[..., Facts]]] = {
    Kind.NOTHING: (_say_nothing, _facts_none),
    Kind.OVERFLOW: (_say_overflow, _facts_differ),
    Kind.NAN: (_say_nan, _facts_differ),
    Kind.ILL_CONDITIONED: (_say_ill, _facts_differ),
    Kind.OWN: (_say_own, _facts_differ),
    Kind.INHERITED: (_say_inherited, _facts_differ),
    Kind.RANDOM: (_say_random, _facts_agree),
    Kind.TIES: (_say_ties, _facts_agree),
    Kind.REMARK: (_say_remark, _facts_differ),
    Kind.UNSURE: (_say_unsure, _facts_agree),
    Kind.AGREES: (_say_agrees, _facts_agree),
}


def _next_steps(case: Case, kind: Kind) -> Iterator[tuple[str, str]]:
    if kind is Kind.NOTHING:
        yield "List the values that exist.", f"graphdoc inspect {shlex.quote(case.model)} --layers"
        return
    if kind is Kind.UNSURE and "--rank" not in shlex.split(case.command):
        yield "See which layers move the outputs.", f"{case.command} --rank"
    if _HEADS[kind][2] == 0:
        return
    yield "Write the page to hand on.", f"{case.command} -o report.html"
    yield "Look for faults that need no run.", f"graphdoc lint {shlex.quote(case.suspect)}"
