"""Tactics that are measured once: what is kept, what is taken, what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphdoc.engine import expr as ex
from graphdoc.engine import tune
from graphdoc.engine.device.llvm.compiler import host_target
from graphdoc.engine.errors import InputError
from graphdoc.engine.kernels.contraction import Contraction
from graphdoc.engine.kernels.map import Map
from graphdoc.engine.program import Buffer, Kind, Program, Step, View, evaluate, whole
from graphdoc.engine.tune import Timings

HOST = host_target()


def view(name: str, shape: tuple[int, ...], kind: Kind = Kind.INNER) -> View:
    """Return the view of a new buffer."""
    return whole(Buffer(name, ex.F32, int(np.prod(shape)), kind), shape)


def product(n: int = 40) -> Step:
    """Return a matrix product, which has several tilings."""
    spec = Contraction(0, 1, 1, ex.load(-1, ex.F32), ex.F32)
    return Step(spec, (view("a", (20, 30)), view("b", (30, n))), (view("y", (20, n)),), ("node",))


def test_a_tactic_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step like it, and the next process with the file, take what was found."""
    asked: list[int] = []
    real = tune._measure
    monkeypatch.setattr(tune, "_measure", lambda *a: asked.append(1) or real(*a))
    timings = Timings()
    first = timings.choose(product(), HOST)

    assert first in tune.tactics(product(), HOST)
    assert timings.choose(product(), HOST) == first
    assert timings.choose(product(50), HOST) in tune.tactics(product(50), HOST)
    assert len(asked) == timings.measured == 2


def test_the_quickest_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the first is; and what stands in the file is taken unmeasured."""
    names = tune.tactics(product(), HOST)
    assert len(names) > 1
    monkeypatch.setattr(tune, "_measure", lambda *a: {n: 1.0 if n == names[-1] else 2.0 for n in names})
    timings = Timings()
    assert timings.choose(product(), HOST) == names[-1]
    timings.save(tmp_path / "t.json")
    monkeypatch.setattr(tune, "_measure", lambda *a: pytest.fail("measured again"))

    assert Timings.load(tmp_path / "t.json").choose(product(), HOST) == names[-1]


def test_a_tactic_that_is_no_more_is_measured_anew() -> None:
    """A file of an older version names it."""
    timings = Timings()
    timings.choose(product(), HOST)
    (machine,) = timings.rows.values()
    (key,) = machine
    machine[key] = ["forgotten", 1.0]

    assert timings.choose(product(), HOST) in tune.tactics(product(), HOST)


def test_a_step_without_a_choice_is_not_measured() -> None:
    """One tactic, or no emitter."""
    step = Step(Map((ex.load(0, ex.F32),)), (view("a", (3,)),), (view("y", (3,)),))
    timings = Timings()
    timings.choose(step, HOST)

    class Other:
        def evaluate(self, inputs: Any, outputs: Any) -> None:
            """Compute nothing."""

    assert timings.choose(Step(Other(), (), ()), HOST) is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": "other"}', json.dumps({"schema": tune.SCHEMA, "machines": {"a": {"b": 1}}})],
)
def test_a_file_that_is_no_cache_is_refused(tmp_path: Path, text: str) -> None:
    """It is not written over."""
    (tmp_path / "t.json").write_text(text, "utf-8")
    with pytest.raises(InputError, match="no timing cache"):
        Timings.load(tmp_path / "t.json")

    assert (tmp_path / "t.json").read_text("utf-8") == text


def test_one_step_alone_means_what_it_meant() -> None:
    """Inner buffers become what a caller gives and takes; views stay."""
    x, y = view("x", (6,)), view("y", (6,))
    step = Step(Map((ex.apply("neg", ex.load(0, ex.F32)),)), (x.sliced(0, 5, 3, -2),), (y.sliced(0, 1, 3),))
    program, arrays = tune.alone(step)
    (found,) = evaluate(program, dict(zip(program.inputs, arrays, strict=True))).values()

    assert isinstance(program, Program)
    np.testing.assert_array_equal(found[1:4], -arrays[0][[5, 3, 1]])
