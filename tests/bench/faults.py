"""Planted faults: is the guilty node named first, and is nothing said where nothing is wrong?

    python -m tests.bench.faults MODEL.onnx … [--seeds 0:200] [--clean 0:100] [--inputs DIR] [--json FILE]

A seed plants one fault of a random kind (fault_kinds.py) into a random node of one of the models; the
comparison of the sound model with the faulted one on ONNX Runtime must name that node first (for a weight
that several nodes read: one of them). Not counted, and said: models that no longer run, and faults that move
the node's own result by less than what its dtype rounds away, measured by the engine without the comparison.
Sound models are compared with themselves, ONNX Runtime against the engine, on other inputs and with other
numbers of threads each time.
Inputs: NAME.npz in DIR where there is one, else seeded. With --json every outcome is written down as it
comes, and what stands there of the same version of graphdoc is taken over: long campaigns run in pieces.
"""

import argparse
import functools
import hashlib
import json
import math
import pathlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx

from graphdoc import compare_models, make_inputs
from graphdoc.compare import comparison
from graphdoc.compare.limits import own_limit
from graphdoc.compare.metrics import MismatchError, distance, ratio
from graphdoc.compare.target import Target
from graphdoc.engine import interpreter
from graphdoc.engine.errors import GraphdocError
from graphdoc.engine.interpreter import Interpreter
from graphdoc.surgeon.model import open_source
from tests.bench.fault_kinds import Fault, last, plant


@dataclass(frozen=True, slots=True)
class Outcome:
    """word: "named", "missed" (agrees), "other" (another node), "crash", "small" or "does not run".

    fault: None for a sound model, which is "silent" or an "alarm", or "does not run".
    """

    seed: int
    model: str
    fault: Fault | None
    word: str
    detail: str = ""

    @property
    def kind(self) -> str:
        """What was planted."""
        return self.fault.kind if self.fault else "clean"

    @property
    def is_wrong(self) -> bool:
        """Whether the comparison said what is not so."""
        return self.word in ("missed", "other", "crash", "alarm")

    def __str__(self) -> str:
        what = f"{self.model[:28]:28} {self.kind:10} {self.fault.text[:60] if self.fault else ''}"
        return f"{self.word:12} seed {self.seed:4} {what}  {self.detail}"


@dataclass(frozen=True, slots=True)
class Sound:
    """A model as it should be, with inputs and all it computes on them."""

    name: str
    proto: onnx.ModelProto
    feeds: dict[str, Any]
    values: dict[str, Any]


@functools.lru_cache(1)
def sound(path: pathlib.Path, folder: pathlib.Path | None) -> Sound:
    """Load a model and compute all its values."""
    target = Target(open_source(str(path)))
    proto = onnx.load(str(path)) if not target.proto.functions else target.proto
    proto = target.proto if target.source.proto.functions else proto
    feeds = inputs_of(path, folder)
    return Sound(path.stem, proto, feeds, run_all(proto, feeds))


def inputs_of(path: pathlib.Path, folder: pathlib.Path | None) -> dict[str, Any]:
    """Return the inputs in FOLDER/NAME.npz, or seeded ones."""
    side = (folder or path.parent) / f"{path.stem}.npz"
    if not side.exists():
        return dict(make_inputs(str(path)).feeds)
    names = {v.name for v in onnx.load(str(path), load_external_data=False).graph.input}
    return {k: v for k, v in np.load(side, allow_pickle=True).items() if k in names}


