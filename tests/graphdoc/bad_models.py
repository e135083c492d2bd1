"""Files that are no sound models: how each is made, and the words by which it must be named."""

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper

from tests.surgeon import build

Make = Callable[[], onnx.ModelProto]


@dataclass(frozen=True)
class Bad:
    """One kind of bad file: its bytes, and what the message must say."""

    name: str
    make: Callable[[], bytes]
    words: str


CASES: list[Bad] = []


def bytes_of(name: str, words: str) -> Callable[[Callable[[], bytes]], Callable[[], bytes]]:
    """Register a function that returns the bytes of a bad file."""

    def register(make: Callable[[], bytes]) -> Callable[[], bytes]:
        CASES.append(Bad(name, make, words))
        return make

    return register


def proto_of(
    name: str, words: str
) -> Callable[[Callable[[], onnx.ModelProto]], Callable[[], onnx.ModelProto]]:
    """Register a function that returns a bad model."""

    def register(make: Make) -> Make:
        CASES.append(Bad(name, lambda: make().SerializeToString(), words))
        return make

    return register


def _plain(name: str, content: bytes, words: str) -> None:
    CASES.append(Bad(name, lambda: content, words))


# Not ONNX at all

_plain("empty", b"", "the file is empty")
_plain("text", b"hello, this is not a model\n" * 20, "it is a text file")
_plain("html", b"\n<!DOCTYPE html><html><body>404</body></html>", "it is an HTML page")
_plain("html without doctype", b"<html><head></head></html>", "it is an HTML page")
_plain("xml", b'<?xml version="1.0"?><net name="a"/>', "it is an XML file")
_plain("json", b'{"ir_version": 8, "graph": {}}', "it is JSON")
_plain("json list", b'  [{"error": "no"}]', "it is JSON")
_plain("script", b"#!/bin/sh\nexit 1\n", "it is a script")
_plain("latin text", "Ceci n’est pas un modèle, évidemment\n".encode() * 30, "it is a text file")
_plain(
    "git-lfs pointer",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:00ff\nsize 12\n",
    "it is a git-lfs pointer",
)
_plain("pickle", b"\x80\x02}q\x00.", "it is a Python pickle")
_plain("hdf5", b"\x89HDF\r\n\x1a\n" + bytes(64), "it is an HDF5 file")
_plain("tflite", b"\x1c\0\0\0TFL3" + bytes(64), "it is a TensorFlow Lite model")
_plain("ort format", b"\x1c\0\0\0ORTM" + bytes(64), "it is a model in ONNX Runtime's own format")
_plain("gguf", b"GGUF" + bytes(64), "it is a GGUF file")
_plain(
    "safetensors", b"\x40\0\0\0\0\0\0\0" + b'{"w":{"dtype":"F32"}}' + bytes(64), "it is a safetensors file"
)
_plain("numpy", b"\x93NUMPY\x01\x00" + bytes(64), "it is a NumPy array")
_plain("gzip", b"\x1f\x8b\x08" + bytes(64), "it is a gzip archive")
_plain("png", b"\x89PNG\r\n\x1a\n" + bytes(64), "it is a PNG image")
_plain("zeros", bytes(4096), "not an ONNX model")
_plain("noise", np.random.default_rng(0).bytes(4096), "not an ONNX model")
_plain("endless varint", b"\x08" + b"\xff" * 40, "not an ONNX model")
_plain("huge length", b"\x3a\xff\xff\xff\xff\x0f", "the file ends inside field 7 (graph)")
_plain("model text form", b'<ir_version: 8, opset_import: ["": 18]> g () => () {}', "it is ONNX in text form")
_plain("protobuf text form", b"ir_version: 8\ngraph {\n}\n", "it is ONNX in protobuf text form")


@bytes_of("zip", "it is a zip archive")
def _zip() -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", b"x")
    return buffer.getvalue()


@bytes_of("truncated", "the file ends inside field 7 (graph)")
def _truncated() -> bytes:
    return build.add(np.zeros(1000)).SerializeToString()[:500]


@bytes_of("damaged inside", "cannot be read")
def _damaged() -> bytes:
    whole = bytearray(build.add().SerializeToString())
    place = whole.index(b"Add") - 1
    whole[place] = 0x7F  # the length of op_type now passes the end of the node
    return bytes(whole)


