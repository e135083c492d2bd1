"""The engine as an ``onnx.backend``: for the official test suite, and for tools that speak this interface."""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir
from onnx.backend.base import Backend, BackendRep

from graphdoc.engine.device import NAMESPACES
from graphdoc.engine.errors import UsageError
from graphdoc.engine.interpreter import Interpreter
from graphdoc.engine.level1 import Compiled, compiled


def _kind(device: str) -> str:
    return device.partition(":")[0].lower()


class Prepared(BackendRep):
    """A model bound to the engine."""

    def __init__(self, interpreter: Interpreter | Compiled) -> None:
        self.interpreter = interpreter

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the outputs in the model's order.

        inputs: by name, or in the model's order (shorter where initializers stand in), or one array.
        Raises RunnerError when an operator fails.
        """
        results = self.interpreter.run(self._feeds(inputs))
        return tuple(results[name] for name in self.interpreter.output_names)

    def _feeds(self, inputs: Any) -> Mapping[str, Any]:
        if isinstance(inputs, Mapping):
            return inputs
        listed = inputs if isinstance(inputs, Sequence) else [inputs]
        return dict(zip(self.interpreter.input_names, listed, strict=False))


class GraphdocBackend(Backend):
    """Level 0 on the CPU, or on a card through CuPy; level 1 on the CPU."""

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto | ir.Model, device: str = "CPU", *, level: int = 0, **_: Any
    ) -> Prepared:
        """Return the model ready to run.

        Raises UsageError for another device or level, UnsupportedOperatorError for an operator that
        nothing implements, RunnerError where CuPy or a card is missing.
        """
        if not cls.supports_device(device):
            raise UsageError(f"the backend runs on CPU and CUDA, not on '{device}'")
        graph = model if isinstance(model, ir.Model) else ir.from_proto(model)
        if level == 1 and _kind(device) == "cpu":
            return Prepared(compiled(graph))
        if level != 0:
            raise UsageError(f"the backend has level 0, and level 1 on the CPU, not {level} on '{device}'")
        return Prepared(Interpreter(graph, xp=NAMESPACES[_kind(device)]()))

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto | ir.Model, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Prepare a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models can be prepared for a device, named as in ``CPU`` or ``CUDA:0``."""
        return _kind(device) in NAMESPACES


prepare = GraphdocBackend.prepare
run_model = GraphdocBackend.run_model
supports_device = GraphdocBackend.supports_device
