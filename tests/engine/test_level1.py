"""Level 1: programs and host nodes, stages behind what only a run can tell, taps, given values, errors."""

import threading
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphdoc.engine import level1
from graphdoc.engine.device.numpy import NumpyDevice
from graphdoc.engine.errors import InputError, RunnerError, UnsupportedOperatorError
from graphdoc.engine.fuse import fuse
from graphdoc.engine.interpreter import Interpreter, Watch
from graphdoc.engine.level1 import Compiled, compiled
from graphdoc.engine.parts import HostNode, Segment
from graphdoc.engine.program import Kind
from graphdoc.engine.scope import Occurrences
from tests.engine.lowered import assert_same, hosts, segments, specs

F = np.float32


def parse(text: str) -> ir.Model:
    """Return a model from ONNX text without its header."""
    header = '<ir_version: 10, opset_import: ["" : 21, "odd" : 1]>\n'
    return ir.from_proto(onnx.parser.parse_model(header + text))


def both(model: ir.Model, feeds: dict[str, Any], taps: list[str] | None = None) -> Compiled:
    """Assert that level 1, as it is and fused, gives what level 0 gives; return the plain one."""
    want = Interpreter(model).run(feeds, taps or [])
    plain = Compiled(model)
    for runs in (plain, Compiled(model, passes=(fuse,))):
        found = runs.run(feeds, taps or [])
        assert list(found) == list(want)
        for name, value in want.items():
            if isinstance(value, Occurrences):
                assert isinstance(found[name], Occurrences)
                assert len(found[name]) == len(value)
                for ours, theirs in zip(found[name], value, strict=True):
                    assert_same(ours, theirs)
            else:
                assert_same(found[name], value)
    return plain


