"""Is an edited model still the original one? Interface, validity, and outputs on inputs of many kinds.

Both models run side by side, through ONNX Runtime with its optimisations off and through the engine's level
0. What the original refuses says nothing; what it accepts the edited model must accept too, with the same
results but for rounding (verify_judge.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from graphdoc.compare.inputs import Inputs, Shapes
from graphdoc.compare.judge import RANDOM
from graphdoc.compare.verify_inputs import Feeds, InputSet, InputSets, is_float
from graphdoc.compare.verify_interface import bound_sizes, interface_differences, is_old_claim, undeclared
from graphdoc.compare.verify_judge import Evidence, Outcome, Verdict, judge, same_bits
from graphdoc.compare.verify_light import without_weights
from graphdoc.compare.verify_sides import OPENERS, Side, Sides, Trial, Values, attempt, cause_of, release
from graphdoc.engine.errors import GraphdocError, UnsupportedOperatorError, UsageError
from graphdoc.engine.interpreter import Interpreter
from graphdoc.surgeon.model import Loadable, Source, open_source
from graphdoc.surgeon.reader import read_model
from graphdoc.surgeon.verification import NotRun, Verification, VerifiedRun

RUNNERS = ("ort", "engine")

BUDGET = {"ort": 0.3, "engine": 0.06}
"""Seconds of processor time that the original may take per runner before further inputs are left out."""

IMPORTANT = frozenset({"other sizes", "NaN", "large values", "zeros"})
"""Kinds of inputs without which a verification is weak: what seeded inputs hide shows there."""

LEAST_SETS = {"ort": 2, "engine": 1}
"""Sets of inputs that are run whatever they cost: as given, and other sizes or NaN."""

ENGINE_SHARE = 4.0
"""The engine takes up to this many times what ONNX Runtime takes."""

ENGINE_MOST = 0.3
"""Seconds that one run in the engine may take."""

ENGINE_MOST_HALF = 2.0
"""The same for models with float16 or bfloat16: where ONNX Runtime computes those in float32, the engine
alone shows what overflows."""

TRUTH_MOST = 1.0
"""Seconds of the engine's run up to which float64 is asked, which takes about twice as long."""


_HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


@dataclass
class Reference:
    """What the original made of one set of inputs through one runner.

    varying: outputs that are random. evidence: see verify_judge.py.
    """

    kind: str
    runner: str
    feeds: Feeds = field(repr=False)
    values: Values = field(repr=False)
    varying: frozenset[str]
    evidence: Evidence


def verify(
    original: Loadable | Source,
    edited: Loadable | Source,
    *,
    shapes: Shapes | None = None,
    inputs: Inputs | Mapping[str, Any] | None = None,
    thorough: bool = False,
    exact: bool = False,
) -> Verification:
    """Return whether an edited model still is the original one.

    original, edited: paths or models in memory; neither is changed, and weights are not copied.
    shapes: sizes that the edit has fixed, by input or symbol, as :func:`parse_shapes` returns them.
    inputs: values to use in place of seeded ones.
    thorough: run everything, whatever the time.
    exact: the edit may change no bit of the engine's results (pure folding by the engine's own operators).

    To hold many edited models against one original use :class:`Verifier`.
    """
    return Verifier(original, shapes=shapes, inputs=inputs, thorough=thorough).verify(edited, exact=exact)


_Results: TypeAlias = dict[int, tuple[Trial, Values]]
"""By the place of its reference: a run of the edited model, and a second one where outputs are random."""


def _again(reference: Reference, side: Side) -> tuple[Trial, Values]:
    """Run the edited model as the original was. Values with the same bits are kept once."""
    trial = attempt(side, reference.feeds)
    found = trial.values or {}
    more = attempt(side, reference.feeds).values or {} if reference.varying and found else {}
    wanted = reference.values
    kept = {n: wanted[n] if n in wanted and _same(wanted[n], v) else v for n, v in found.items()}
    return (trial if trial.values is None else replace(trial, values=kept)), more


