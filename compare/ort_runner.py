"""Runner ``ort``: ONNX Runtime, with every value in reach, inside If, Loop and Scan too."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from graphdoc.compare.runner import Run, RunnerOptions, Sink, Values
from graphdoc.compare.target import Target
from graphdoc.engine.errors import RunnerError
from graphdoc.engine.interpreter import nbytes
from graphdoc.engine.scope import MAIN

try:
    import onnxruntime as ort

    ort.InferenceSession  # noqa: B018 - what is left of a package that was removed has none
except (ImportError, OSError, AttributeError) as missing:
    absent = isinstance(missing, ModuleNotFoundError) and missing.name == "onnxruntime"
    fault = "is not installed" if absent else f"cannot be used: {missing}"
    raise RunnerError(
        f"runner 'ort' is not available: onnxruntime {fault}",
        next_step="pip install onnxruntime      or      --ref reference",
    ) from missing

from graphdoc.compare.ort_nested import Nested
from graphdoc.compare.ort_scope import Scope
from graphdoc.compare.ort_segments import Segments
from graphdoc.compare.ort_session import OrtSession, SessionFactory
from graphdoc.compare.ort_stop import interruptible

REPEATS = 3
REPEAT_SECONDS = 0.5
"""How often layers are run again for their times at most, and the time for all runs after which none is."""


class OrtRunner:
    """ONNX Runtime on one execution provider.

    Taps run with graph optimisations off, so that each layer of the file exists; the untouched run
    uses ONNX Runtime's defaults.
    """

    version = ort.__version__
    resumes = True

    def __init__(self, name: str, target: Target, options: RunnerOptions, providers: tuple[str, ...]) -> None:
        self.name = name
        self.settings = f"{providers[0]}; graph optimisations on for whole runs, off for taps"
        self._target = target
        path = target.source.path
        self._factory = SessionFactory(
            providers, str(path.parent) if path else "", options.threads, options.times
        )
        self._is_timed = False
        self._seen: dict[str, int] = {}
        self._warming: threading.Thread | None = None
        self._open = ExitStack()

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """None: ONNX Runtime serves a model whole or refuses it."""
        return ()

    def warm(self) -> None:
        """Open the sessions on another thread; ONNX Runtime does that without Python's lock."""
        main = self._main  # made here, so that the model is parsed once

        def open_both() -> None:
            with suppress(RunnerError):  # what is refused is refused again, and reported, on first use
                main.open_tapped()
                self._untouched  # noqa: B018 - opens the session

        self._warming = threading.Thread(target=open_both, daemon=True)
        self._warming.start()

    def _ready(self) -> None:
        if self._warming is not None:
            self._warming.join()
            self._warming = None

    @cached_property
    def _untouched(self) -> OrtSession:
        path = self._target.source.path
        model = str(path) if path else self._target.source.proto.SerializeToString()
        return self._factory.open(model, optimise=True)

    @cached_property
    def _main(self) -> Scope:
        proto = self._target.proto
        return Scope(proto, proto.graph, MAIN, {}, self._factory)

    @cached_property
    def _segments(self) -> Segments:
        return Segments(self._main)

    def untouched(self, feeds: Mapping[str, Any]) -> Values:
        """Return the outputs of the file as it is, with ONNX Runtime's usual optimisations."""
        self._ready()
        return self._untouched.run(self._untouched.outputs, feeds)

    def prepared(self, feeds: Mapping[str, Any]) -> Callable[[], object]:
        """Return a call that runs the file as it is on the feeds and does nothing else."""
        self._ready()
        return self._untouched.prepared(feeds)

    def run(self, feeds: Mapping[str, Any], taps: Collection[str], *, budget: int | None = None) -> Run:
        """See Runner.run."""
        self._ready()
        started = time.perf_counter()
        main = self._main
        sizes = _known(main.open_tapped().sizes(feeds), self._seen)
        left = list(taps)
        outputs = frozenset(self._target.outputs)
        wanted = frozenset(left if budget is None else _within(left, sizes, budget, outputs))
        cut = len(wanted) < len(frozenset(left))
        names = [*main.local(wanted), *main.needed(wanted)]
        total = sum(sizes.get(name, 0) for name in main.layers)
        asked = sum(sizes.get(name, 0) for name in set(names))
        if total > HELD and asked < 0.8 * total:
            values = self._part(feeds, names)
        else:
            values = main.run(feeds, [*names, *self._target.outputs])
            if self._factory.times and not self._is_timed:
                self._repeat(feeds, time.perf_counter() - started)
        self._seen.update((name, nbytes(value)) for name, value in values.items())
        nested = Nested(wanted)
        nested.descend(main, {**feeds, **values})
        timings = {**main.timings(), **self._segments.timings}
        return Run({**values, **nested.found}, timings, nested.unreachable, cut)

    def _part(self, feeds: Mapping[str, Any], names: list[str]) -> Values:
        """Return layers, no others held; where a value in between has no type of its own, all are."""
        try:
            return self._segments.run(feeds, names)
        except RunnerError:
            return self._main.run(feeds, names)

    def _repeat(self, feeds: Mapping[str, Any], spent: float) -> None:
        """Run the layers a few more times for their times: the first run of many is several times slower.

        spent: seconds that the first run took.
        """
        self._is_timed = True
        end = time.perf_counter() + REPEAT_SECONDS - spent
        for _ in range(REPEATS):
            if time.perf_counter() > end:
                return
            self._main.run(feeds, self._target.outputs)

    def forced(self, feeds: Mapping[str, Any], given: Values, taps: Collection[str]) -> Run:
        """See Runner.forced."""
        self._ready()
        wanted = frozenset(taps)
        main = self._main
        env = {**{n: given[n] for n in main.layers if n in given}, **feeds}
        values = main.run_isolated(env, main.local(wanted))
        nested = Nested(wanted, given)
        nested.descend(main, env)
        return Run({**values, **nested.found}, {}, nested.unreachable)

    def forced_each(self, feeds: Mapping[str, Any], given: Values, taps: Collection[str], sink: Sink) -> None:
        """See Runner.forced_each: as many layers at a time as PORTION holds.

        Layers that need others computed with them go together.
        """
        parts = _portions(taps, given) if all(name in given for name in taps) else [list(taps)]
        for part in parts:
            for name, value in self.forced(feeds, given, part).values.items():
                sink(name, value)
            self._main.forget_isolated()

    def __enter__(self) -> Self:
        self._open.enter_context(interruptible())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        self._ready()
        self.__dict__.pop("_segments", None)
        main = self.__dict__.pop("_main", None)
        if main is not None:
            main.close()
        self.__dict__.pop("_untouched", None)


