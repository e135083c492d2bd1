"""The long run of random graphs: the engine beside ONNX Runtime, graph after graph, until told to stop.

    python tests/bench/random_graphs.py --graphs 20000 --seed 1 -j 2
    python tests/bench/random_graphs.py --seed 1 --only 4711    one graph again
    python tests/bench/random_graphs.py --level 1               the optimised engine

Graph number n of seed s is always the same graph. Prints progress, what was compared and how it came out,
which reasons explained what, and operator × dtype counts (``--coverage FILE`` for all of them). Each
unexplained difference is saved, shrunk to the layer that shows it, as model.onnx, inputs.npz and a note that
says how to repeat it. The exit code is 1 when there is one.
"""

import argparse
import collections
import dataclasses
import multiprocessing
import pathlib
import sys
import time
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import numpy as np
import onnx

from tests.engine.random_graphs import random_graph
from tests.engine.random_oracle import Difference, Outcome, judge
from tests.engine.random_values import bodies

CHUNK = 20
"""Graphs handed to a worker at a time."""

OLD_AFTER = 2000
"""Graphs after which a worker is replaced, so that what libraries leak does not add up."""

Key = tuple[str, str]


@dataclasses.dataclass
class Tally:
    """What the graphs so far came to."""

    graphs: int = 0
    nodes: int = 0
    values: int = 0
    exact: int = 0
    within: int = 0
    limited: int = 0
    refused: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    reasons: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    coverage: collections.Counter[Key] = dataclasses.field(default_factory=collections.Counter)
    differing: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def add(self, number: int, model: onnx.ModelProto, outcome: Outcome) -> None:
        """Count one graph."""
        self.graphs += 1
        for name in ("values", "exact", "within", "limited"):
            setattr(self, name, getattr(self, name) + getattr(outcome, name))
        if outcome.refused:
            self.refused[outcome.refused[:120]] += 1
        else:
            self.nodes += sum(1 for _ in bodies(model.graph))
        self.reasons.update(outcome.reasons)
        self.coverage.update(outcome.coverage)

    def lines(self) -> Iterator[str]:
        """Yield the printed form."""
        operators = {op for op, _ in self.coverage}
        explained = sum(self.reasons.values())
        yield f"graphs {self.graphs}, of which ONNX Runtime refused {sum(self.refused.values())}"
        yield f"nodes {self.nodes} of {len(operators)} operators, {len(self.coverage)} operator × dtype pairs"
        yield (
            f"values {self.values}: same {self.exact}, within 4 units {self.within}, within the limit that "
            f"float64 gives {self.limited}, explained {explained}, unexplained {sum(self.differing.values())}"
        )
        for title, counts in (
            ("explained", self.reasons),
            ("refused", self.refused),
            ("UNEXPLAINED", self.differing),
        ):
            yield from (f"  {title} {count:6d}  {name}" for name, count in counts.most_common())


def worker(pipe: Connection, seed: int, level: int) -> None:
    """Judge the graphs whose numbers come through the pipe; say which one is next, in case it is the last."""
    warnings.simplefilter("ignore")
    while (numbers := pipe.recv()) is not None:
        for number in numbers:
            pipe.send(("next", number))
            model, feeds = random_graph(f"{seed}/{number}", keep_failures=True)
            outcome = judge(model, feeds, level)
            found = [
                (d.where, d.op, d.text, d.model.SerializeToString(), d.feeds) for d in outcome.differences
            ]
            outcome.differences.clear()
            pipe.send(("done", number, model.SerializeToString(), outcome, found))
        pipe.send(("idle",))


