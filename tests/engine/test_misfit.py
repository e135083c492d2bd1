"""What is said of inputs that do not fit: in terms of the operator, whatever the array library says."""

import zlib
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from graphdoc.engine.errors import RunnerError
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.level1 import Compiled
from graphdoc.engine.misfit import SIGNATURES, VAGUE
from tests.engine import bad_inputs, suite
from tests.engine.single import engine, model


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


def gru(batch: int, **attributes: Any) -> Any:
    """Return a GRU over a batch of 2 whose state is one of ``batch``."""
    return model(
        "GRU",
        zeros(3, 2, 4),
        zeros(1, 9, 4),
        zeros(1, 9, 3),
        None,
        None,
        zeros(1, batch, 3),
        hidden_size=3,
        outputs=2,
        opset=14,
        **attributes,
    )


CASES: list[tuple[str, Any, str]] = [
    ("state", gru(1), "initial_h has shape 1×1×3; expected 1×2×3 (D, B, H), D = 1 from W, B = 2 from X"),
    ("broadcast", model("Add", zeros(2, 3), zeros(2, 4)), "A 2×3 and B 2×4 do not broadcast: sizes 3 and 4"),
    (
        "dtype",
        model("Add", zeros(2), zeros(2, dtype=np.int64)),
        "B is int64 and A float32; both must have one",
    ),
    ("product", model("MatMul", zeros(2, 3), zeros(4, 5)), "A 2×3 and B 4×5: 3 columns meet 4 rows"),
    ("stacks", model("MatMul", zeros(2, 3, 4), zeros(5, 4, 6)), "the stacks of A 2 and B 5 do not broadcast"),
    (
        "addend",
        model("Gemm", zeros(2, 3), zeros(4, 3), zeros(5), transB=1),
        "C has shape 5, which does not broadcast to 2×4",
    ),
    (
        "turned",
        model("Gemm", zeros(2, 3), zeros(3, 4), transA=1),
        "A gives 2 columns and B 3 rows, transposed as the node asks",
    ),
    (
        "concat",
        model("Concat", zeros(2, 3), zeros(2, 4), axis=0),
        "inputs 1 has shape 2×4 and inputs 2×3; they may differ on axis 0 alone",
    ),
    ("axis", model("Concat", zeros(2), zeros(2), axis=3), "axis 3 does not fit inputs of shape 2"),
    (
        "index",
        model("Gather", zeros(3), np.array([5, 0])),
        "indices hold 5, out of bounds: axis 0 of data has 3 entries",
    ),
    (
        "indices",
        model("GatherND", zeros(3, 4), np.array([[2, 7]])),
        "indices hold 7, out of bounds: axis 1 of data has 4 entries",
    ),
    (
        "reshape",
        model("Reshape", zeros(2, 3), np.array([4, 2])),
        "6 elements, which shape [4, 2] cannot hold",
    ),
    ("expand", model("Expand", zeros(2, 3), np.array([2, 4])), "do not broadcast: sizes 3 and 4 on axis -1"),
    (
        "scale",
        model("LayerNormalization", zeros(2, 3), zeros(4)),
        "X 2×3 and Scale 4 do not broadcast: sizes 3 and 4",
    ),
    (
        "channels",
        model("BatchNormalization", zeros(1, 3, 2), *(zeros(4) for _ in range(4)), opset=15),
        "shape [4] does not hold one number for each of 3 channels",
    ),
    ("nothing", model("GlobalMaxPool", zeros(1, 3, 0)), "X is empty, its shape 1×3×0"),
    ("negative", model("ConstantOfShape", np.array([2, -3])), "input holds -3; sizes are not negative"),
    (
        "heads",
        model("Attention", zeros(1, 2, 4, 8), zeros(1, 2, 6, 9), zeros(1, 2, 6, 8), opset=23),
        "K has shape",
    ),
    ("one", model("Range", zeros(2), zeros(), zeros()), "start has shape 2; one element is expected"),
]