@bytes_of("nested too deeply", "nested too deeply")
def _deep() -> bytes:
    def wrap(tag: int, content: bytes) -> bytes:
        size, length = len(content), b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        return bytes([tag]) + length + bytes([size]) + content

    inner = b""
    for _ in range(200):
        inner = wrap(0x0A, wrap(0x2A, wrap(0x32, inner)))  # graph.node ← node.attribute ← attribute.g
    return build.relu().SerializeToString() + wrap(0x3A, inner)


# Protobuf, but no model


@proto_of("no graph", "it has no graph")
def _no_graph() -> onnx.ModelProto:
    proto = build.relu()
    proto.ClearField("graph")
    return proto


@proto_of("empty graph", "the graph is empty")
def _empty_graph() -> onnx.ModelProto:
    proto = build.relu()
    proto.graph.Clear()
    return proto


@proto_of("no outputs", "the graph has no outputs")
def _no_outputs() -> onnx.ModelProto:
    proto = build.relu()
    del proto.graph.output[:]
    return proto


@proto_of("no opset", "no opset is imported")
def _no_opset() -> onnx.ModelProto:
    proto = build.relu()
    del proto.opset_import[:]
    return proto


@proto_of("future opset", "opset 9999 of ai.onnx is newer")
def _future_opset() -> onnx.ModelProto:
    proto = build.relu()
    proto.opset_import[0].version = 9999
    return proto


@proto_of("opset zero", "opset version 0 of ai.onnx does not exist")
def _opset_zero() -> onnx.ModelProto:
    proto = build.relu()
    proto.opset_import[0].version = 0
    return proto


@proto_of("future IR", "IR version 99 is newer")
def _future_ir() -> onnx.ModelProto:
    proto = build.relu()
    proto.ir_version = 99
    return proto


@proto_of("domain not imported", "the domain 'com.acme' is used, but no version of it is imported")
def _domain() -> onnx.ModelProto:
    return build.model([helper.make_node("Fused", ["x"], ["y"], domain="com.acme")])


# The graph


@proto_of("two producers", "'y' has two producers")
def _two_producers() -> onnx.ModelProto:
    return build.model([helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["y"])])


@proto_of("node makes an input", "'x' has two producers: an input or initializer")
def _makes_input() -> onnx.ModelProto:
    return build.model([helper.make_node("Relu", ["x"], ["x"]), helper.make_node("Abs", ["x"], ["y"])])


@proto_of("two inputs", "two inputs are named 'x'")
def _two_inputs() -> onnx.ModelProto:
    proto = build.relu()
    proto.graph.input.append(build.value("x"))
    return proto


@proto_of("input never produced", "'xx' is used but never produced; the nearest name is 'x'")
def _never() -> onnx.ModelProto:
    return build.model([helper.make_node("Relu", ["xx"], ["y"])])


@proto_of("output never produced", "output 'z' is never produced")
def _never_output() -> onnx.ModelProto:
    return build.model([helper.make_node("Relu", ["x"], ["y"])], outputs=[build.value("z")])


@proto_of("cycle", "the graph has a cycle")
def _cycle() -> onnx.ModelProto:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    return build.model([*nodes, helper.make_node("Abs", ["b"], ["y"])])


@proto_of("cycle of one", "the graph has a cycle")
def _cycle_of_one() -> onnx.ModelProto:
    return build.model([helper.make_node("Add", ["x", "y"], ["y"])])


@proto_of("cycle through a branch", "the graph has a cycle")
def _cycle_branch() -> onnx.ModelProto:
    body = helper.make_graph([helper.make_node("Relu", ["y"], ["a"])], "b", [], [build.value("a")])
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    return build.model([node], inputs=[build.value("x"), build.value("c", (), TensorProto.BOOL)])


@proto_of("function calls itself", "a function calls itself: own::F")
def _recursion() -> onnx.ModelProto:
    imports = [helper.make_opsetid("own", 1)]
    calls = {"F": "G", "G": "F"}
    functions = [
        helper.make_function(
            "own", a, ["p"], ["q"], [helper.make_node(b, ["p"], ["q"], domain="own")], imports
        )
        for a, b in calls.items()
    ]
    proto = build.model([helper.make_node("F", ["x"], ["y"], domain="own")], functions=functions)
    proto.opset_import.add(domain="own", version=1)
    return proto


@proto_of("two functions of a name", "two functions are named own::F")
def _two_functions() -> onnx.ModelProto:
    body = [helper.make_node("Relu", ["p"], ["q"])]
    function = helper.make_function("own", "F", ["p"], ["q"], body, [helper.make_opsetid("", 18)])
    proto = build.model([helper.make_node("F", ["x"], ["y"], domain="own")], functions=[function, function])
    proto.opset_import.add(domain="own", version=1)
    return proto


