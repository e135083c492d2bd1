"""Hypothesis strategies for whole models: every field that a file may have, sound but odd.

Operators come from a domain of their own, so that no schema limits them.
"""

from typing import Any

import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper

DOMAIN = "test.odd"

_texts = st.text(st.characters(codec="utf-8"), max_size=6)
_names = st.text("abc/.:é", min_size=1, max_size=4)
_dtypes = st.sampled_from([TensorProto.FLOAT, TensorProto.INT64, TensorProto.FLOAT16, TensorProto.BOOL])
_int64 = st.integers(-(2**63), 2**63 - 1)
_floats = st.floats(width=32)


@st.composite
def pairs(draw: Any, into: Any) -> None:
    """Add key–value entries, keys out of order and perhaps twice."""
    for key, value in draw(st.lists(st.tuples(_texts, _texts), max_size=3)):
        into.add(key=key, value=value)


@st.composite
def types(draw: Any, depth: int = 2) -> onnx.TypeProto:
    """Return a type: tensor, sparse tensor, sequence, optional, map, or nothing."""
    proto = onnx.TypeProto()
    kinds = ["tensor_type", "sparse_tensor_type", ""]
    kind = draw(st.sampled_from(kinds + (["sequence_type", "optional_type", "map_type"] if depth else [])))
    if kind in ("tensor_type", "sparse_tensor_type"):
        leaf = getattr(proto, kind)
        leaf.elem_type = draw(_dtypes)
        if draw(st.booleans()):
            leaf.shape.SetInParent()
            for dim in draw(st.lists(st.one_of(st.none(), st.integers(0, 9), _names), max_size=3)):
                entry = leaf.shape.dim.add()
                if isinstance(dim, int):
                    entry.dim_value = dim
                elif dim is not None:
                    entry.dim_param = dim
    elif kind == "map_type":
        proto.map_type.key_type = TensorProto.INT64
        proto.map_type.value_type.CopyFrom(draw(types(depth - 1)))
    elif kind:
        getattr(proto, kind).elem_type.CopyFrom(draw(types(depth - 1)))
    if draw(st.booleans()):
        proto.denotation = draw(_texts)
    return proto


@st.composite
def infos(draw: Any, name: str) -> onnx.ValueInfoProto:
    """Return a declaration of a value."""
    info = onnx.ValueInfoProto(name=name)
    if draw(st.booleans()):
        info.type.CopyFrom(draw(types()))
    if draw(st.booleans()):
        info.doc_string = draw(_texts)
    draw(pairs(info.metadata_props))
    return info