HELD = 64 << 20
"""Bytes of all values of a model from which on a session holds no more of them than are asked for."""

GUESS = 1 << 20
"""Bytes that a value is taken to have before any is seen whose size is not inferred."""

PORTION = 64 << 20
"""Bytes of values that layers compute from given ones at a time."""


def _portions(names: Collection[str], given: Values) -> Iterator[list[str]]:
    """Yield the names in parts whose given values, as large as what is computed, fill a portion."""
    part: list[str] = []
    size = 0
    for name in names:
        part.append(name)
        size += nbytes(given[name])
        if size >= PORTION:
            yield part
            part, size = [], 0
    if part:
        yield part


def _known(inferred: Mapping[str, int | None], seen: Mapping[str, int]) -> dict[str, int]:
    """Return the size of every value: as seen, else as inferred, else the mean of what was seen of such."""
    unknown = [seen[name] for name, size in inferred.items() if size is None and name in seen]
    guess = sum(unknown) // len(unknown) if unknown else GUESS
    return {n: seen.get(n, guess if size is None else size) for n, size in inferred.items()}


def _within(
    names: Sequence[str], sizes: Mapping[str, int], budget: int, outputs: Collection[str]
) -> list[str]:
    """Return the first names whose values fit the budget, one at least of an inner layer of the main graph.

    Outputs of the model settle nothing (findings.py): every run may have them. What subgraphs compute counts
    nothing: it is as large as ONNX Runtime finds it.
    """
    used, counted = 0, False
    for place, name in enumerate(names):
        if name not in sizes:
            continue
        used += sizes[name]
        if used > budget and counted:
            return list(names[:place])
        counted = counted or name not in outputs
    return list(names)


def _open(name: str, target: Target, options: RunnerOptions, provider: str, remedy: str) -> OrtRunner:
    available = ort.get_available_providers()
    if provider not in available:
        raise RunnerError(
            f"runner '{name}' is not available: this onnxruntime has no {provider}",
            where=f"onnxruntime {ort.__version__} has {', '.join(available)}",
            next_step=remedy,
        )
    return OrtRunner(name, target, options, (provider,))


def open_cpu(target: Target, options: RunnerOptions) -> OrtRunner:
    """Open ONNX Runtime on the CPU."""
    return _open("ort", target, options, "CPUExecutionProvider", "reinstall onnxruntime")


def open_cuda(target: Target, options: RunnerOptions) -> OrtRunner:
    """Open ONNX Runtime on CUDA."""
    remedy = 'pip uninstall onnxruntime; pip install "onnx-graphdoc[ort-gpu]"'
    return _open("ort:cuda", target, options, "CUDAExecutionProvider", remedy)


def open_tensorrt(target: Target, options: RunnerOptions) -> OrtRunner:
    """Open ONNX Runtime on TensorRT."""
    remedy = 'pip uninstall onnxruntime; pip install "onnx-graphdoc[ort-gpu]" tensorrt'
    return _open("ort:tensorrt", target, options, "TensorrtExecutionProvider", remedy)
