"""Plans: built once, the same bytes each time, loaded whole or refused."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from graphdoc.engine import plan as plans
from graphdoc.engine.errors import GraphdocError, InputError, ModelError
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.plan import Plan
from graphdoc.engine.plan_file import is_plan

F32 = np.dtype(np.float32)

NET = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[2,3,8,8] x) => (float[2,5] y, float[2,4,8,8] r)
<float[4,3,3,3] w, float[4] b, float[4,5] m>
{
    c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
    r = Relu (c)
    g = GlobalAveragePool (r)
    f = Flatten (g)
    z = MatMul (f, m)
    y = Softmax (z)
}
"""


def model(text: str, seed: int = 0) -> ir.Model:
    """Return a model with random weights in place of the graph's initializers without content."""
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(seed)
    for weight in list(proto.graph.value_info):
        shape = [d.dim_value for d in weight.type.tensor_type.shape.dim]
        array = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, weight.name))
    del proto.graph.value_info[:]
    return ir.serde.deserialize_model(proto)


def net(text: str = NET, seed: int = 0) -> ir.Model:
    """Return the small network."""
    return model(text, seed)


def feeds(shape: tuple[int, ...] = (2, 3, 8, 8), seed: int = 1) -> dict[str, Any]:
    """Return an input."""
    return {"x": np.random.default_rng(seed).standard_normal(shape, np.float32)}


def built(text: str = NET, *shapes: tuple[int, ...], compiled: bool = True, seed: int = 0) -> Plan:
    """Return the plan of a model with one input x."""
    choices = [{"x": (F32, s)} for s in shapes or ((2, 3, 8, 8),)]
    return plans.build(net(text, seed), choices, compiled=compiled)


