"""Runner ``reference``: the evaluator that the ONNX project ships, slow and close to the specification."""

from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
import onnx
from onnx.external_data_helper import uses_external_data
from onnx.reference import ReferenceEvaluator

from graphdoc.compare import derived
from graphdoc.compare.runner import Run, RunnerOptions, Values
from graphdoc.compare.target import Target
from graphdoc.compare.types import type_of
from graphdoc.engine.errors import RunnerError


class ReferenceRunner:
    """onnx.reference on the whole model; it does not look into subgraphs."""

    name = "reference"
    version = onnx.__version__
    settings = "onnx.reference"
    fallbacks: tuple[str, ...] = ()

    def __init__(self, target: Target) -> None:
        self._target = target
        self._evaluator = _open(target.proto, target)

    def untouched(self, feeds: Mapping[str, Any]) -> Values:
        """Return the outputs."""
        found = self._evaluate(self._evaluator, feeds, intermediate=False)
        return dict(zip(self._target.outputs, found, strict=True))

    def run(self, feeds: Mapping[str, Any], taps: Collection[str], *, budget: int | None = None) -> Run:
        """See Runner.run. All values are held at once: the evaluator offers no other way."""
        del budget
        everything = self._evaluate(self._evaluator, feeds, intermediate=True)
        wanted = {*taps, *self._target.outputs}
        values = {name: value for name, value in everything.items() if name in wanted}
        return Run(values, {}, self._unreachable(taps))

    def forced(self, feeds: Mapping[str, Any], given: Values, taps: Collection[str]) -> Run:
        """See Runner.forced."""
        graph = self._target.proto.graph
        layers = {point.key for point in self._target.points if not point.scope}
        names = [tap for tap in taps if tap in layers]
        env = {**{n: v for n, v in given.items() if n in layers}, **feeds}
        types = {name: kind for name, value in env.items() if (kind := type_of(value)) is not None}
        model = derived.isolated(self._target.proto, graph, types, {}, names)
        evaluator = _open(model, self._target)
        inputs = {i.name for i in model.graph.input}
        found = self._evaluate(evaluator, {n: v for n, v in env.items() if n in inputs}, intermediate=False)
        return Run(dict(zip(names, found, strict=True)), {}, self._unreachable(taps))

    def _unreachable(self, taps: Collection[str]) -> dict[str, str]:
        wanted = set(taps)
        scopes = {point.scope for point in self._target.points if point.scope and point.key in wanted}
        return dict.fromkeys(scopes, "runner reference does not look into subgraphs")

    def _evaluate(
        self, evaluator: ReferenceEvaluator, feeds: Mapping[str, Any], *, intermediate: bool
    ) -> Any:
        try:
            with np.errstate(all="ignore"):
                return evaluator.run(None, dict(feeds), intermediate=intermediate)
        except Exception as error:
            raise RunnerError(
                f"onnx.reference failed while it ran the model: {_first_line(error)}",
                where=f"runner reference (onnx {onnx.__version__})",
                next_step="try another runner: ort, engine or truth",
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace


def _open(model: onnx.ModelProto, target: Target) -> ReferenceEvaluator:
    try:
        return ReferenceEvaluator(_with_data(model, str(target.source.folder or "")))
    except Exception as error:
        raise RunnerError(
            f"onnx.reference refuses the model: {_first_line(error)}",
            where=f"runner reference (onnx {onnx.__version__})",
            next_step="try another runner: ort, engine or truth",
        ) from error


def _with_data(model: onnx.ModelProto, folder: str) -> onnx.ModelProto:
    """Return the model with external data read in; the evaluator reads none of a model in memory."""
    if not any(uses_external_data(tensor) for tensor in model.graph.initializer):
        return model
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    onnx.load_external_data_for_model(whole, folder)
    return whole


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]


def open_reference(target: Target, options: RunnerOptions) -> ReferenceRunner:
    """Open onnx.reference."""
    del options
    return ReferenceRunner(target)
