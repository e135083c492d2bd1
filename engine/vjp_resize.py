"""Reverse passes through Resize and Upsample: each axis is a matrix, which resizing the unit matrix shows."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from graphdoc.engine.ops.precision import wide
from graphdoc.engine.ops.resize import Axis, Method, planned, resized
from graphdoc.engine.ops.table import Array
from graphdoc.engine.vjp_rules import Node, NoRuleError, Parts, moved, rule


@rule("Resize", "Upsample")
def resize(node: Node) -> Parts:
    """Nearest elements move; else dy goes back axis by axis through the interpolation's matrix."""
    if node.attributes.get("mode", "nearest") == "nearest":
        return moved(replace(node, op="Slice"))
    if node.op == "Upsample" or node.call.version < 11:
        method = Method("linear", coordinate_transformation_mode="asymmetric")
        axes = planned(node.inputs[0].shape, None, _scales(node), None, None, "stretch", method)
    else:
        method, axes = _of_resize(node)
    if method.coordinate_transformation_mode == "tf_crop_and_resize":
        raise NoRuleError("cropping")
    return (_back(node, axes, method),)


def _scales(node: Node) -> Array:
    given = node.attributes.get("scales")
    if given is None and len(node.inputs) < 2:
        given = [1.0, 1.0, node.attributes["height_scale"], node.attributes["width_scale"]]
    return node.inputs[1] if given is None else np.asarray(given, np.float32)


def _of_resize(node: Node) -> tuple[Method, list[Axis]]:
    names = [field.name for field in fields(Method)]
    method = Method(**{k: v for k, v in node.attributes.items() if k in names})
    roi, scales, sizes = (*node.inputs[1:], None, None, None)[:3]
    policy = node.attributes.get("keep_aspect_ratio_policy", "stretch")
    axes = planned(node.inputs[0].shape, roi, scales, sizes, node.attributes.get("axes"), policy, method)
    return method, axes


def _back(node: Node, axes: Sequence[Axis], method: Method) -> Array:
    found: Any = node.full(0)
    for axis in axes:
        if axis.size != axis.out or axis.scale != 1:
            unit = np.eye(axis.size, dtype=np.float64)
            matrix = resized(node.call, unit, [replace(axis, number=1)], method)
            found = np.moveaxis(np.moveaxis(found, axis.number, -1) @ matrix.T, -1, axis.number)
    return found.astype(wide(node.inputs[0]).dtype, copy=False)