def run_all(proto: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    """Return every value of a run of the engine."""
    target = Target(open_source(proto))
    return Interpreter(target.model).run(feeds, [point.key for point in target.points])


def trial(one: Sound, seed: int) -> Outcome:
    """Plant, compare, and say whether the guilty node was named."""
    proto, fault = plant(one.proto, one.values, seed)
    try:
        moved = change(one, run_all(proto, one.feeds), fault)
    except (GraphdocError, MemoryError) as error:
        return Outcome(seed, one.name, fault, "does not run", str(error).splitlines()[0][:80])
    if moved <= 1:
        return Outcome(seed, one.name, fault, "small", f"{moved:.3g} of what rounding may do")
    try:
        result = compare_models(one.proto, proto, one.feeds, test_runner="ort", latency=False, pictures=False)
    except GraphdocError as error:
        return Outcome(seed, one.name, fault, "does not run", str(error).splitlines()[0][:80])
    except Exception as error:
        return Outcome(seed, one.name, fault, "crash", repr(error)[:200])
    first = result.first_divergence
    if first is not None and first.value in fault.guilty and not result:
        return Outcome(seed, one.name, fault, "named", result.verdict.kind.value)
    said = f"{result.verdict.sentence[:150]} | {first.value if first else ''} | moved {moved:.3g} × limit"
    notes = [x.note for x in result.layers if x.value in fault.guilty]
    return Outcome(
        seed, one.name, fault, "other" if first else "missed", f"{said} | {fault.guilty[:2]} {notes[:2]}"
    )


def change(one: Sound, values: dict[str, Any], fault: Fault) -> float:
    """Return by how many times what rounding may do the fault moves the first guilty result that it moves."""
    shapes = {k: _shape(v) for k, v in one.values.items()}
    points = {p.key: p for p in Target(open_source(one.proto)).points}
    return max(
        (
            _moved(one.values[k], values.get(k), points[k], shapes)
            for k in fault.guilty
            if k in one.values and k in points
        ),
        default=0.0,
    )


def _shape(value: Any) -> Any:
    return getattr(last(value), "shape", None)


def _moved(a: Any, b: Any, point: Any, shapes: dict[str, Any]) -> float:
    first = last(a)
    if not isinstance(first, np.ndarray) or first.dtype == object:
        return 0.0 if repr(a) == repr(b) else math.inf
    if b is None:
        return math.inf
    try:
        error = ratio(*distance(a, b))
    except MismatchError:
        return math.inf
    rms = float(np.sqrt(np.mean(np.square(first.astype(np.float64))))) if first.size else 0.0
    limit = own_limit(
        point.op, first.dtype.name, [shapes.get(n) for n in point.inputs], first.shape, rms
    ).value
    return error / limit if limit else (math.inf if error else 0.0)


def clean(path: pathlib.Path, seed: int, folder: pathlib.Path | None) -> Outcome:
    """Compare a model with itself on other inputs and threads; say what was said wrongly."""
    runner = ("engine", "ort", "engine:1")[seed % 3]
    feeds = inputs_of(path, folder) if seed % 2 else dict(make_inputs(str(path), seed=seed).feeds)
    try:
        result = compare_models(
            str(path),
            inputs=feeds,
            test_runner=runner,
            threads=1 + seed // 2 % 2,
            seed=seed,
            latency=False,
            pictures=False,
        )
    except GraphdocError as error:
        return Outcome(seed, path.stem, None, "does not run", str(error).splitlines()[0][:100])
    except Exception as error:
        return Outcome(seed, path.stem, None, "crash", f"{runner}: {error!r}"[:200])
    return Outcome(
        seed, path.stem, None, "silent" if result else "alarm", f"{runner}: {result.verdict.sentence}"
    )


# ---- the record ----------------------------------------------------------------------------------------


def version() -> str:
    """Return a hash over the sources that a verdict follows from."""
    folders = [pathlib.Path(module.__file__ or "").parent for module in (comparison, interpreter)]
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class Record:
    """Outcomes by what was tried, kept in a file where one is named; those of another version are dropped."""

    def __init__(self, path: pathlib.Path | None) -> None:
        self.path = path
        self.version = version()
        self.rows: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            held = json.loads(path.read_text())
            self.rows = held["outcomes"] if held["version"] == self.version else {}

    def add(self, key: str, outcome: Outcome) -> None:
        """Keep an outcome and write all of them."""
        self.rows[key] = {**asdict(outcome), "kind": outcome.kind, "wrong": outcome.is_wrong}
        if self.path is not None:
            text = json.dumps({"version": self.version, "outcomes": self.rows}, indent=1)
            part = self.path.with_suffix(".part")
            part.write_text(text)
            part.replace(self.path)

    def summary(self) -> Iterator[str]:
        """Yield what came out, by kind, and the share that counts."""
        counts = Counter((row["kind"], row["word"]) for row in self.rows.values())
        for kind in sorted({kind for kind, _ in counts}):
            yield f"{kind:12} { ({word: n for (k, word), n in sorted(counts.items()) if k == kind}) }"
        planted = [row for row in self.rows.values() if row["kind"] != "clean"]
        named = sum(row["word"] == "named" for row in planted)
        counted = named + sum(row["wrong"] for row in planted)
        yield f"named first: {named} of {counted} faults that count, of {len(planted)} planted"
        silent = counts["clean", "silent"]
        yield f"silent: {silent} of {silent + counts['clean', 'alarm'] + counts['clean', 'crash']} sound runs"


def tasks(options: argparse.Namespace) -> Iterator[tuple[str, int, pathlib.Path]]:
    """Yield what is to be tried, model by model, so that each is loaded once."""
    for name, span in (("fault", options.seeds), ("clean", options.clean)):
        yield from ((name, seed, path) for seed, path in _shares(span, options.models))


def _shares(span: str, models: Sequence[pathlib.Path]) -> Iterator[tuple[int, pathlib.Path]]:
    first, end = map(int, span.split(":") if ":" in span else ("0", span))
    for number, path in enumerate(models):
        yield from ((seed, path) for seed in range(first, end) if seed % len(models) == number)


def main() -> None:
    """Print what came out wrong, and the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--seeds", default="0:200")
    parser.add_argument("--clean", default="0:0")
    parser.add_argument("--inputs", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=170.0)
    parser.add_argument("--json", type=pathlib.Path, help="write outcomes here, and go on from what it holds")
    parser.add_argument("--list", action="store_true", help="print what came out right too")
    options = parser.parse_args()
    ends = time.monotonic() + options.seconds
    record = Record(options.json)
    for name, seed, path in tasks(options):
        key = f"{name} {seed} {path.stem}"
        if key in record.rows:
            continue
        if time.monotonic() > ends:
            print(f"stopped before {key}", flush=True)
            break
        outcome = (
            trial(sound(path, options.inputs), seed) if name == "fault" else clean(path, seed, options.inputs)
        )
        record.add(key, outcome)
        if options.list or outcome.is_wrong:
            print(outcome, flush=True)
    print("\n".join(record.summary()))


if __name__ == "__main__":
    main()