def noise(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


CHAIN = """
chain (float[N, 4] x) => (float[N, 4] z) <float[4] w = {1, 2, 3, 4}> {
    a = Mul (x, w)
    b = Relu (a)
    z = Add (b, x)
}
"""

# ---- parts --------------------------------------------------------------------------------------------


def test_a_graph_of_known_shapes_is_one_program() -> None:
    runs = both(parse(CHAIN), {"x": noise(3, 4)})

    assert len(segments(runs)) == 1
    assert hosts(runs) == []


def test_shapes_are_folded() -> None:
    """What follows from shapes alone is no step."""
    runs = both(
        parse("""
        g (float[N, 4, 6] x) => (float[A, B] y)
        <int64[1] two = {2}, int64[1] zero = {0}, int64[1] one = {1}> {
            s = Shape (x)
            n = Slice (s, zero, one)
            rest = Slice (s, one, two)
            m = Mul (n, rest)
            six = Constant <value_ints: ints = [6]> ()
            t = Concat <axis: int = 0> (m, six)
            y = Reshape (x, t)
        }
        """),
        {"x": noise(3, 4, 6)},
    )

    assert specs(runs) == ["Map"]


def test_host_nodes_stand_between_few_programs() -> None:
    """Two chains with a host node each: a program before both, one after both."""
    runs = both(
        parse("""
        g (float[4] x) => (float[4] y) {
            a = Neg (x)
            b = Exp (x)
            c = Acosh (a)
            d = Asinh (b)
            e = Abs (c)
            f = Abs (d)
            y = Add (e, f)
        }
        """),
        {"x": noise(4)},
    )

    assert sorted(hosts(runs)) == ["Acosh", "Asinh"]
    assert [len(s.program.steps) for s in segments(runs)] == [4, 4]


def test_strings_and_sequences_run_on_level_0() -> None:
    runs = both(
        parse("""
        g (string[2] t, float[2] x) => (string[2] u, float[2] z) {
            u = Identity (t)
            a = Neg (x)
            s = SequenceConstruct (a, x)
            k = Constant <value_int: int = 0> ()
            b = SequenceAt (s, k)
            z = Neg (b)
        }
        """),
        {"t": np.array(["a", "b"], dtype=object), "x": noise(2)},
    )

    assert sorted(hosts(runs)) == ["Identity", "SequenceAt", "SequenceConstruct"]


def test_outputs_that_are_inputs_constants_or_listed_twice() -> None:
    runs = both(
        parse("""
        g (float[2] x) => (float[2] x, float[2] w, float[2] y, float[2] q) <float[2] w = {1, 2}> {
            y = Neg (x)
            q = Identity (y)
        }
        """),
        {"x": noise(2)},
    )
    first = runs.run({"x": noise(2)})

    assert first["y"] is not first["q"] or first["y"].flags.writeable


def test_an_initializer_can_be_overridden() -> None:
    """An input with a default is no constant when it is fed."""
    model = parse("g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Mul (x, w) }")

    both(model, {"x": noise(2), "w": noise(2, seed=1)})
    both(model, {"x": noise(2)})


def test_omitted_inputs_and_unused_outputs() -> None:
    both(
        parse("""
        g (float[4] x) => (float[4] y, float[2] p) <float hi = {0.5}, int64[2] sizes = {2, 2}> {
            y = Clip (x, , hi)
            p, q = Split (y, sizes)
        }
        """),
        {"x": noise(4)},
    )


def test_random_numbers_are_drawn_in_order() -> None:
    """Also where one has to wait for a shape."""
    model = parse("""
    g (float[4] x) => (float[N, M] a, float[4] b) {
        nz = NonZero (x)
        f = Cast <to: int = 1> (nz)
        a = RandomNormalLike (f)
        b = RandomNormalLike (x)
    }
    """)
    want, found = (runs(model, seed=5).run({"x": F([1, 0, 2, 3])}) for runs in (Interpreter, Compiled))

    assert_same(found["a"], want["a"])
    assert_same(found["b"], want["b"])


def test_functions_of_the_model_are_inlined() -> None:
    model = parse("""
    g (float[3] x) => (float[3] y) { a = odd.twice <scale: float = 3.0> (x) y = odd.twice (a) }
    <domain: "odd", opset_import: ["" : 21]>
    twice <scale: float = 2.0> (v) => (w) {
        s = Constant <value_float: float = @scale> ()
        w = Mul (v, s)
    }
    """)

    runs = both(model, {"x": noise(3)}, ["a"])

    assert hosts(runs) == []


# ---- stages -------------------------------------------------------------------------------------------

NONZERO = """
g (float[N] x) => (float[M] y, float[N] z) {
    i = NonZero (x)
    zero = Constant <value_ints: ints = [0]> ()
    j = Squeeze (i, zero)
    v = Gather (x, j)
    e = Exp (v)
    n = Shape (e)
    k = Cast <to: int = 1> (n)
    y = Mul (e, k)
    z = Neg (x)
}
"""


def test_what_only_a_run_can_tell_begins_a_stage() -> None:
    """Kept by the shape found; what does not wait for it is in the first stage."""
    model, runs = parse(NONZERO), Compiled(parse(NONZERO))
    for x in ([1, 0, 2], [0, 3, 0], [4, 0, 5], [0, 0, 0]):
        want, found = Interpreter(model).run({"x": F(x)}), runs.run({"x": F(x)})
        assert_same(found["y"], want["y"])
        assert_same(found["z"], want["z"])
    first, *rest = runs.stages()

    assert len(rest) == 3
    assert "z" in next(p for p in first.parts if isinstance(p, Segment)).program.outputs


CHOICE = """
g (float[3] x, bool c) => (float[3] y) <float[3] w = {1, 2, 3}> {
    a = Neg (x)
    b = If (c) <
        then_branch = t () => (float[3] r) { s = Mul (a, w) r = Exp (s) },
        else_branch = e () => (float[3] r) { r = Identity (a) }
    >
    y = Add (b, a)
}
"""


@pytest.mark.parametrize("chosen", [True, False])
def test_the_branch_taken_joins_the_program(chosen: bool) -> None:
    runs = both(parse(CHOICE), {"x": noise(3), "c": np.array(chosen)}, ["a", "b.then_branch/s"])

    assert len(runs.stages()) == 2
    assert hosts(runs) == []


def test_a_constant_condition_needs_no_stage() -> None:
    runs = both(
        parse("""
        g (float[N] x) => (float[N] y) <int64[1] three = {3}> {
            s = Shape (x)
            c = Equal (s, three)
            y = If (c) <
                then_branch = t () => (float[3] r) { r = Neg (x) },
                else_branch = e () => (float[N] r) { r = Exp (x) }
            >
        }
        """),
        {"x": noise(3)},
    )

    assert len(runs.stages()) == 1
    assert len(segments(runs)) == 1


LOOP = """
g (float[2] x, int64 n) => (float[2] y, float[K, 2] all) <float[2] w = {1.5, 0.5}> {
    y, all = Loop (n, , x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] u, float[2] o) {
        d = Identity (c)
        m = Mul (v, w)
        u = Add (m, x)
        o = Neg (u)
    }>
}
"""


def test_bodies_of_loops_are_compiled_and_tapped() -> None:
    runs = both(parse(LOOP), {"x": noise(2), "n": np.array(3)}, ["y.body/m", "y.body/v", "y.body/i"])
    (body,) = runs.graph.inner.values()

    assert hosts(runs) == ["Loop"]
    assert len(body.stages) == 1
    assert_same(runs.run({"x": noise(2), "n": np.array(0)})["all"], np.zeros((0, 2), F))


def test_scans_and_loops_in_loops() -> None:
    both(
        parse("""
        g (float[3, 2] x, int64 n) => (float[2] y, float[3, 2] s) <float[2] zero = {0, 0}> {
            f, s = Scan <num_scan_inputs: int = 1,
                         body = b (float[2] a, float[2] e) => (float[2] r, float[2] o) {
                r = Add (a, e)
                o = Relu (r)
            }> (zero, x)
            y = Loop (n, , f) <body = c (int64 i, bool k, float[2] v) => (bool l, float[2] u) {
                l = Identity (k)
                t = Loop (n, , v) <body = d (int64 j, bool p, float[2] q) => (bool m, float[2] z) {
                    m = Identity (p)
                    z = Add (q, f)
                }>
                u = Sub (t, v)
            }>
        }
        """),
        {"x": noise(3, 2), "n": np.array(2)},
    )


# ---- specialisations ----------------------------------------------------------------------------------


def test_shapes_seen_again_are_not_made_again() -> None:
    runs = Compiled(parse(CHAIN))
    for rows in (1, 2, 1, 2):
        runs.run({"x": noise(rows, 4)})

    assert len(runs.stages()) == 2


def test_many_shapes_run_on_level_0_first() -> None:
    """A shape that comes once is not worth a program; one that comes again gets it. Few are kept."""
    runs = Compiled(parse(CHAIN))
    for rows in range(1, 100):
        assert_same(
            runs.run({"x": noise(rows, 4)}, ["b"])["b"], np.maximum(noise(rows, 4) * F([1, 2, 3, 4]), 0)
        )
    many = len(runs.stages())
    runs.run({"x": noise(99, 4)}, ["b"])

    assert many == level1._MANY
    assert len(runs.stages()) == many + 1


def test_weights_are_shared_by_all_shapes() -> None:
    """What follows from weights alone is computed once, and lies in one buffer."""
    model = parse("""
    g (float[N, 2] x) => (float[N, 3] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
        d = Add (w, w)
        t = Transpose (d)
        y = MatMul (x, t)
    }
    """)
    runs = Compiled(model)
    for rows in (1, 2):
        runs.run({"x": noise(rows, 2)})
    constants = [
        {v.buffer for step in s.program.steps for v in step.inputs if v.buffer.kind is Kind.CONSTANT}
        for s in segments(runs)
    ]

    assert len(constants) == 2
    assert constants[0] == constants[1]


def test_threads_share_a_model() -> None:
    model = parse(NONZERO)
    runs, wrong = Compiled(model), []
    feeds = [F([1, 0, 2]), F([0, 3, 0]), F([1, 1, 1, 0])]
    want = [Interpreter(model).run({"x": x})["y"] for x in feeds]

    def work(k: int) -> None:
        for turn in range(20):
            x, y = feeds[(k + turn) % 3], want[(k + turn) % 3]
            if not np.array_equal(runs.run({"x": x})["y"], y):
                wrong.append(turn)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


# ---- taps and given values ----------------------------------------------------------------------------


def test_every_inner_value_can_be_asked_for() -> None:
    """Also those that fusion would do away with."""
    both(parse(CHAIN), {"x": noise(2, 4)}, ["a", "b", "z"])
    fused = Compiled(parse(CHAIN), passes=(fuse,))
    fused.run({"x": noise(2, 4)})

    assert len(specs(fused)) == 1


def test_layers_run_on_given_values() -> None:
    """Each value is computed from those given, and still returned as it was computed."""
    model, x = parse(CHAIN), noise(2, 4)
    given = {"a": noise(2, 4, seed=1), "b": noise(2, 4, seed=2)}
    want = Interpreter(model).run({"x": x}, watch=Watch(taps=frozenset("ab"), given=given))

    found = Compiled(model, passes=(fuse,)).run({"x": x}, "ab", given=given)

    for name in ("a", "b", "z"):
        assert_same(found[name], want[name])
    assert not np.array_equal(found["b"], Interpreter(model).run({"x": x}, "b")["b"])


# ---- errors -------------------------------------------------------------------------------------------


def test_a_failing_node_is_named_as_on_level_0() -> None:
    model = parse("g (float[2] x, int64[1] s) => (float[A] y) { [wrong] y = Reshape (x, s) }")
    feeds = {"x": noise(2), "s": np.array([3])}
    texts = []
    for runs in (Interpreter(model), Compiled(model)):
        with pytest.raises(RunnerError) as caught:
            runs.run(feeds)
        texts.append(str(caught.value))

    assert texts[0] == texts[1]
    assert "Reshape 'wrong'" in texts[0]


def test_shapes_that_do_not_fit_are_named() -> None:
    model = parse("g (float[N] x, float[M] y) => (float[K] z) { [odd_one] z = Add (x, y) }")

    with pytest.raises(RunnerError, match="Add 'odd_one'"):
        Compiled(model).run({"x": noise(2), "y": noise(3)})


def test_an_index_outside_its_axis_is_named() -> None:
    model = parse("g (float[3] x, int64[2] i) => (float[2] z) { [pick] z = Gather (x, i) }")

    with pytest.raises(RunnerError, match=r"pick.*outside its axis of 3"):
        Compiled(model).run({"x": noise(3), "i": np.array([0, 7])})


def test_an_unknown_operator_is_refused_at_once() -> None:
    with pytest.raises(UnsupportedOperatorError, match="odd::Foo"):
        Compiled(parse("g (float[3] x) => (float[3] z) { z = odd.Foo (x) }"))


def test_refusals_are_told() -> None:
    """Why a node runs on the host stands in the notes of its stage."""
    model = parse("g (int32[3] x) => (int32[3] z) { [p] z = Pow (x, x) }")
    runs = Compiled(model)
    runs.run({"x": np.int32([1, 2, 3])})

    assert runs.stages()[0].notes == {"p": "integers to a power that is not 2 or 3"}


# ---- devices ------------------------------------------------------------------------------------------


def test_machine_code_is_used_where_it_can_be() -> None:
    runs = compiled(parse(CHAIN), threads=1)

    assert_same(runs.run({"x": noise(2, 4)})["z"], Interpreter(parse(CHAIN)).run({"x": noise(2, 4)})["z"])
    assert runs.device.name in ("cpu", "numpy")


def test_without_llvm_numpy_runs_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "graphdoc.engine.device.cpu", None)

    runs = compiled(parse(CHAIN))

    assert isinstance(runs.device, NumpyDevice)
    assert_same(runs.run({"x": noise(2, 4)})["z"], Interpreter(parse(CHAIN)).run({"x": noise(2, 4)})["z"])