@st.composite
def tensors(draw: Any, name: str) -> onnx.TensorProto:
    """Return a tensor, its data raw or in a typed field."""
    count = draw(st.integers(0, 3))
    kind = draw(st.sampled_from(["raw", "float", "int64", "string", "int4", "scalar"]))
    proto = onnx.TensorProto(name=name)
    if kind == "scalar":
        proto.data_type, proto.raw_data = TensorProto.FLOAT, b"\0\0\x80\x3f"
        return proto
    proto.dims.append(count)
    if kind == "raw":
        proto.data_type, proto.raw_data = TensorProto.FLOAT16, b"\1\2" * count
    elif kind == "float":
        proto.data_type = TensorProto.FLOAT
        proto.float_data.extend(draw(st.lists(_floats, min_size=count, max_size=count)))
    elif kind == "int64":
        proto.data_type = TensorProto.INT64
        proto.int64_data.extend(draw(st.lists(_int64, min_size=count, max_size=count)))
    elif kind == "string":
        proto.data_type = TensorProto.STRING
        proto.string_data.extend(draw(st.lists(st.binary(max_size=3), min_size=count, max_size=count)))
    else:
        proto.data_type, proto.raw_data = TensorProto.INT4, b"\x21" * ((count + 1) // 2)
    if draw(st.booleans()):
        proto.doc_string = draw(_texts)
    draw(pairs(proto.metadata_props))
    return proto


@st.composite
def sparse(draw: Any, name: str) -> onnx.SparseTensorProto:
    """Return a sparse tensor of 2 × 3 with linear or coordinate indices."""
    proto = onnx.SparseTensorProto(dims=[2, 3])
    proto.values.CopyFrom(helper.make_tensor(name, TensorProto.FLOAT, [2], [1.5, -2.0]))
    linear = draw(st.booleans())
    dims, data = ([2], [1, 5]) if linear else ([2, 2], [0, 1, 1, 2])
    proto.indices.CopyFrom(helper.make_tensor("", TensorProto.INT64, dims, data))
    return proto


_A = onnx.AttributeProto


@st.composite
def attributes(draw: Any, name: str, visible: list[str], depth: int) -> onnx.AttributeProto:
    """Return an attribute of any type; graphs may read what is visible around them."""
    kinds = [k for k in _A.AttributeType.values() if k not in (_A.UNDEFINED, _A.GRAPH, _A.GRAPHS)]
    kind = draw(st.sampled_from(kinds + ([_A.GRAPH, _A.GRAPHS] if depth else [])))
    proto = onnx.AttributeProto(name=name, type=kind)
    if draw(st.booleans()):
        proto.doc_string = draw(_texts)
    draw(_FILL[kind](proto, visible, depth))
    return proto


def _scalar(field: str, values: Any) -> Any:
    @st.composite
    def fill(draw: Any, proto: Any, visible: list[str], depth: int) -> None:
        setattr(proto, field, draw(values))

    return fill


def _many(field: str, values: Any) -> Any:
    @st.composite
    def fill(draw: Any, proto: Any, visible: list[str], depth: int) -> None:
        getattr(proto, field).extend(draw(st.lists(values, max_size=3)))

    return fill


def _message(field: str, values: Any) -> Any:
    @st.composite
    def fill(draw: Any, proto: Any, visible: list[str], depth: int) -> None:
        getattr(proto, field).CopyFrom(draw(values))

    return fill


@st.composite
def _graph(draw: Any, proto: Any, visible: list[str], depth: int) -> None:
    proto.g.CopyFrom(draw(graphs(visible, depth - 1, f"i{depth}")))


@st.composite
def _graphs(draw: Any, proto: Any, visible: list[str], depth: int) -> None:
    for number in range(draw(st.integers(0, 2))):
        proto.graphs.append(draw(graphs(visible, depth - 1, f"j{depth}{number}")))


_FILL = {
    _A.FLOAT: _scalar("f", _floats),
    _A.INT: _scalar("i", _int64),
    _A.STRING: _scalar("s", st.binary(max_size=4)),
    _A.FLOATS: _many("floats", _floats),
    _A.INTS: _many("ints", _int64),
    _A.STRINGS: _many("strings", st.binary(max_size=4)),
    _A.TENSOR: _message("t", tensors("")),
    _A.TENSORS: _many("tensors", tensors("t")),
    _A.SPARSE_TENSOR: _message("sparse_tensor", sparse("s")),
    _A.SPARSE_TENSORS: _many("sparse_tensors", sparse("s")),
    _A.TYPE_PROTO: _message("tp", types()),
    _A.TYPE_PROTOS: _many("type_protos", types()),
    _A.GRAPH: _graph,
    _A.GRAPHS: _graphs,
}


@st.composite
def nodes(draw: Any, prefix: str, visible: list[str], depth: int) -> list[onnx.NodeProto]:
    """Return nodes that read visible values or those of nodes before them, perhaps in another order."""
    found: list[onnx.NodeProto] = []
    names = list(visible)
    for number in range(draw(st.integers(1, 3))):
        node = onnx.NodeProto(op_type=draw(st.sampled_from(["Odd", "Queer"])), domain=DOMAIN)
        node.input.extend(draw(st.lists(st.sampled_from(["", *names]), max_size=3)))
        outputs = [f"{prefix}{number}", draw(st.sampled_from(["", f"{prefix}{number}b"]))]
        node.output.extend(outputs)
        for place in range(draw(st.integers(0, 3))):
            node.attribute.append(draw(attributes(f"k{place}", names, depth)))
        for field in ("name", "doc_string", "overload"):
            if draw(st.booleans()):
                setattr(node, field, draw(st.sampled_from(["", "same", "other"])))
        draw(pairs(node.metadata_props))
        names += [name for name in outputs if name]
        found.append(node)
    return draw(st.permutations(found)) if draw(st.booleans()) else found


@st.composite
def graphs(draw: Any, visible: list[str], depth: int, prefix: str) -> onnx.GraphProto:
    """Return a graph with inputs, weights (some sparse, some that are inputs too), nodes and loose ends."""
    graph = onnx.GraphProto(name=draw(_texts))
    inputs = [f"{prefix}x{n}" for n in range(draw(st.integers(0, 2)))]
    graph.input.extend([draw(infos(name)) for name in inputs])
    weights = [f"{prefix}w{n}" for n in range(draw(st.integers(0, 2)))]
    if inputs and draw(st.booleans()):
        weights.append(inputs[0])
    graph.initializer.extend([draw(tensors(name)) for name in weights])
    if draw(st.booleans()):
        graph.sparse_initializer.append(draw(sparse(f"{prefix}s")))
        weights.append(f"{prefix}s")
    own = [*visible, *inputs, *weights]
    graph.node.extend(draw(nodes(f"{prefix}n", own, depth)))
    made = [name for node in graph.node for name in node.output if name]
    graph.output.extend(
        [draw(infos(n)) for n in draw(st.lists(st.sampled_from(made), min_size=1, max_size=2))]
    )
    for name in draw(st.lists(st.sampled_from([*made, *weights, *inputs, "nowhere"]), max_size=3)):
        graph.value_info.append(draw(infos(name)))
    if draw(st.booleans()):
        note = graph.quantization_annotation.add(tensor_name=draw(st.sampled_from([*made, "nowhere"])))
        draw(pairs(note.quant_parameter_tensor_names))
    draw(pairs(graph.metadata_props))
    return graph


@st.composite
def functions(draw: Any, name: str) -> onnx.FunctionProto:
    """Return a function with attributes with and without defaults."""
    function = onnx.FunctionProto(name=name, domain="test.own", input=["a"], attribute=["need"])
    function.opset_import.add(domain=DOMAIN, version=1)
    function.node.extend(draw(nodes("f", ["a"], 0)))
    reference = function.node[0].attribute.add(name="ref", ref_attr_name="need", type=_A.INT)
    reference.doc_string = draw(_texts)
    function.output.append(function.node[-1].output[0])
    function.attribute_proto.append(draw(attributes("has", [], 0)))
    function.value_info.append(draw(infos(function.node[0].output[0])))
    if draw(st.booleans()):
        function.overload = draw(_names)
    draw(pairs(function.metadata_props))
    return function


@st.composite
def models(draw: Any) -> onnx.ModelProto:
    """Return a whole model."""
    proto = onnx.ModelProto(ir_version=draw(st.sampled_from([3, 8, 10, 11, 13])))
    for field in ("producer_name", "producer_version", "domain", "doc_string"):
        if draw(st.booleans()):
            setattr(proto, field, draw(_texts))
    if draw(st.booleans()):
        proto.model_version = draw(st.integers(0, 5))
    for domain, version in draw(st.permutations([("", 17), (DOMAIN, 1), ("ai.onnx", 17), (DOMAIN, 1)])):
        proto.opset_import.add(domain=domain, version=version)
    proto.graph.CopyFrom(draw(graphs([], 2, "m")))
    for number in range(draw(st.integers(0, 2))):
        proto.functions.append(draw(functions(f"F{number}")))
    if draw(st.booleans()):
        proto.training_info.add().initialization.name = draw(_texts)
    if draw(st.booleans()):
        device = proto.configuration.add(name="two", num_devices=2)
        device.device.extend(["cpu:0", "cpu:1"])
        use = proto.graph.node[0].device_configurations.add(configuration_id="two", pipeline_stage=1)
        spec = use.sharding_spec.add(tensor_name=proto.graph.node[0].output[0], device=[0, 1])
        spec.sharded_dim.add(axis=0).simple_sharding.add(num_shards=2, dim_value=4)
    draw(pairs(proto.metadata_props))
    return proto