def assert_close(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """The same outputs in the same order, up to a few roundings of sums of 27 products."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_plan_computes_what_level_0_does(tmp_path: Path, compiled: bool) -> None:
    """Before it is saved and after it is loaded: the same bits, near level 0's."""
    first = built(compiled=compiled)
    first.save(tmp_path / "m.plan")
    second = Plan.load(tmp_path / "m.plan")
    expected = Interpreter(net()).run(feeds())

    assert is_plan(tmp_path / "m.plan")
    assert_close(first.run(feeds()), expected)
    for name, value in second.run(feeds()).items():
        assert value.tobytes() == first.run(feeds())[name].tobytes()
    assert second.notes == []
    assert len(second.parts) == compiled


def test_equal_builds_give_equal_bytes(tmp_path: Path) -> None:
    """Built twice, and saved anew after loading."""
    for name in ("a", "b"):
        built().save(tmp_path / name)
    Plan.load(tmp_path / "a").save(tmp_path / "c")

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["a", "b", "c"] or len(list(tmp_path.iterdir())) == 3


def test_loading_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither text nor machine code is made anew."""
    from graphdoc.engine.device import cpu
    from graphdoc.engine.device.llvm import compiler

    built().save(tmp_path / "m.plan")
    Plan.load(tmp_path / "m.plan").run(feeds())  # the driver's own code is there from now on

    def refuse(*args: Any) -> Any:
        raise AssertionError("not from the plan")

    monkeypatch.setattr(cpu, "emit", refuse)
    monkeypatch.setattr(compiler, "_object", refuse)
    compiler._code(compiler.host_target()).clear()
    with pytest.raises(AssertionError):
        compiler.addresses(["text"], compiler.host_target())
    share, run = cpu.share(compiler.host_target()), cpu.driver.steps_function(compiler.host_target())

    assert share
    assert run
    assert_close(Plan.load(tmp_path / "m.plan").run(feeds()), Interpreter(net()).run(feeds()))


OPEN = NET.replace("[2,3,8,8] x", "[N,3,H,8] x").replace("[2,5]", "[N,5]").replace("[2,4,8,8]", "[N,4,H,8]")


def refused(plan: Plan, inputs: Mapping[str, Any]) -> InputError:
    """Return the refusal of inputs."""
    with pytest.raises(InputError) as refusal:
        plan.run(inputs)
    return refusal.value


def test_several_shapes_in_one_plan(tmp_path: Path) -> None:
    """The program for the inputs at hand runs; of a fixed plan no other."""
    shapes = ((1, 3, 8, 8), (2, 3, 8, 8), (5, 3, 2, 8))
    plans.build(net(OPEN), [{"x": (F32, s)} for s in shapes], fixed=True).save(tmp_path / "m.plan")
    loaded = Plan.load(tmp_path / "m.plan")

    for shape in ((1, 3, 8, 8), (5, 3, 2, 8)):
        assert_close(loaded.run(feeds(shape)), Interpreter(net(OPEN)).run(feeds(shape)))
    refusal = refused(loaded, feeds((3, 3, 8, 8)))
    assert "3x3x8x8" in refusal.cause
    assert "x=1x3x8x8; x=2x3x8x8; x=5x3x2x8" in str(refusal.where)
    for bad in (
        {"x": feeds()["x"].astype(np.float64)},
        {},
        {"z": feeds()["x"]},
        {**feeds(), "more": np.ones(1)},
    ):
        assert "no program for" in refused(loaded, bad).cause


class TestBetween:
    """Shapes between the smallest and the largest of a plan."""

    def loaded(self, tmp_path: Path, **how: Any) -> Plan:
        """Return a plan for 1 to 5 images of 2 to 8 rows, from its file."""
        choices = [{"x": (F32, (n, 3, h, 8))} for n, h in ((1, 2), (5, 8))]
        plans.build(net(OPEN), choices, **how).save(tmp_path / "m.plan")
        return Plan.load(tmp_path / "m.plan")

    def test_they_run_as_level_0_does(self, tmp_path: Path) -> None:
        """Before and after, in turns with those that were built; the same bits the second time."""
        plan = self.loaded(tmp_path)
        for shape in ((3, 3, 8, 8), (1, 3, 2, 8), (5, 3, 7, 8), (2, 3, 3, 8)):
            first = plan.run(feeds(shape))
            assert_close(first, Interpreter(net(OPEN)).run(feeds(shape)))
            again = plan.run(feeds(shape))
            assert all(again[name].tobytes() == value.tobytes() for name, value in first.items())

    def test_a_plan_of_one_shape_more_is_the_same_to_the_bit(self, tmp_path: Path) -> None:
        """What is made when it comes is what would have been built."""
        built_ = built(OPEN, (3, 3, 5, 8)).run(feeds((3, 3, 5, 8)))
        for name, value in self.loaded(tmp_path).run(feeds((3, 3, 5, 8))).items():
            assert value.tobytes() == built_[name].tobytes()

    @pytest.mark.parametrize(
        "shape",
        [(0, 3, 8, 8), (6, 3, 8, 8), (2, 3, 9, 8), (2, 3, 1, 8), (2, 4, 8, 8), (2, 3, 8), (2, 3, 8, 7)],
    )
    def test_what_lies_outside_is_refused(self, tmp_path: Path, shape: tuple[int, ...]) -> None:
        """In one line, with what the plan serves."""
        refusal = refused(self.loaded(tmp_path), feeds(shape))

        assert "x".join(map(str, shape)) in refusal.cause
        assert str(refusal.where) == "it serves x=1..5x3x2..8x8"

    def test_most_code_comes_from_the_plan(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Kernels that take sizes when they run are not compiled anew."""
        from graphdoc.engine.device.llvm import compiler

        plan = self.loaded(tmp_path)
        compiler._code(compiler.host_target()).clear()
        made: list[str] = []
        real = compiler._object
        monkeypatch.setattr(compiler, "_object", lambda text, target: made.append(text) or real(text, target))
        plan.run(feeds((3, 3, 5, 8)))
        held = {name for part in plan.parts for name in part.objects}

        assert not held & {compiler.symbol(text) for text in made}
        assert len(made) < len(held)

    def test_few_programs_are_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Those not used for longest go."""
        monkeypatch.setattr(plans, "_KEPT", 2)
        plan = self.loaded(tmp_path)
        for n, h in ((2, 3), (2, 4), (2, 3), (2, 5)):
            plan.run(feeds((n, 3, h, 8)))

        assert [key[1][0][1][2] for key in plan._made] == [3, 5]

    def test_equal_builds_give_equal_bytes(self, tmp_path: Path) -> None:
        """The graph does not make a file differ, nor does saving it anew; weights are there once."""
        self.loaded(tmp_path).save(tmp_path / "again")
        first = (tmp_path / "m.plan").read_bytes()
        self.loaded(tmp_path)

        assert (tmp_path / "again").read_bytes() == (tmp_path / "m.plan").read_bytes() == first

    def test_without_llvmlite_numpy_runs_them(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The part is left aside."""
        from graphdoc.engine.device import cpu
        from graphdoc.engine.device.llvm import compiler

        def missing() -> Any:
            raise ImportError("no llvmlite here")

        plan = self.loaded(tmp_path)
        monkeypatch.setattr(compiler, "host_target", missing)
        monkeypatch.setattr(cpu, "host_target", missing)

        assert_close(plan.run(feeds((3, 3, 5, 8))), Interpreter(net(OPEN)).run(feeds((3, 3, 5, 8))))

    def test_inputs_that_contradict_each_other_are_refused(self) -> None:
        """One symbol stands for one size."""
        text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N,4] x, float[N,4] z) => (float[N,4] y) { y = Add (x, z) }"""
        choices = [{"x": (F32, (n, 4)), "z": (F32, (n, 4))} for n in (1, 8)]
        plan = plans.build(model(text), choices)
        ones = {n: np.ones((n, 4), np.float32) for n in (2, 3)}

        assert refused(plan, {"x": ones[2], "z": ones[3]})
        np.testing.assert_array_equal(plan.run({"x": ones[2], "z": ones[2]})["y"], 2 * ones[2])

    def test_a_damaged_graph_is_refused(self, tmp_path: Path) -> None:
        """When it is needed; what needs none still runs."""
        plan = self.loaded(tmp_path)
        assert plan.graph is not None
        plan.graph.text = bytes(plan.graph.text)[:-20]

        with pytest.raises(ModelError, match="damaged"):
            plan.run(feeds((3, 3, 5, 8)))
        assert plan.run(feeds((1, 3, 2, 8)))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("n = NonZero (x)\n y = Cast <to = 1> (n)", "NonZero"),
        ("y = RandomNormalLike (x)", "RandomNormalLike"),
    ],
)
def test_a_model_with_nodes_on_level_0_is_refused(body: str, says: str) -> None:
    """The node is named, and what to do instead."""
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[A,B] y) {{ {body} }}'
    with pytest.raises(ModelError) as refusal:
        plans.build(model(text), [{"x": (F32, (2, 3))}])

    assert "cannot become a plan" in refusal.value.cause
    assert says in str(refusal.value.where) or "contents" in refusal.value.cause
    assert "engine:1" in str(refusal.value.next_step)


def test_outputs_that_nothing_computes(tmp_path: Path) -> None:
    """An input handed through, a constant, one value under two names."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2,3] x, float[4] unused) => (float[2,3] same, float[2] k, float[2,3] y, float[2,3] z)
    {
        same = Identity (x)
        k = Constant <value_floats = [1.5, 2.5]> ()
        y = Exp (x)
        z = Identity (y)
    }"""
    types = {"x": (F32, (2, 3)), "unused": (F32, (4,))}
    plan = plans.build(model(text), [types])
    plan.save(tmp_path / "m.plan")
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    given = {"x": x, "unused": np.zeros(4, np.float32)}
    found = Plan.load(tmp_path / "m.plan").run(given)

    assert_close(found, Interpreter(model(text)).run(given))
    assert found["same"] is not x


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"toolchain": "llvm 9"}, "made by llvm 9"),
        ({"features": "+avx1024,+sse2", "cpu": "later"}, "made for later"),
    ],
)
def test_a_part_for_another_machine_is_left_aside(tmp_path: Path, change: dict[str, str], says: str) -> None:
    """With one line that says why; the program is prepared anew and computes the same."""
    plan = built()
    plan.parts = [replace(plan.parts[0], **change)]
    plan.save(tmp_path / "m.plan")
    loaded = Plan.load(tmp_path / "m.plan")

    assert_close(loaded.run(feeds()), Interpreter(net()).run(feeds()))
    (note,) = loaded.notes
    assert says in note
    assert "\n" not in note


def test_without_llvmlite_numpy_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The portable part is all that it takes."""
    from graphdoc.engine.device import cpu
    from graphdoc.engine.device.llvm import compiler

    def missing() -> Any:
        raise ImportError("no llvmlite here")

    built().save(tmp_path / "m.plan")
    monkeypatch.setattr(compiler, "host_target", missing)
    monkeypatch.setattr(cpu, "host_target", missing)
    loaded = Plan.load(tmp_path / "m.plan")

    assert_close(loaded.run(feeds()), Interpreter(net()).run(feeds()))
    assert "llvmlite does not load" in loaded.notes[0]


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the bytes of a plan with a part."""
    path = tmp_path_factory.mktemp("plan") / "m.plan"
    built().save(path)
    return path.read_bytes()


class TestDamage:
    """No file but a whole one is taken."""

    def refused(self, path: Path, content: bytes) -> str:
        """Write the bytes, load them, and return the refusal's cause."""
        path.write_bytes(content)
        with pytest.raises(GraphdocError) as refusal:
            Plan.load(path)
        return refusal.value.cause

    def test_flipped_bits(self, tmp_path: Path, content: bytes) -> None:
        """Seven hundred places; every bit of the head among them."""
        rng = np.random.default_rng(0)
        places = [*range(64 * 8), *rng.integers(0, len(content) * 8, 200).tolist()]
        for place in places:
            damaged = bytearray(content)
            damaged[place // 8] ^= 1 << place % 8
            assert self.refused(tmp_path / "m.plan", bytes(damaged))

    def test_cut_and_grown(self, tmp_path: Path, content: bytes) -> None:
        """Three hundred lengths."""
        rng = np.random.default_rng(1)
        for length in [*range(70), *rng.integers(0, len(content), 200).tolist(), len(content) - 1]:
            assert self.refused(tmp_path / "m.plan", content[:length])
        for more in (b"\0", bytes(64), content):
            assert self.refused(tmp_path / "m.plan", content + more)

    def test_other_files(self, tmp_path: Path) -> None:
        """A model, a text, a folder, nothing."""
        assert "no plan" in self.refused(tmp_path / "m.onnx", bytes(100))
        assert "cut short" in self.refused(tmp_path / "m", b"GDPLAN\r\n")
        for path in (tmp_path, tmp_path / "absent"):
            with pytest.raises(ModelError, match="cannot read the plan"):
                Plan.load(path)
            assert not is_plan(path)

    @pytest.mark.parametrize("seed", range(120))
    def test_wrong_tables_with_a_right_checksum(self, tmp_path: Path, seed: int) -> None:
        """One number of the text changed: refused, or read as a program of views within their buffers."""
        from graphdoc.engine.plan_file import packed, read

        path = tmp_path / "m.plan"
        built(compiled=seed % 2 == 0).save(path)
        content, blobs = read(path)
        content.pop("blobs")
        rng = np.random.default_rng(seed)
        _change(content["tables"] if seed % 3 else content["entries"][0]["program"], rng)
        path.write_bytes(b"".join(bytes(part) for part in packed(content, blobs)))
        try:
            loaded = Plan.load(path)
        except GraphdocError:
            return
        for step in loaded.entries[0].program.steps:
            for view in (*step.inputs, *step.outputs):
                low, high = view.extent
                assert 0 <= low <= high <= view.buffer.size


def _change(node: Any, rng: np.random.Generator) -> None:
    """Change one number, text or length, somewhere."""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = keys[rng.integers(len(keys))]
        if isinstance(node[key], dict | list) and node[key]:
            node = node[key]
            continue
        odd = [-1, 0, 1, 7, 10**9, -(2**70), "relu", None, [], {}, 1.5, True]
        node[key] = odd[rng.integers(len(odd))]
        return


class TestRefit:
    """Other weights in the same program."""

    def plan(self, seed: int = 0, text: str = NET) -> Plan:
        """Return a plan that knows its weights."""
        return plans.build(net(text, seed), [{"x": (F32, (2, 3, 8, 8))}], refit=True)

    def weights(self, seed: int, names: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arrays of a network with other weights."""
        found = net(seed=seed).graph.initializers
        return {name: found[name].const_value.numpy() for name in names}  # type: ignore[union-attr]

    def test_new_weights_give_what_a_new_build_gives(self, tmp_path: Path) -> None:
        """Bit for bit; saved, loaded, and the plan itself as it was."""
        plan = self.plan()
        plan.save(tmp_path / "m.plan")
        loaded = Plan.load(tmp_path / "m.plan")
        before = loaded.run(feeds())["y"].tobytes()
        arrays = self.weights(7, loaded.weights)
        found, expected = loaded.refit(arrays).run(feeds()), self.plan(7).run(feeds())

        assert set(plan.weights) == {"w", "b", "m"}
        assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)
        assert loaded.run(feeds())["y"].tobytes() == before

    def test_what_was_made_of_weights_is_made_anew(self) -> None:
        """Panels, Winograd's tiles, programs for shapes between: bits of a build with the new weights."""
        text = """<ir_version: 8, opset_import: ["" : 17]>
        net (float[N,32,24,24] x) => (float[N,5] y)
        <float[48,32,3,3] w, float[48] b, float[48,5] m>
        {
            c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
            g = GlobalAveragePool (c)
            f = Flatten (g)
            y = MatMul (f, m)
        }"""
        choices = [{"x": (F32, (n, 32, 24, 24))} for n in (1, 3)]
        old, new = (plans.build(net(text, seed), choices, refit=True) for seed in (0, 7))
        kinds = {type(step.spec).__name__ for step in old.parts[0].entries[0].program.steps}
        packed = [getattr(s.spec, "packed", 0) for s in old.parts[0].entries[0].program.steps]
        names = net(text, 7).graph.initializers
        arrays = {name: names[name].const_value.numpy() for name in old.weights}  # type: ignore[union-attr]
        refitted = old.refit(arrays)

        assert "Winograd" in kinds
        assert sum(width > 1 for width in packed) >= 2
        assert set(arrays) == {"w", "b", "m"}
        for n in (1, 2, 3):
            given = feeds((n, 32, 24, 24))
            assert refitted.run(given)["y"].tobytes() == new.run(given)["y"].tobytes()
            assert refitted.run(given)["y"].tobytes() != old.run(given)["y"].tobytes()

    def test_a_weight_that_was_computed_with_cannot_be_exchanged(self) -> None:
        """Here its square is folded, in one place of two; the others can be."""
        text = NET.replace(
            "y = Softmax (z)",
            "mm = Mul (m, m)\n s = ReduceSum <keepdims = 0> (mm)\n zs = Mul (z, s)\n y = Softmax (zs)",
        )
        plan = self.plan(text=text)

        assert set(plan.weights) == {"w", "b"}
        with pytest.raises(InputError, match="'m' is no weight"):
            plan.refit({"m": np.zeros((4, 5), np.float32)})

    def test_what_does_not_fit_is_refused(self) -> None:
        """Names, sizes, dtypes."""
        plan = self.plan()
        for name, array in (
            ("nobody", np.zeros(3, np.float32)),
            ("b", np.zeros(5, np.float32)),
            ("b", np.zeros(4, np.float64)),
        ):
            with pytest.raises(InputError, match=f"'{name}' is"):
                plan.refit({name: array})


def test_a_pipe_is_no_plan(tmp_path: Path) -> None:
    """Nobody waits for someone to write into it; a folder, and a name no file can have, are none either."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    assert not is_plan(pipe)
    assert not is_plan(tmp_path)
    assert not is_plan("a\0b")