class Verifier:
    """One original, run once per set of inputs however many edited models are held against it.

    The original must not change meanwhile. opset: the version of the default domain that edits convert to.
    See :func:`verify` for the other parameters.
    """

    def __init__(
        self,
        original: Loadable | Source,
        *,
        shapes: Shapes | None = None,
        inputs: Inputs | Mapping[str, Any] | None = None,
        thorough: bool = False,
        opset: int | None = None,
        runners: Sequence[str] = RUNNERS,
    ) -> None:
        self._source = open_source(original)
        self._shapes = shapes
        self._given = dict(inputs.feeds if isinstance(inputs, Inputs) else inputs) if inputs else None
        self._opset = opset
        self._originals = _Originals(self._source, tuple(runners), thorough=thorough)
        self._suspect: Reference | None = None
        self._warming: Future[None] | None = None

    def warm(self) -> None:
        """Start running the original on another thread; :meth:`verify` waits for it.

        ONNX Runtime computes without Python's lock, so that meanwhile the model can be edited.
        """
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="graphdoc-verify")
        self._warming = pool.submit(self._prepare)
        pool.shutdown(wait=False)

    def _prepare(self) -> None:
        for _ in self._references():
            pass

    def verify(self, edited: Loadable | Source, *, exact: bool = False) -> Verification:
        """Return how an edited model compares; ends with the first set of inputs that shows a difference."""
        if self._warming is not None:
            self._warming.result()  # what went wrong there is raised here
            self._warming = None
        source = open_source(edited)
        try:
            model = source.model
        except GraphdocError as error:
            return Verification(faults=(f"the edited model cannot be read: {error.cause}",))
        check = _Check(self._source.model, model, exact=exact)
        check.interface = interface_differences(
            self._source.model, model, sized=bool(self._shapes), opset=self._opset
        )
        for references in self._batches():
            self._originals.close()
            results = self._run_edited(source, references, check)
            self._suspect = check.first_difference(references, results) or self._suspect
            self._originals.close()
            if check.differs:
                break
        check.not_run = [*self._originals.not_run, *check.not_run]
        return check.result()

    def _batches(self) -> Iterator[list[Reference]]:
        """Yield the reference that told a difference last time, then the others."""
        suspect = self._suspect
        if suspect is not None:
            yield [suspect]
        yield [reference for reference in self._references() if reference is not suspect]

    def _run_edited(self, source: Source, references: Sequence[Reference], check: "_Check") -> "_Results":
        """Return what the edited model makes of inputs, one runner after the other.

        Neither two runners nor both models are in memory at once. A runner ends with the first refusal.
        """
        results: _Results = {}
        runners = self._originals.runners
        for runner in runners:
            try:
                side = OPENERS[runner](source)
            except (GraphdocError, MemoryError) as error:
                check.add_fault(f"{runner} refuses the edited model: {cause_of(error)}")
                continue
            for place, reference in enumerate(references):
                if reference.runner == runner:
                    trial = results[place] = _again(reference, side)
                    if trial[0].values is None:
                        break
            del side
            release(source)
        if "ort" not in runners:
            try:
                read_model(without_weights(source.model).proto, None, external=False)
            except GraphdocError as error:
                check.add_fault(f"the edited model is not sound: {cause_of(error)}")
        return results

    def _references(self) -> Iterator[Reference]:
        return self._originals.references(self._sets)

    def _sets(self) -> InputSets:
        return InputSets(self._source.model, self._shapes, self._given)


