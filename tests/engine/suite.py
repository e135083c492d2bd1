"""The official ONNX backend cases, run through level 0.

As a script it prints what fails::

    python tests/engine/suite.py                 all cases
    python tests/engine/suite.py Conv MaxPool    cases whose model holds one of these operators
    python tests/engine/suite.py --name test_if  cases whose name contains the text
"""

import argparse
import functools
import pathlib
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from graphdoc.engine.errors import UnsupportedOperatorError
from graphdoc.engine.interpreter import Interpreter

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")


@dataclass(frozen=True)
class Case:
    """One official case: a model, and data sets of (inputs, expected outputs)."""

    name: str
    model: onnx.ModelProto
    data: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float

    @functools.cached_property
    def operators(self) -> frozenset[str]:
        return frozenset(_operators(self.model.graph))


def _operators(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield node.op_type
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _operators(attribute.g)


def load() -> list[Case]:
    """Return all cases of onnx's own suite that carry their model and data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        found = [case for kind in KINDS for case in load_model_tests(kind=kind)]
    return [_case(case) for case in found]


def _case(case: Any) -> Case:
    if case.model is not None:
        return Case(case.name, case.model, case.data_sets, case.rtol, case.atol)
    if case.url is not None:
        return _light(case)
    folder = pathlib.Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    data = [
        (_values(each, "input", model.graph.input), _values(each, "output", model.graph.output))
        for each in sorted(folder.glob("test_data_set_*"))
    ]
    return Case(case.name, model, data, case.rtol, case.atol)


def _light(case: Any) -> Case:
    """Return a case of kind "real": the installed package holds the model with its weights made by rule.

    The official runner feeds such a model equal steps from 0 to 1.
    """
    path = pathlib.Path(onnx.__file__).parents[1] / case.url
    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    feeds = [_steps(info) for info in model.graph.input if info.name not in weights]
    expected = [
        numpy_helper.to_array(onnx.load_tensor(path.with_name(f"{path.stem}_output_{place}.pb")))
        for place in range(len(model.graph.output))
    ]
    return Case(case.name, model, [(feeds, expected)], case.rtol, case.atol)


def _steps(info: onnx.ValueInfoProto) -> np.ndarray[Any, Any]:
    shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
    count = int(np.prod(shape))
    return (np.arange(count).reshape(shape) / count).astype(np.float32)


def _values(folder: pathlib.Path, kind: str, infos: Any) -> list[Any]:
    paths = sorted(folder.glob(f"{kind}_*.pb"), key=lambda p: int(p.stem.split("_")[1]))
    return [_value(path, info) for path, info in zip(paths, infos, strict=False)]


def _value(path: pathlib.Path, info: onnx.ValueInfoProto) -> Any:
    raw = path.read_bytes()
    if info.type.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(raw))
    if info.type.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(raw))
    return numpy_helper.to_array(onnx.TensorProto.FromString(raw))


def text(value: Any) -> Any:
    """Return object arrays of bytes as object arrays of str, and TensorProtos as arrays."""
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    if isinstance(value, list):
        return [text(item) for item in value]
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":
        flat = [item.decode() if isinstance(item, bytes) else str(item) for item in value.ravel()]
        result = np.empty(len(flat), dtype=object)
        result[:] = flat
        return result.reshape(value.shape)
    return value


def feeds(case: Case, inputs: list[Any]) -> dict[str, Any]:
    """Return one data set's inputs by name; empty optionals are left out, and inputs that have weights."""
    weights = {tensor.name for tensor in case.model.graph.initializer}
    names = [i.name for i in case.model.graph.input if i.name not in weights]
    return {n: text(x) for n, x in zip(names, inputs, strict=False) if x is not None}


def outputs(case: Case, *, truth: bool = False, xp: Any = np) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, expected, computed) of every output. Raises what the interpreter raises."""
    interpreter = Interpreter(ir.serde.deserialize_model(case.model), truth=truth, xp=xp)
    for inputs, expected in case.data:
        results = interpreter.run(feeds(case, inputs))
        for name, want in zip([o.name for o in case.model.graph.output], expected, strict=False):
            yield name, text(want), results[name]


def run(case: Case) -> list[str]:
    """Return what is wrong, empty when the case passes. Raises what the interpreter raises."""
    return [
        complaint
        for name, want, got in outputs(case)
        for complaint in differences(name, want, got, case.rtol, case.atol)
    ]


def differences(name: str, want: Any, got: Any, rtol: float, atol: float) -> list[str]:
    """Compare by the official rule: equal dtype and shape, and |got − want| ≤ atol + rtol·|want|."""
    if want is None:
        return [] if got is None else [f"{name}: expected an empty optional"]
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return [f"{name}: expected a sequence of {len(want)}, got {type(got).__name__}"]
        return [d for w, g in zip(want, got, strict=True) for d in differences(name, w, g, rtol, atol)]
    if not hasattr(got, "dtype"):
        return [f"{name}: got {type(got).__name__}"]
    want = np.asarray(want)
    if got.dtype != want.dtype or got.shape != want.shape:
        return [f"{name}: expected {want.dtype}{list(want.shape)}, got {got.dtype}{list(got.shape)}"]
    if want.dtype == object or want.dtype.kind in "iub":
        return [] if np.array_equal(got, want) else [f"{name}: values differ"]
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    if not np.allclose(got.astype(wide), want.astype(wide), rtol=rtol, atol=atol, equal_nan=True):
        return [f"{name}: values differ by {np.nanmax(np.abs(got.astype(wide) - want.astype(wide))):.3g}"]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--name", default="")
    arguments = parser.parse_args()
    wanted = set(arguments.operators)
    cases = [c for c in load() if arguments.name in c.name and (not wanted or wanted & c.operators)]
    passed = 0
    missing: dict[str, int] = {}
    for case in cases:
        try:
            complaints = run(case)
        except UnsupportedOperatorError as error:
            missing[error.cause] = missing.get(error.cause, 0) + 1
            continue
        except Exception as error:
            complaints = [f"{type(error).__name__}: {str(error).splitlines()[0]}"]
        passed += not complaints
        if complaints:
            print(f"{case.name}: {complaints[0]}")
    for cause, count in sorted(missing.items(), key=lambda item: -item[1]):
        print(f"{count:4d} × {cause}")
    print(f"{passed} of {len(cases)} pass")
    return int(passed < len(cases))


if __name__ == "__main__":
    sys.exit(main())