class Pool:
    """Worker processes, replaced when they die or grow old."""

    def __init__(self, jobs: int, seed: int, level: int) -> None:
        self.context = multiprocessing.get_context("spawn")
        self.seed = seed
        self.level = level
        self.workers = [self._start() for _ in range(jobs)]

    def _start(self) -> dict[str, Any]:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=worker, args=(theirs, self.seed, self.level), daemon=True)
        process.start()
        theirs.close()
        return {"pipe": ours, "process": process, "left": [], "at": None, "done": 0, "busy": False}

    def run(self, numbers: list[int]) -> Iterator[tuple[Any, ...]]:
        """Yield ("done", …) of each number, and ("died", number) of one that ended its process."""
        waiting = collections.deque(numbers[i : i + CHUNK] for i in range(0, len(numbers), CHUNK))
        while True:
            for place, each in enumerate(self.workers):
                if not each["busy"] and waiting:
                    self._hand(place, waiting.popleft())
            busy = [w for w in self.workers if w["busy"]]
            if not busy:
                break
            for pipe in wait([w["pipe"] for w in busy]):
                each = next(w for w in busy if w["pipe"] is pipe)
                yield from self._hear(each, waiting)
        for each in self.workers:
            each["pipe"].send(None)
            each["process"].join()

    def _hand(self, place: int, chunk: list[int]) -> None:
        each = self.workers[place]
        if each["done"] >= OLD_AFTER:
            each["pipe"].send(None)
            each["process"].join()
            each = self.workers[place] = self._start()
        each["pipe"].send(chunk)
        each.update(left=list(chunk), busy=True)

    def _hear(self, each: dict[str, Any], waiting: collections.deque[list[int]]) -> Iterator[tuple[Any, ...]]:
        try:
            message = each["pipe"].recv()
        except EOFError:
            each["process"].join()
            at, left = each["at"], [n for n in each["left"] if n != each["at"]]
            each.update(self._start())
            if left:
                waiting.appendleft(left)
            yield ("died", at)
            return
        if message[0] == "next":
            each["at"] = message[1]
        elif message[0] == "idle":
            each["busy"] = False
        else:
            each["left"].remove(message[1])
            each["done"] += 1
            yield message


def save(folder: pathlib.Path, seed: int, number: int, found: Difference) -> pathlib.Path:
    """Write what shows a difference, and how to repeat it."""
    place = folder / f"{seed}-{number}-{found.op}"
    place.mkdir(parents=True, exist_ok=True)
    onnx.save(found.model, place / "model.onnx")
    arrays = {n: v for n, v in found.feeds.items() if isinstance(v, np.ndarray) and v.dtype != object}
    np.savez(place / "inputs.npz", **arrays)
    again = f"python tests/bench/random_graphs.py --seed {seed} --only {number}  (with the --level it had)"
    (place / "note.txt").write_text(f"{found.op} {found.where}: {found.text}\n{again}\n", encoding="utf-8")
    return place


def options() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--graphs", type=int, default=1000, metavar="N", help="how many")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first")
    parser.add_argument("--only", type=int, metavar="N", help="one graph, by number")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--level", type=int, default=0, choices=(0, 1), help="of the engine")
    parser.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--save", type=pathlib.Path, default=pathlib.Path("random-graphs"), metavar="DIR")
    parser.add_argument("--coverage", type=pathlib.Path, metavar="FILE", help="write operator × dtype counts")
    parser.add_argument("--every", type=int, default=1000, metavar="N", help="graphs between two lines")
    return parser.parse_args()


def main() -> int:
    """Run; return the exit code."""
    asked = options()
    numbers = [asked.only] if asked.only is not None else list(range(asked.first, asked.first + asked.graphs))
    tally, started = Tally(), time.monotonic()
    for message in Pool(asked.jobs, asked.seed, asked.level).run(numbers):
        if message[0] == "died":
            tally.differing["a process died"] += 1
            print(f"graph {message[1]} ended its process", flush=True)
            continue
        _, number, raw, outcome, found = message
        tally.add(number, onnx.ModelProto.FromString(raw), outcome)
        for where, op, text, model, feeds in found:
            difference = Difference(where, op, text, onnx.ModelProto.FromString(model), feeds)
            place = save(asked.save, asked.seed, number, difference)
            tally.differing[op] += 1
            print(f"graph {number} {op} {where}: {text}  ({place})", flush=True)
        if tally.graphs % asked.every == 0:
            spent = time.monotonic() - started
            print(f"{tally.graphs} graphs, {tally.nodes} nodes, {spent:.0f} s", flush=True)
    print("\n".join(tally.lines()))
    if asked.coverage:
        rows = [f"{op}\t{dtype}\t{count}" for (op, dtype), count in sorted(tally.coverage.items())]
        asked.coverage.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return 1 if tally.differing else 0


if __name__ == "__main__":
    sys.exit(main())