@proto_of("function output never produced", "output 'r' is never produced")
def _function_output() -> onnx.ModelProto:
    body = [helper.make_node("Relu", ["p"], ["q"])]
    function = helper.make_function("own", "F", ["p"], ["r"], body, [helper.make_opsetid("", 18)])
    proto = build.model([helper.make_node("F", ["x"], ["y"], domain="own")], functions=[function])
    proto.opset_import.add(domain="own", version=1)
    return proto


# Nodes


def _if(branches: int, outputs: int = 1) -> onnx.ModelProto:
    body = helper.make_graph([helper.make_node("Relu", ["x"], ["a"])], "b", [], [build.value("a")])
    names = ["then_branch", "else_branch"][:branches]
    node = helper.make_node("If", ["c"], ["y", "z"][:outputs], **dict.fromkeys(names, body))
    return build.model([node], inputs=[build.value("x"), build.value("c", (), TensorProto.BOOL)])


@proto_of("If without branches", "If lacks its attribute 'else_branch'")
def _no_branches() -> onnx.ModelProto:
    return _if(0)


@proto_of("If with one branch", "If lacks its attribute 'else_branch'")
def _one_branch() -> onnx.ModelProto:
    return _if(1)


@proto_of("branch gives too little", "_branch gives 1 values, the node has 2 outputs")
def _branch_outputs() -> onnx.ModelProto:
    return _if(2, outputs=2)


@proto_of("branch output never produced", "output 'b' is never produced")
def _inner_output() -> onnx.ModelProto:
    body = helper.make_graph([helper.make_node("Relu", ["x"], ["a"])], "b", [], [build.value("b")])
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    return build.model([node], inputs=[build.value("x"), build.value("c", (), TensorProto.BOOL)])


@proto_of("Loop without body", "Loop lacks its attribute 'body'")
def _no_body() -> onnx.ModelProto:
    return build.model([helper.make_node("Loop", ["", "", "x"], ["y"])])


@proto_of("Loop body takes too little", "the subgraph body takes 2 values, the node passes 3")
def _loop_inputs() -> onnx.ModelProto:
    inputs = [build.value("i", (), TensorProto.INT64), build.value("c", (), TensorProto.BOOL)]
    keep = helper.make_node("Identity", ["c"], ["d"])
    body = helper.make_graph([keep], "b", inputs, [build.value("d", (), TensorProto.BOOL)])
    return build.model([helper.make_node("Loop", ["", "", "x"], ["y"], body=body)])


@proto_of("too few inputs", "Add has 1 input, it takes 2")
def _few_inputs() -> onnx.ModelProto:
    return build.model([helper.make_node("Add", ["x"], ["y"])])


@proto_of("too many inputs", "Relu has 2 inputs, it takes 1")
def _many_inputs() -> onnx.ModelProto:
    return build.model([helper.make_node("Relu", ["x", "x"], ["y"])])


@proto_of("too many outputs", "Relu has 2 outputs, it takes 1")
def _many_outputs() -> onnx.ModelProto:
    return build.model([helper.make_node("Relu", ["x"], ["y", "z"])])


@proto_of("attribute missing", "Cast lacks its attribute 'to'")
def _no_attribute() -> onnx.ModelProto:
    return build.model([helper.make_node("Cast", ["x"], ["y"])])


@proto_of("attribute of another type", "attribute 'alpha' of LeakyRelu is STRING, not FLOAT")
def _wrong_type() -> onnx.ModelProto:
    return build.model([helper.make_node("LeakyRelu", ["x"], ["y"], alpha="much")])


@proto_of("attribute that is a graph", "attribute 'alpha' of LeakyRelu is GRAPH, not FLOAT")
def _graph_attribute() -> onnx.ModelProto:
    proto = build.model([helper.make_node("LeakyRelu", ["x"], ["y"])])
    proto.graph.node[0].attribute.add(name="alpha", type=AttributeProto.GRAPH)
    return proto


# Weights


def _weight(**fields: object) -> onnx.ModelProto:
    """Return y = x + w with w replaced."""
    proto = build.add()
    tensor = proto.graph.initializer[0]
    tensor.Clear()
    tensor.MergeFrom(TensorProto(name="w", **fields))
    return proto


@proto_of("negative dim", "initializer 'w' has the negative size -2")
def _negative() -> onnx.ModelProto:
    return _weight(data_type=TensorProto.FLOAT, dims=[-2], raw_data=bytes(8))


