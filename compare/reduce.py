"""From a model that fails to the smallest part of it that fails in the same way.

A failure is confirmed on the whole model first. Then parts are tried: each is a model of its own, fed with
the values that the rest of the model computed in a run that is trusted (the reference's; the model's own for
NaN). Since what is fed is right, a part fails only by what is wrong inside. The result is run once more, from
its file's bytes.
"""

import math
import re
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
import onnx

from graphdoc.compare.comparison import Options, compare
from graphdoc.compare.feeds import feeds_for
from graphdoc.compare.inputs import Inputs
from graphdoc.compare.metrics import MismatchError, distance, ratio
from graphdoc.compare.pairing import paired
from graphdoc.compare.reduce_part import Cut, CutError, Whole
from graphdoc.compare.reduce_search import Part, Search
from graphdoc.compare.result import Kind as VerdictKind
from graphdoc.compare.result import Layer
from graphdoc.compare.runner import RunnerOptions, Values, open_runner
from graphdoc.compare.target import Target
from graphdoc.engine.errors import GraphdocError, NothingComparedError, RunnerError
from graphdoc.engine.interpreter import Interpreter, Watch
from graphdoc.surgeon.model import open_source


class FailureKind(StrEnum):
    """What goes wrong; a part counts only when the same kind goes wrong in it."""

    MISMATCH = "mismatch"
    NAN = "NaN"
    CRASH = "crash"
    CHECK = "check"


class DoesNotFailError(NothingComparedError):
    """The whole model does not fail, so there is nothing to reduce."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How the whole model, and each part of it that counts, fails.

    value: where it shows, "" when the failure is of the model as a whole. text: in words. limit: for a
    mismatch, the RMS error over RMS of the reference from which on a part counts.
    """

    kind: FailureKind
    text: str
    value: str = ""
    limit: float = 0.0


@dataclass(frozen=True, slots=True)
class Reduction:
    """The smallest part that fails.

    cut: the part with its inputs. expected: what the reference computes for its outputs ({} for crashes and
    checks). failure: of the whole model; seen: of the part, run once more. nodes: their titles. whole_nodes:
    how many the model has. ref, test: what is trusted, and who runs the part. runs: parts that were tried.
    seconds: spent on them. minimal: no node of it can be left out.
    """

    cut: Cut
    expected: Values
    failure: Failure
    seen: str
    nodes: tuple[str, ...]
    whole_nodes: int
    runs: int
    seconds: float
    minimal: bool
    ref: str = ""
    test: str = ""


Probe = Callable[[Cut], str]
"""Return how a part fails, in words; "" when it does not fail in the same way."""


@dataclass(slots=True)
class Setting:
    """Who runs what. ref_target: another model to compare with; None: the same model on two runners."""

    target: Target
    ref: str
    test: str
    inputs: Callable[[], Inputs]
    ref_target: Target | None = None
    threads: int = 0
    seed: int = 0
    options: RunnerOptions = field(init=False)

    def __post_init__(self) -> None:
        self.options = RunnerOptions(self.threads, self.seed, times=False)


def reduce_mismatch(setting: Setting) -> Reduction:
    """Reduce a difference between two runners, or two models with the same names of values.

    Raises DoesNotFailError when they agree, and what :func:`compare` raises.
    """
    reference = setting.ref_target or setting.target
    pairs = paired(reference, setting.target)
    reference, setting = pairs.ref, replace(setting, target=pairs.test)
    fed = setting.inputs()
    options = Options(
        setting.ref,
        setting.test,
        threads=setting.threads,
        seed=setting.seed,
        latency=False,
        first_only=True,
    )
    found = compare(reference, setting.target, lambda: fed, options)
    first = _first(found.layers, found.verdict.first)
    if first is None:
        raise DoesNotFailError(
            f"nothing to reduce: {found.verdict.sentence}",
            next_step="give inputs on which it fails (--inputs), or other runners (--compare, --runner)",
        )
    with open_runner(setting.ref, reference, setting.options) as runner:
        values = {**fed.feeds, **runner.run(fed.feeds, [p.key for p in reference.points]).values}
    values = {**feeds_for(fed.feeds, reference, setting.target), **values}
    whole = Whole(setting.target, values)
    failure = _mismatch(first, whole.outer(first.value), nan=found.verdict.kind is VerdictKind.NAN)

    def probe(cut: Cut) -> str:
        return _differs(_run(setting.test, cut, setting.options), values, failure)

    return _reduced(whole, failure, probe, setting)