def test_the_numpy_device_keeps_only_what_is_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of ten steps holds no more than two of its values at a time."""
    nodes = "\n".join(f"v{k + 1} = Neg (v{k})" for k in range(10))
    runs = Compiled(parse(f"g (float[1000] v0) => (float[1000] v10) {{ {nodes} }}"))
    runs.run({"v0": noise(1000)})
    (segment,) = segments(runs)
    frees = segment.executable.frees

    assert [len(f) for f in frees] == [0] + [1] * 10


@pytest.mark.parametrize("wrong", [noise(3, 5), noise(3, 4).astype(np.float64)], ids=["shape", "dtype"])
def test_a_program_takes_only_what_it_was_made_for(wrong: Any) -> None:
    """Strides of another array would reach outside its memory."""
    runs = Compiled(parse(CHAIN))
    runs.run({"x": noise(3, 4)})
    (segment,) = segments(runs)

    with pytest.raises(InputError, match=r"'x' is float32\[3, 4\] in the program, not float"):
        segment.executable.run([wrong])


def test_parts_know_what_they_let_go() -> None:
    runs = Compiled(parse(NONZERO))
    runs.run({"x": F([1, 0, 2])})
    stage = runs.stages()[0]

    assert any(isinstance(p, HostNode) for p in stage.parts)
    assert {key for frees in stage.frees for key in frees}.isdisjoint({"x", "i"})
