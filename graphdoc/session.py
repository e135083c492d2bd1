"""Run a model on the engine."""

from collections.abc import Iterable, Mapping
from typing import Any

from graphdoc.api import Model
from graphdoc.compare.target import Target
from graphdoc.engine.device import NAMESPACES
from graphdoc.engine.errors import UsageError
from graphdoc.engine.feeds import check_feeds
from graphdoc.engine.interpreter import Interpreter
from graphdoc.surgeon.model import open_source


class Session:
    """A model ready to run.

    model: a path, bytes, ModelProto or onnx_ir.Model.
    device: "cpu", or "cuda" (CuPy); level: 0 (operator by operator). truth: compute floats in float64.

    Raises ModelError, UnsupportedOperatorError, UsageError for a device or level this version lacks,
    RunnerError where CuPy or a card is missing.
    """

    def __init__(
        self, model: Model, *, device: str = "cpu", level: int = 0, truth: bool = False, seed: int = 0
    ) -> None:
        if device not in NAMESPACES or level != 0:
            raise UsageError(
                f"this version runs level 0 on {' and '.join(NAMESPACES)}, not level {level} on '{device}'",
                next_step='Session(model, device="cpu", level=0)',
            )
        xp = NAMESPACES[device]()
        self._target = Target(open_source(model))
        self._interpreter = Interpreter(self._target.model, xp=xp, truth=truth, seed=seed)

    @property
    def taps(self) -> list[str]:
        """Names of all inner values that :meth:`run` can return, in execution order."""
        return [point.key for point in self._target.points]

    def run(self, feeds: Mapping[str, Any], taps: Iterable[str] = ()) -> dict[str, Any]:
        """Return the outputs, and the inner values named in ``taps``, as NumPy arrays by name.

        Values inside If, Loop and Scan come as lists, one entry per execution.

        Raises InputError when the feeds do not fit, RunnerError when an operator fails.
        """
        check_feeds(self._target.model, feeds)
        return self._interpreter.run(feeds, taps)