def _first(layers: Collection[Layer], index: int | None) -> Layer | None:
    return next((layer for layer in layers if layer.index == index), None)


def _mismatch(layer: Layer, value: str, *, nan: bool) -> Failure:
    """Return the failure of the first layer that diverges, as it shows in a value of the main graph.

    A part counts from the layer's own limit on where the layer itself is wrong; else it must show half of the
    error at least.
    """
    own, limit = layer.own_error or 0.0, layer.own_limit.value if layer.own_limit else 0.0
    least = limit if own > limit else min((layer.error or 0.0) / 2, sys.float_info.max)
    error = max(own, layer.error or 0.0)
    text = (
        "NaN or Inf on one side only" if nan or math.isinf(error) else f"{error:.2g} of the reference's RMS"
    )
    return Failure(FailureKind.MISMATCH, f"differs by {text}", value, least)


def _differs(got: Values, expected: Mapping[str, Any], failure: Failure) -> str:
    name = failure.value
    if name not in got or name not in expected:
        return ""
    try:
        error = ratio(*distance(expected[name], got[name]))
    except MismatchError as mismatch:
        return f"{name}: {mismatch}"
    return f"{name} differs by {error:.2g} of the reference's RMS" if error > failure.limit else ""


def reduce_nan(setting: Setting) -> Reduction:
    """Reduce a NaN or Inf that a model makes of finite values. Raises DoesNotFailError, RunnerError."""
    fed = setting.inputs()
    with open_runner(setting.test, setting.target, setting.options, "--runner") as runner:
        values = {**fed.feeds, **runner.run(fed.feeds, [p.key for p in setting.target.points]).values}
    whole = Whole(setting.target, values)
    names = [name for node in whole.nodes for name in node.output if name]
    first = next((name for name in names if not _finite(values.get(name))), None)
    if first is None:
        raise DoesNotFailError(
            f"nothing to reduce: no value is NaN or Inf on runner {setting.test}",
            next_step="give inputs on which it fails: --inputs x.npz",
        )
    failure = Failure(FailureKind.NAN, "NaN or Inf comes up", first)

    def probe(cut: Cut) -> str:
        if not all(map(_finite, cut.feeds.values())):
            return ""
        got = _run(setting.test, cut, setting.options).get(first)
        return "" if got is None or _finite(got) else f"NaN or Inf in {first}, of finite inputs"

    return _reduced(whole, failure, probe, setting)


def _finite(value: Any) -> bool:
    """Whether a value holds neither NaN nor Inf; what is no float does not."""
    if isinstance(value, list):
        return all(map(_finite, value))
    if not isinstance(value, np.ndarray) or value.dtype == object or value.dtype.kind in "iub":
        return True
    with np.errstate(all="ignore"):
        return bool(np.isfinite(value.astype(np.float64, copy=False)).all())


def reduce_crash(setting: Setting) -> Reduction:
    """Reduce an error that a runner stops with. Raises DoesNotFailError when it runs through."""
    fed = setting.inputs()
    crash = _crash(setting.test, setting.target, fed.feeds, setting.options)
    if not crash:
        raise DoesNotFailError(
            f"nothing to reduce: runner {setting.test} runs the model",
            next_step="name what fails: --compare RUNNER, --nan or --check CMD",
        )
    whole = Whole(setting.target, _known(setting, fed.feeds))
    failure = Failure(FailureKind.CRASH, crash)

    def probe(cut: Cut) -> str:
        seen = _crash(setting.test, Target(open_source(cut.model)), cut.feeds, setting.options)
        return seen if _signature(seen) == _signature(crash) else ""

    return _reduced(whole, failure, probe, setting)