class _Originals:
    """The original in every runner, and its results, made once and kept."""

    def __init__(self, source: Source, runners: tuple[str, ...], *, thorough: bool) -> None:
        self._source = source
        self._asked = runners
        self._thorough = thorough
        self._spent = dict.fromkeys(runners, 0.0)
        self._tries = dict.fromkeys(runners, 0)
        self._count = dict.fromkeys(runners, 0)
        self._skipped: dict[str, list[str]] = {}
        self._refused: list[NotRun] = []
        self._made: list[Reference] = []
        self._more: Iterator[Reference] | None = None
        self._complete = False

    @cached_property
    def _sides(self) -> Sides:
        return Sides(self._source, self._asked)

    @property
    def runners(self) -> list[str]:
        """The runners that take the original."""
        return self._sides.runners

    def close(self) -> None:
        """Let go of what holds the original's weights; it comes back when it is needed."""
        for name in ("_truth_side", "_other_engine"):
            self.__dict__.pop(name, None)
        self._sides.close()

    @property
    def not_run(self) -> list[NotRun]:
        """What was left out so far."""
        closed = [NotRun(what=runner, why=why) for runner, why in self._sides.refused.items()]
        return [*closed, *self._refused, *map(self._left_out, self._skipped)]

    def _left_out(self, runner: str) -> NotRun:
        kinds = self._skipped[runner]
        missing = IMPORTANT.intersection(kinds) - {reference.kind for reference in self._made}
        what = ", ".join(kinds) if self._count[runner] else "one run of this model takes it too long"
        return NotRun(what=runner, why=f"left out to save time: {what}", important=bool(missing))

    def references(self, sets: Callable[[], InputSets]) -> Iterator[Reference]:
        """Yield what the original makes of each set, computed at the first call and kept."""
        if self._more is None:
            self._more = self._make(sets)
        yield from list(self._made)
        if not self._complete:
            position = len(self._made)
            while True:
                if position == len(self._made):
                    found = next(self._more, None)
                    if found is None:
                        self._complete = True
                        return
                    self._made.append(found)
                yield self._made[position]
                position += 1

    def _make(self, sets: Callable[[], InputSets]) -> Iterator[Reference]:
        if not self.runners:
            return
        try:
            kinds = sets()
        except GraphdocError as error:
            self._refused.append(NotRun(what="inputs", why=cause_of(error)))
            return
        for kind in kinds.all():
            if not kind.thorough or self._thorough:
                yield from self._kind(kind)

    def _kind(self, kind: InputSet) -> Iterator[Reference]:
        """Yield the original's results on one kind of inputs, through every runner that is not too slow."""
        refusal = ""
        choices = list(kind.choices)
        for runner in self.runners:
            if runner not in kind.runners:
                continue
            if self._is_too_slow(runner):
                self._skipped.setdefault(runner, []).append(kind.kind)
                continue
            found, refusal = self._accepted(kind, runner, choices)
            if found is not None:
                yield found
        if refusal:
            self._refused.append(NotRun(what=kind.kind, why=refusal))

    def _accepted(
        self, kind: InputSet, runner: str, choices: list[Callable[[], Feeds]]
    ) -> tuple[Reference | None, str]:
        """Return the result of the first choice that the original accepts; earlier ones are dropped."""
        refusal = ""
        while choices:
            try:
                feeds = choices[0]()
            except UsageError as error:  # too large
                refusal = refusal or error.cause
                choices.pop(0)
                continue
            trial = attempt(self._sides[runner], feeds)
            self._spent[runner] += trial.seconds
            self._tries[runner] += 1
            if trial.values is not None:
                self._count[runner] += 1
                return self._reference(kind, runner, feeds, trial.values), ""
            refusal = refusal or f"the original refuses them: {trial.refusal}"
            if len(choices) == 1:
                break
            choices.pop(0)
        return None, refusal

    def _is_too_slow(self, runner: str) -> bool:
        if self._thorough:
            return False
        if runner == "engine" and self._heavy():
            return True
        return self._count[runner] >= LEAST_SETS[runner] and self._spent[runner] > BUDGET[runner]

    def _heavy(self) -> bool:
        """Whether the engine would take too long, by what ONNX Runtime takes."""
        return self._per_run("ort") * ENGINE_SHARE > (ENGINE_MOST_HALF if self._has_halves else ENGINE_MOST)

    def _per_run(self, runner: str) -> float:
        """Return the seconds that one run took on average, those that ended with a refusal too."""
        return self._spent.get(runner, 0.0) / max(self._tries.get(runner, 0), 1)

    @cached_property
    def _has_halves(self) -> bool:
        graph = self._source.model.graph
        values = (*graph.inputs, *graph.outputs, *graph.initializers.values())
        casts = (
            a for node in graph.all_nodes() for a in [node.attributes.get("to")] if node.op_type == "Cast"
        )
        kinds = {
            *(value.dtype for value in values),
            *(ir.DataType(a.as_int()) for a in casts if a is not None),
        }
        return not kinds.isdisjoint(_HALVES)

    def _reference(self, kind: InputSet, runner: str, feeds: Feeds, values: Values) -> Reference:
        evidence = Evidence(self._truth(feeds), self._shaken(runner, feeds), self._depth, kind.extreme)
        return Reference(kind.kind, runner, feeds, values, self._varying(runner, feeds, values), evidence)

    @cached_property
    def _depth(self) -> int:
        return sum(1 for _ in self._source.model.graph.all_nodes())

    @cached_property
    def _is_random(self) -> bool:
        model = self._source.model
        nodes = [*model.graph.all_nodes(), *(n for f in model.functions.values() for n in f.all_nodes())]
        return any(is_random(node) for node in nodes)

    def _varying(self, runner: str, feeds: Feeds, values: Values) -> frozenset[str]:
        """Return the outputs that another run changes."""
        if not self._is_random:
            return frozenset()
        side = self._other_engine if runner == "engine" else self._sides[runner]
        again = attempt(side, feeds).values or {}
        return frozenset(name for name in values if not _same(values[name], again.get(name)))

    @cached_property
    def _other_engine(self) -> Side:
        return Interpreter(self._source.model, seed=1)

    @cached_property
    def _truth_side(self) -> Side | None:
        ran = bool(self._count.get("engine"))
        seconds = self._per_run("engine") if ran else self._per_run("ort") * ENGINE_SHARE
        if seconds > TRUTH_MOST and not self._thorough:
            return None
        try:
            return Interpreter(self._source.model, truth=True)
        except UnsupportedOperatorError:
            return None

    def _truth(self, feeds: Feeds) -> Callable[[], Values | None]:
        def compute() -> Values | None:
            return None if self._truth_side is None else attempt(self._truth_side, feeds).values

        return _once(compute)

    def _shaken(self, runner: str, feeds: Feeds) -> Callable[[], list[Values]]:
        def compute() -> list[Values]:
            trials = [attempt(self._sides[runner], shaken(feeds, seed)) for seed in range(2)]
            if runner != "engine" and "engine" in self.runners and not self._heavy():
                trials.append(attempt(self._sides["engine"], feeds))
            return [trial.values for trial in trials if trial.values is not None]

        return _once(compute)