@proto_of("absurd dims without data", "needs 1 000 000 000 000 values for float 1000000000000, and holds 0")
def _absurd() -> onnx.ModelProto:
    return _weight(data_type=TensorProto.FLOAT, dims=[10**12])


@proto_of("dims whose product overflows", "and holds 8")
def _overflow() -> onnx.ModelProto:
    return _weight(data_type=TensorProto.FLOAT, dims=[2**62, 4, 2**60], raw_data=bytes(8))


@proto_of("data too short", "needs 12 bytes for float 3, and holds 8")
def _short() -> onnx.ModelProto:
    return _weight(data_type=TensorProto.FLOAT, dims=[3], raw_data=bytes(8))


@proto_of("data too long", "needs 4 bytes for float scalar, and holds 8")
def _long() -> onnx.ModelProto:
    return _weight(data_type=TensorProto.FLOAT, raw_data=bytes(8))


@proto_of("data in the wrong field", "needs 2 values for float 2, and holds 0")
def _wrong_field() -> onnx.ModelProto:
    return _weight(data_type=TensorProto.FLOAT, dims=[2], int32_data=[1, 2])


@proto_of("packed data too short", "needs 2 bytes for int4 3, and holds 1")
def _packed() -> onnx.ModelProto:
    return _weight(data_type=TensorProto.INT4, dims=[3], raw_data=b"\x21")


@proto_of("unknown data type", "initializer 'w' has the unknown data type 77")
def _unknown_type() -> onnx.ModelProto:
    return _weight(data_type=77, dims=[2], raw_data=bytes(8))


@proto_of("undefined data type", "initializer 'w' has the unknown data type 0")
def _undefined_type() -> onnx.ModelProto:
    return _weight(dims=[2], raw_data=bytes(8))


@proto_of("strings as raw data", "holds strings as raw_data")
def _raw_strings() -> onnx.ModelProto:
    return _weight(data_type=TensorProto.STRING, dims=[1], raw_data=b"a")


@proto_of("constant without data", "attribute '' needs 2 values for float 2, and holds 0")
def _constant() -> onnx.ModelProto:
    empty = TensorProto(data_type=TensorProto.FLOAT, dims=[2])
    return build.model([helper.make_node("Constant", [], ["y"], value=empty)])


@proto_of("sparse weight ill-fitting", "has 2 values, and indices int64 1")
def _sparse() -> onnx.ModelProto:
    proto = build.model([helper.make_node("Add", ["x", "w"], ["y"])])
    sparse = proto.graph.sparse_initializer.add(dims=[2])
    sparse.values.CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0]))
    sparse.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, [1], [0]))
    return proto


@proto_of("sparse index outside", "index 9 lies outside its 2 elements")
def _sparse_index() -> onnx.ModelProto:
    proto = build.model([helper.make_node("Add", ["x", "w"], ["y"])])
    sparse = proto.graph.sparse_initializer.add(dims=[2])
    sparse.values.CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0]))
    sparse.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, [1], [9]))
    return proto


@proto_of("control characters in a name", "'⟨U+001B⟩[31mx⟨U+000A⟩' is used but never produced")
def _control() -> onnx.ModelProto:
    return build.model([helper.make_node("Relu", ["\x1b[31mx\n"], ["y"])])


# Texts that are not UTF-8: protobuf hands them out as bytes


def _latin(old: bytes, make: Callable[[], onnx.ModelProto] = build.add) -> Callable[[], bytes]:
    """Return a maker of a model in whose bytes a text is replaced by bytes that are no UTF-8."""

    def made() -> bytes:
        data = make().SerializeToString()
        assert data.count(old) >= 1
        return data.replace(old, b"\xe9" * len(old))

    return made


def _documented() -> onnx.ModelProto:
    proto = build.add()
    proto.graph.node[0].doc_string = "#"
    return proto


def _described() -> onnx.ModelProto:
    proto = build.add()
    proto.metadata_props.add(key="k", value="#")
    return proto


def _symbolic() -> onnx.ModelProto:
    proto = build.add()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "#"
    return proto


for _name, _maker in (
    ("value name", _latin(b"x")),
    ("operator name", _latin(b"Add")),
    ("doc string", _latin(b"#", _documented)),
    ("metadata", _latin(b"#", _described)),
    ("symbol", _latin(b"#", _symbolic)),
):
    CASES.append(Bad(f"{_name} not utf-8", _maker, "is not UTF-8"))
