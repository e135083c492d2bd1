"""ONNX Runtime sessions: opening, running, reading the profile; its errors in our words."""

import json
import math
import pathlib
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
import onnxruntime as ort

from graphdoc.compare.environment import cores
from graphdoc.compare.ort_stop import stoppable
from graphdoc.compare.ort_values import from_ort, is_unbridged, to_ort
from graphdoc.engine.errors import RunnerError

_SILENT = 4


class OrtSession:
    """An inference session that takes and gives NumPy arrays of every dtype."""

    def __init__(
        self, session: ort.InferenceSession, profile: tempfile.TemporaryDirectory[str] | None
    ) -> None:
        self._session = session
        self._profile = profile
        self._inputs = {i.name for i in session.get_inputs()}
        self._initializers = {i.name for i in session.get_overridable_initializers()}
        self._types = {o.name: o.type for o in session.get_outputs()}
        self.outputs = list(self._types)

    def run(self, names: list[str], feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the named outputs. Feeds that are not inputs of this model are left out."""
        known = self._inputs | self._initializers
        given = {n: to_ort(v) for n, v in feeds.items() if n in known and v is not None}
        unbridged = [name for name in names if is_unbridged(self._types.get(name, ""))]
        plain = [name for name in names if name not in unbridged]
        try:
            with stoppable() as options:
                found = (
                    dict(zip(plain, self._session.run(plain, given, options), strict=True)) if plain else {}
                )
                if unbridged:
                    found.update(self._raw(unbridged, given, options))
        except Exception as error:
            raise run_failure(error) from error
        return {name: found[name] for name in names}

    def prepared(self, feeds: Mapping[str, Any]) -> Callable[[], object]:
        """Return a call that runs the model on the feeds and does nothing else."""
        known = self._inputs | self._initializers
        given = {n: to_ort(v) for n, v in feeds.items() if n in known and v is not None}
        session, outputs = self._session, self.outputs
        if any(map(is_unbridged, self._types.values())):
            return lambda: self.run(outputs, given)

        def call() -> object:
            try:
                return session.run(outputs, given)
            except Exception as error:
                raise run_failure(error) from error

        return call

    def _raw(self, names: list[str], given: Mapping[str, Any], options: ort.RunOptions) -> dict[str, Any]:
        feeds = {
            name: value if isinstance(value, ort.OrtValue) else ort.OrtValue.ortvalue_from_numpy(value)
            for name, value in given.items()
        }
        results = self._session.run_with_ort_values(names, feeds, options)
        return {name: from_ort(value) for name, value in zip(names, results, strict=True)}

    def sizes(self, feeds: Mapping[str, Any]) -> dict[str, int | None]:
        """Return the bytes of every output as ONNX Runtime infers its shape; None where it cannot."""
        symbols: dict[str, int] = {}
        for value in self._session.get_inputs():
            given = getattr(feeds.get(value.name), "shape", ())
            symbols.update((d, n) for d, n in zip(value.shape, given, strict=False) if isinstance(d, str))
        return {value.name: _bytes(value, symbols) for value in self._session.get_outputs()}

    def close(self) -> None:
        """End profiling that nobody read, and remove its folder."""
        if self._profile is not None:
            self._session.end_profiling()
            self._profile.cleanup()
            self._profile = None

    def timings(self, graph: onnx.GraphProto) -> dict[str, float]:
        """End profiling; return the least seconds of each node of ``graph`` in any run, by first output."""
        if self._profile is None:
            return {}
        path = pathlib.Path(self._session.end_profiling())
        events = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        self._profile.cleanup()
        self._profile = None
        return least_seconds(events, graph)


_WIDTHS = {
    **dict.fromkeys(("double", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float", "int32", "uint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    "complex128": 16,
}
"""Bytes of an element; 1 for all others."""


def _bytes(value: Any, symbols: Mapping[str, int]) -> int | None:
    """Return the size of a tensor; None for what is none, and where a dimension is not known."""
    kind = re.fullmatch(r"tensor\((\w+)\)", value.type)
    sizes = [symbols.get(d) if isinstance(d, str) else d for d in value.shape or ()]
    if kind is None or any(size is None or size < 0 for size in sizes):
        return None
    return math.prod(size for size in sizes if size is not None) * _WIDTHS.get(kind[1], 1)


def least_seconds(events: list[dict[str, Any]], graph: onnx.GraphProto) -> dict[str, float]:
    """Return the least time of each node in a profile, by its first output.

    ONNX Runtime counts nodes without constants and gives those without a name one. Where its count does not
    lead to a node of that operator and name, the name alone decides.
    """
    nodes = [node for node in graph.node if node.op_type != "Constant"]
    named = {node.name: node for node in nodes if node.name}
    spent: dict[str, float] = {}
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") != "Node" or not name.endswith("_kernel_time"):
            continue
        node = _counted(event, name.removesuffix("_kernel_time"), nodes) or named.get(
            name[: -len("_kernel_time")]
        )
        if node is not None and node.output:
            seconds = float(event["dur"]) * 1e-6
            spent[node.output[0]] = min(seconds, spent.get(node.output[0], seconds))
    return spent


def _counted(event: dict[str, Any], name: str, nodes: list[onnx.NodeProto]) -> onnx.NodeProto | None:
    arguments = event.get("args", {})
    place = int(arguments.get("node_index", len(nodes)))
    node = nodes[place] if 0 <= place < len(nodes) else None
    if node is None or node.op_type != arguments.get("op_name") or node.name not in ("", name):
        return None
    return node


@dataclass(frozen=True)
class SessionFactory:
    """How sessions of one model are opened.

    folder: where its external data lies, "" when there is none. threads: 0 for the default. times: whether
    sessions that ``profile`` do.
    """

    providers: tuple[str, ...]
    folder: str = ""
    threads: int = 0
    times: bool = True

    def open(self, model: bytes | str, *, optimise: bool, profile: bool = False) -> OrtSession:
        """Open a session on a serialised model or a path. Raises RunnerError when the model is refused."""
        options = ort.SessionOptions()
        options.log_severity_level = _SILENT
        options.intra_op_num_threads = self.threads
        if self.threads > cores():  # threads that spin while they wait would keep the others from work
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
        if not optimise:  # all values are outputs: an arena would hold them until the session ends
            options.enable_cpu_mem_arena = False
            options.enable_mem_pattern = False
        if self.folder:
            options.add_session_config_entry(
                "session.model_external_initializers_file_folder_path", self.folder
            )
        scratch = tempfile.TemporaryDirectory(prefix="graphdoc-") if profile and self.times else None
        if scratch is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(pathlib.Path(scratch.name) / "ort")
        try:
            session = ort.InferenceSession(model, options, providers=list(self.providers))
        except Exception as error:
            if scratch is not None:
                scratch.cleanup()
            raise load_failure(error) from error
        return OrtSession(session, scratch)


_NOISE = tuple(
    re.compile(pattern)
    for pattern in (
        r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ",
        r"^(?:Load model from .* failed:|Exception during initialization: )",
        r"^Non-zero status code returned while ",
        r"/\S+?\.(?:cc|h):\d+ (?:.*?\)(?:::<lambda\(\)>)?|\S+) ",  # a place in ONNX Runtime's source
        r"Name:'' ",
    )
)
"""What ONNX Runtime puts around its reasons, in the order in which it is taken off."""


def _text(error: Exception) -> str:
    """Return the first line of an ONNX Runtime error without codes and source locations."""
    text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    for pattern in _NOISE:
        text = pattern.sub("", text).strip()
    return text if len(text) <= 300 else text[:299] + "…"


def load_failure(error: Exception) -> RunnerError:
    """Return the error for a model that ONNX Runtime refuses."""
    return RunnerError(
        f"ONNX Runtime refuses the model: {_text(error)}",
        where=f"runner ort {ort.__version__}",
        next_step="try another runner (engine, reference), or look for faults:  graphdoc lint MODEL",
    )


def run_failure(error: Exception) -> RunnerError:
    """Return the error for a run that ONNX Runtime gave up."""
    return RunnerError(
        f"ONNX Runtime failed while it ran the model: {_text(error)}",
        where=f"runner ort {ort.__version__}",
        next_step="check the inputs and their shapes: --inputs FILE, --shape NAME=1x3x224x224",
    )