@dataclass
class _Check:
    """One edited model under examination."""

    original: ir.Model
    edited: ir.Model
    exact: bool
    interface: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    runs: list[VerifiedRun] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)
    remarks: dict[str, None] = field(default_factory=dict)
    differs: bool = False

    def first_difference(self, references: Sequence[Reference], results: "_Results") -> Reference | None:
        """Judge results up to the first that differs, and return where that was."""
        for place, reference in enumerate(references):
            if place in results and not self._judge(reference, *results[place]):
                self.differs = True
                return reference
        return None

    def add_fault(self, text: str) -> None:
        """Note why the edited model is not valid, once."""
        if text not in self.faults:
            self.faults.append(text)

    def _judge(self, reference: Reference, trial: Trial, again: Values) -> bool:
        """Return whether nothing differs."""
        if trial.values is None:
            reason = f"the original accepts this, the edited model refuses: {trial.refusal}"
            return self._add(reference, "", Outcome(Verdict.DIFFERS, float("inf"), 0.0, reason))
        values = trial.values
        self._check_declared(reference, values)
        outcomes = {
            name: self._outcome(reference, name, values, again) for name in reference.values if name in values
        }
        judged = {name: outcome for name, outcome in outcomes.items() if outcome.verdict != Verdict.UNSURE}
        for name in outcomes.keys() - judged.keys():
            what = f"'{name}' on {reference.kind} through {reference.runner}"
            self.not_run.append(NotRun(what=what, why=f"cannot be judged: {outcomes[name].reason}"))
        if not judged:
            return True
        worst = max(judged, key=lambda name: judged[name].rank)
        equal = all(not outcome.reason for outcome in judged.values())
        return self._add(reference, "" if equal else worst, judged[worst], equal=equal)

    def _check_declared(self, reference: Reference, after: Values) -> None:
        """Note outputs that are not what the edited model declares; a remark if the original did so too."""
        was = {str(value.name): value for value in self.original.graph.outputs}
        sizes = bound_sizes(self.original, reference.feeds)
        for value in self.edited.graph.outputs:
            name = str(value.name)
            text = undeclared(value, after.get(name))
            if not text or name not in was:
                continue
            if is_old_claim(was[name], value, after[name].shape, sizes):
                self.remarks[f"{text}, in the original too"] = None
            else:
                self.add_fault(text)

    def _outcome(self, reference: Reference, name: str, values: Values, again: Values) -> Outcome:
        if name in reference.varying:
            return self._random(reference, name, values, again)
        exact = self.exact and reference.runner == "engine"
        return judge(name, reference.values[name], values[name], reference.evidence, exact=exact)

    def _random(self, reference: Reference, name: str, values: Values, again: Values) -> Outcome:
        """Judge an output that is another one at every run: only its kind can be the same."""
        self.remarks[f"output '{name}' is random: only its dtype and shape were compared"] = None
        difference = _kind_difference(reference.values[name], values[name])
        if not difference and reference.runner == "ort" and _same(values[name], again.get(name)):
            difference = "the original's is random, the edited model's the same at every run"
        if difference:
            return Outcome(Verdict.DIFFERS, float("inf"), 0.0, difference)
        return Outcome(Verdict.UNSURE, reason="it is random")

    def _add(self, reference: Reference, value: str, outcome: Outcome, *, equal: bool = False) -> bool:
        agrees = outcome.verdict != Verdict.DIFFERS
        self.runs.append(
            VerifiedRun(
                inputs=reference.kind,
                runner=reference.runner,
                agrees=agrees,
                value=value,
                equal=equal,
                error=outcome.error,
                limit=outcome.limit,
                reason=outcome.reason,
            )
        )
        return agrees

    def result(self) -> Verification:
        return Verification(
            interface=tuple(self.interface),
            faults=tuple(self.faults),
            runs=tuple(self.runs),
            not_run=tuple(self.not_run),
            remarks=tuple(self.remarks),
        )


