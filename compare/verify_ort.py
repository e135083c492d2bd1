"""ONNX Runtime on models in memory: weights are handed over where they lie, never written out."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from graphdoc.compare.ort_session import OrtSession, load_failure
from graphdoc.compare.types import EXTENDED_CODES
from graphdoc.compare.verify_light import without_weights
from graphdoc.surgeon.model import Source

LARGEST_READ = 1 << 28
"""Bytes of a model file up to which ONNX Runtime may read it anew: quicker, but the weights lie twice."""

PREPACKED = 1 << 29
"""Bytes of weights up to which kernels may keep rearranged copies of theirs."""


_FOLDER = "session.model_external_initializers_file_folder_path"


class OrtSide:
    """One model in ONNX Runtime, optimisations off, on one thread so that every run gives the same bits.

    Raises RunnerError when the model is refused.
    """

    def __init__(self, source: Source) -> None:
        options = _options(source)
        self._weights: dict[str, Any] = {}
        model: bytes | str
        if source.path is not None and source.path.stat().st_size <= LARGEST_READ:
            model = str(source.path)
        else:
            light = without_weights(source.model)
            model = light.proto.SerializeToString()
            if light.folder:
                options.add_session_config_entry(_FOLDER, light.folder)
            self._weights = {name: _ort_value(tensor) for name, tensor in light.given.items()}
            options.add_external_initializers(list(self._weights), list(self._weights.values()))
        try:
            session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise load_failure(error) from error
        self._session = OrtSession(session, None)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name. Raises RunnerError."""
        return self._session.run(self._session.outputs, feeds)


def _options(source: Source) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = False  # what one run needed is no use to the next, of other sizes
    if sum(_sizes(source.model)) > PREPACKED:
        options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def _sizes(model: ir.Model) -> Iterator[int]:
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.dtype != ir.DataType.STRING:
            yield tensor.nbytes


def _ort_value(tensor: ir.TensorProtocol) -> ort.OrtValue:
    array = np.ascontiguousarray(tensor.numpy()).reshape(tensor.shape.numpy())
    code = EXTENDED_CODES.get(array.dtype)
    if code is None:
        return ort.OrtValue.ortvalue_from_numpy(array)
    bits = array.view(f"u{array.dtype.itemsize}")
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, code)