def _known(setting: Setting, feeds: Mapping[str, Any]) -> Values:
    """Return what the engine computes, as far as it gets; if it cannot start, what the reference computes."""
    values: Values = dict(feeds)
    taps = frozenset(point.key for point in setting.target.points)
    try:
        interpreter = Interpreter(setting.target.model, seed=setting.seed)
    except GraphdocError:
        with suppress(GraphdocError), open_runner(setting.ref, setting.target, setting.options) as runner:
            values.update(runner.run(feeds, taps).values)
        return values
    with suppress(GraphdocError):
        interpreter.run(feeds, watch=Watch(taps=taps, sink=values.__setitem__))
    return values


def _crash(name: str, target: Target, feeds: Mapping[str, Any], options: RunnerOptions) -> str:
    """Return the first line of what a runner stops with, "" when it runs."""
    try:
        with open_runner(name, target, options, "--runner") as runner:
            runner.untouched(feeds)
    except RunnerError as error:
        return error.cause
    return ""


def _signature(text: str) -> str:
    """Return an error's text without what differs from part to part: names in quotes, numbers, shapes."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|\(.*?\)|\{.*?\}|[\d.,x×]+", "·", text)[:120]


def reduce_check(setting: Setting, check: Callable[[Cut], str]) -> Reduction:
    """Reduce what a check of one's own finds. check: returns how a part fails, "" when it passes.

    Raises DoesNotFailError when the whole model passes.
    """
    fed = setting.inputs()
    whole = Whole(setting.target, _known(setting, fed.feeds))
    everything = whole.cut(range(len(whole.nodes)), setting.target.outputs)
    seen = check(everything)
    if not seen:
        raise DoesNotFailError(
            "nothing to reduce: the check passes on the whole model",
            next_step="a check fails by an exit code other than 0; try it by hand on the model",
        )
    failure = Failure(FailureKind.CHECK, seen)
    return _reduced(whole, failure, lambda cut: text if (text := check(cut)) == seen else "", setting)


def _run(name: str, cut: Cut, options: RunnerOptions) -> Values:
    """Run a part; {} where the runner refuses it."""
    target = Target(open_source(cut.model))
    try:
        with open_runner(name, target, options) as runner:
            return runner.run(cut.feeds, [*target.outputs]).values
    except RunnerError:
        return {}


def _reduced(whole: Whole, failure: Failure, probe: Probe, setting: Setting) -> Reduction:
    """Search, and run what was found once more."""
    started = time.perf_counter()
    last = whole.maker(failure.value) if failure.value else None
    outputs = [failure.value] if failure.value else None

    def seen(part: Part) -> str:
        try:
            return probe(whole.cut(part, outputs))
        except CutError:
            return ""

    search = Search(lambda part: bool(seen(part)))
    items = list(range(len(whole.nodes))) if last is None else whole.ancestors(last)
    alone = () if last is None else (last,)
    part = alone if search.fails(alone) else _search(search, items, failure)
    cut = _from_bytes(whole.cut(part, outputs))
    again = probe(cut)
    if not again:
        raise RunnerError(
            "the smallest part fails only sometimes: run again, it did not",
            where=", ".join(_title(whole.nodes[i]) for i in part),
            next_step="look for what is random: threads, uninitialised memory, operators without a seed",
        )
    return Reduction(
        cut,
        {name.name: whole.values[name.name] for name in cut.model.graph.output if name.name in whole.values},
        failure,
        again,
        tuple(_title(whole.nodes[i]) for i in part),
        len(whole.nodes),
        search.runs,
        time.perf_counter() - started,
        not search.exhausted,
        f"{(setting.ref_target or setting.target).source.name} on {setting.ref}",
        setting.test,
    )


def _search(search: Search, items: list[int], failure: Failure) -> Part:
    if not search.fails(tuple(items)):
        raise RunnerError(
            "the failure does not show when the model is rebuilt from its nodes",
            where=failure.text,
            next_step="reduce by hand:  graphdoc edit MODEL -o part.onnx --extract IN..:OUT..",
        )
    return search.minimal(items)


def _from_bytes(cut: Cut) -> Cut:
    """Return the part as it will be read from its file."""
    return Cut(onnx.ModelProto.FromString(cut.model.SerializeToString()), cut.feeds)


def _title(node: onnx.NodeProto) -> str:
    name = node.name or next((n for n in node.output if n), "")
    return f"{node.op_type} '{name}'"