@pytest.mark.parametrize(("proto", "text"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_input_at_fault_is_named(proto: Any, text: str) -> None:
    """With what was expected of it; the line below lists all inputs by the specification's names."""
    with pytest.raises(RunnerError) as caught:
        engine(*proto)

    assert text in caught.value.cause
    assert str(caught.value.where).startswith("inputs ")


@pytest.mark.parametrize("shape", [(1,), (1, 3), ()])
def test_numbers_per_channel_do_not_stretch(shape: tuple[int, ...]) -> None:
    """NumPy would broadcast them; ONNX wants one per channel, as ONNX Runtime does."""
    x, rest = zeros(1, 3, 2), [zeros(3)] * 3

    for proto in (
        model("BatchNormalization", x, zeros(*shape), *rest, opset=15),
        model("InstanceNormalization", x, zeros(*shape), zeros(3)),
        model("Conv", x, zeros(3, 3, 1), zeros(*shape)),
    ):
        with pytest.raises(RunnerError, match="does not hold one number for each of 3 channels"):
            engine(*proto)


def test_states_that_fit_run() -> None:
    """The same GRU, rightly fed, on both levels, in both layouts."""
    proto, feeds = gru(2)

    for runner in (Interpreter(ir.from_proto(proto)), Compiled(ir.from_proto(proto))):
        assert runner.run(feeds)["y0"].shape == (3, 1, 2, 3)


def test_level_1_says_the_same_of_a_state() -> None:
    """A state for another batch is refused there too: nothing reads past it."""
    proto, feeds = gru(1)

    with pytest.raises(RunnerError, match="initial_h has shape 1×1×3; expected 1×2×3"):
        Compiled(ir.from_proto(proto)).run(feeds)


def test_what_an_operator_says_itself_stays() -> None:
    """Its own words know more than letters do."""
    with pytest.raises(RunnerError, match="Tile needs 2 repeats, not 1"):
        engine(*model("Tile", zeros(2, 3), np.array([2])))


def test_a_dtype_is_told_of_the_first_run_alone() -> None:
    """Types hold for a whole model: later runs do not look again, and a good first run does not refuse."""
    proto, feeds = model("Add", zeros(2), zeros(2))
    runner = Interpreter(ir.from_proto(proto))

    assert runner.run(feeds)["y0"].dtype == np.float32
    assert runner.run(feeds)["y0"].dtype == np.float32


DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview.training")


def test_every_signature_belongs_to_an_operator() -> None:
    """Names of inputs come from the schema; the letters stand in its order."""
    for name, signature in SIGNATURES.items():
        domain = next(each for each in DOMAINS if onnx.defs.has(name, domain=each))
        formal = onnx.defs.get_schema(name, 99, domain).inputs
        count = len(signature.split("; "))
        assert count <= len(formal) or (len(formal) and formal[-1].option.name == "Variadic"), name


SHARE = 60
"""Of the spoiled cases one in so many runs here; tests/engine/bad_inputs.py runs all."""


def test_no_array_library_speaks() -> None:
    """Official cases with one input spoiled: whatever is wrong is said in the operator's terms."""
    spoiled = [
        each for case in suite.load() if len(case.model.graph.node) == 1 for each in bad_inputs.spoiled(case)
    ]
    some = [each for each in spoiled if zlib.crc32(f"{each.op}{each.name}{each.how}".encode()) % SHARE == 0]

    texts = [bad_inputs.told(each) for each in some]

    assert len(some) > 100
    assert [text for text in texts if bad_inputs.raw(text)] == []
    assert sum(VAGUE in text for text in texts) < 0.15 * sum(map(bool, texts))


def test_raw_words_are_known() -> None:
    """The pattern sees what NumPy says, and not what is said here."""
    with pytest.raises(ValueError) as caught:
        np.add(zeros(2, 3), zeros(4, 5))

    assert bad_inputs.raw(str(caught.value))
    assert not any(bad_inputs.raw(text) for _, _, text in CASES)


def test_a_functions_node_keeps_its_name() -> None:
    """A failing node inside a body is named with the way to it."""
    body = helper.make_function(
        "own",
        "F",
        ["a", "b"],
        ["c"],
        [helper.make_node("Add", ["a", "b"], ["c"])],
        [helper.make_opsetid("", 18)],
    )
    infos = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in "xy"]
    graph = helper.make_graph(
        [helper.make_node("F", ["x", "y"], ["z"], domain="own")], "g", infos, [onnx.ValueInfoProto(name="z")]
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    proto = helper.make_model(graph, opset_imports=imports, functions=[body], ir_version=9)

    with pytest.raises(RunnerError, match=r"A 2 and B 3 do not broadcast: sizes 2 and 3 on axis -1"):
        Interpreter(ir.from_proto(proto)).run({"x": zeros(2), "y": zeros(3)})
