"""Categories of ai.onnx.ml on level 1, beside level 0: strings by their codes, numbers as steps."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from graphdoc.engine.device.cpu import CpuDevice
from graphdoc.engine.errors import RunnerError
from graphdoc.engine.fuse import fuse
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.level1 import Compiled
from tests.engine import single
from tests.engine.lowered import assert_same, check, ints, specs

ML = "ai.onnx.ml"
TEXTS = np.array([["a", "zz", ""], ["b", "é", "a"]], object)


def both(op: str, x: Any, *, opset: int = 4, native: bool = True, **options: Any) -> None:
    """Hold level 1, as machine code and a second time by the short way, against level 0.

    native: whether a program must do what is left once strings are codes.
    """
    proto, feeds = single.model(op, x, domain=ML, opset=opset, **options)
    model = ir.from_proto(proto)
    want = Interpreter(model).run(feeds)["y0"]
    compiled = Compiled(model, device=CpuDevice(1), passes=(fuse,))
    for _ in range(2):
        assert_same(compiled.run(feeds)["y0"], want)
    assert bool(specs(compiled)) is native, compiled.stages()[0].notes


@pytest.mark.parametrize(
    "values",
    [
        {"values_int64s": [5, -3, 7], "default_int64": 9},
        {"values_floats": [0.5, 1.5, -0.0], "default_float": 2.5},
        {"values_floats": [0.5, 1.5, 2.5]},
        {"values_strings": ["u", "v", "w"]},
        {"values_strings": ["u", "v", "w"], "default_string": "none"},
    ],
    ids=lambda v: "-".join(v),
)
def test_label_encoder(values: dict[str, Any]) -> None:
    """Strings and whole numbers to every kind of value; what is no key gets the default."""
    both("LabelEncoder", TEXTS, keys_strings=["a", "b", "é"], opset=2, **values)
    both("LabelEncoder", TEXTS[:, 0], keys_strings=["a", "b", "é"], **values)
    numbers = np.array([[-2, 0, 5], [6, 2**62, -(2**63)]])
    both("LabelEncoder", numbers, keys_int64s=[5, -2, 1], opset=2, **values)


def test_label_encoder_of_one_list() -> None:
    """Version 1: strings to their places, places to strings."""
    both("LabelEncoder", TEXTS, classes_strings=["b", "a", ""], opset=1)
    both("LabelEncoder", ints(0, 2, 3, -1), classes_strings=["b", "a", ""], default_string="?", opset=1)


def test_category_mapper() -> None:
    """Both ways; of equal keys the last counts."""
    names, numbers = ["a", "b", "a", "zz"], [5, -2, 7, 5]
    options = {"cats_strings": names, "cats_int64s": numbers}
    both("CategoryMapper", TEXTS, opset=1, **options)
    both("CategoryMapper", TEXTS, opset=1, default_int64=9, **options)
    both("CategoryMapper", ints(5, 7, -2, 0, 99), opset=1, **options)
    both("CategoryMapper", ints(5, 7, -2, 0, 99), opset=1, default_string="?", **options)


def test_what_level_0_looks_up() -> None:
    """Keys that repeat, of which versions choose another; numbers far apart; floats."""
    twice = {"keys_strings": ["a", "b", "a"], "values_int64s": [1, 2, 3]}
    for opset in (2, 4):
        both("LabelEncoder", TEXTS, opset=opset, native=False, **twice)
    far = {"keys_int64s": [1, 2**40], "values_int64s": [1, 2]}
    both("LabelEncoder", ints(1, 2, 2**40), native=False, **far)
    floats = {"keys_floats": [1.5, float("nan")], "values_int64s": [1, 2]}
    both("LabelEncoder", np.array([1.5, np.nan, 2], np.float32), native=False, **floats)


def test_one_hot_encoder() -> None:
    """Strings, whole numbers, floats cut to whole numbers; of equal categories the last counts."""
    both("OneHotEncoder", TEXTS, cats_strings=["a", "b", "a"])
    both("OneHotEncoder", TEXTS, cats_strings=["é"], zeros=1)
    for dtype in (np.int64, np.int32, np.float32, np.float64):
        x = np.array([[-2, 0, 5], [6, 1, 2]]).astype(dtype) + dtype(0.5 if dtype is np.float32 else 0)
        check("OneHotEncoder", x, cats_int64s=[5, -2, 1], domain=ML, opset=3)
    check("OneHotEncoder", ints(1, 2), cats_int64s=[1, 2, 1], domain=ML, opset=3, host=True)


def test_unknown_categories_that_are_refused() -> None:
    """With zeros 0: known ones alone pass."""
    options = {"cats_strings": ["a", "b", "é", "zz", ""], "zeros": 0}
    both("OneHotEncoder", TEXTS, **options)
    proto, feeds = single.model("OneHotEncoder", TEXTS, domain=ML, opset=3, cats_strings=["a"], zeros=0)
    with pytest.raises(RunnerError):
        Compiled(ir.from_proto(proto)).run(feeds)
    check("OneHotEncoder", ints(1, 2), cats_int64s=[1, 2], zeros=0, domain=ML, opset=3, host=True)