# ---- values ------------------------------------------------------------------------------------------


def shaken(feeds: Feeds, seed: int) -> Feeds:
    """Return the inputs with real numbers up or down by half a unit in the last place, or unchanged.

    Whole numbers stay: they may be indices, and a cast would make other ones of their neighbours.
    """
    rng = np.random.default_rng([seed, 17])
    return {name: _shake(value, rng) for name, value in feeds.items()}


def _shake(value: Any, rng: np.random.Generator) -> Any:
    if isinstance(value, list):
        return [_shake(item, rng) for item in value]
    if value is None or not is_float(value.dtype):
        return value
    eps = float(np.finfo(value.dtype).eps) if value.dtype.kind == "f" else 2.0**-7
    with np.errstate(all="ignore"):
        wide = value.astype(np.float64)
        factor = np.where(wide == np.round(wide), 1, 1 + eps * rng.integers(-1, 2, value.shape))
        return np.asarray((wide * factor).astype(value.dtype))


def is_random(node: ir.Node) -> bool:
    """Whether a node may give other results at every run: a random operator, or a Dropout that can drop."""
    return node.op_type in RANDOM or (node.op_type == "Dropout" and len(node.inputs) > 2)


def _once(compute: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that computes at its first call and remembers."""
    found: list[Any] = []

    def recall() -> Any:
        if not found:
            found.append(compute())
        return found[0]

    return recall


def _same(a: Any, b: Any) -> bool:
    """Whether two values have the same bits."""
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and same_bits(a, b)
    return bool(a == b)


def _kind_difference(a: Any, b: Any) -> str:
    """Return how two values differ in kind, dtype or shape, "" if they do not."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return "" if type(a) is type(b) else f"{type(a).__name__} has become {type(b).__name__}"
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype}{list(a.shape)} has become {b.dtype}{list(b.shape)}"
    return ""
