"""Models ready to run, for verification: opened one at a time, let go as soon as nobody needs them."""

import ctypes
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeAlias

from graphdoc.compare.runner import factory
from graphdoc.engine.errors import GraphdocError
from graphdoc.engine.interpreter import Interpreter
from graphdoc.surgeon.external import ExternalWeights
from graphdoc.surgeon.model import Source

Values: TypeAlias = dict[str, Any]


class Side(Protocol):
    """A model ready to run."""

    def run(self, feeds: Mapping[str, Any]) -> Values:
        """Return the outputs by name."""


@dataclass(frozen=True)
class Trial:
    """What came of one run: values, or why there are none."""

    values: Values | None
    refusal: str = ""
    seconds: float = 0.0


def _open_ort(source: Source) -> Side:
    factory("ort")  # says what is wrong where ONNX Runtime is missing
    from graphdoc.compare.verify_ort import OrtSide

    return OrtSide(source)


def _open_engine(source: Source) -> Side:
    return Interpreter(source.model)


OPENERS: dict[str, Callable[[Source], Side]] = {"ort": _open_ort, "engine": _open_engine}


def attempt(side: Side, feeds: Mapping[str, Any]) -> Trial:
    """Run a model; a refusal is a result like any other."""
    started = time.thread_time()
    try:
        values = side.run(feeds)
    except GraphdocError as error:
        return Trial(None, cause_of(error), time.thread_time() - started)
    except MemoryError:
        return Trial(None, "not enough memory", time.thread_time() - started)
    finally:
        trim()
    return Trial(values, "", time.thread_time() - started)


def cause_of(error: BaseException) -> str:
    """Return what went wrong, in words."""
    return error.cause if isinstance(error, GraphdocError) else "not enough memory"


class Sides:
    """A model in the runners that take it: each opened when it is asked for, until :meth:`close`.

    runners: those that take it. refused: why the others do not.
    """

    def __init__(self, source: Source, runners: Sequence[str]) -> None:
        self._source = source
        self._open: dict[str, Side] = {}
        self.refused: dict[str, str] = {}
        for runner in runners:
            try:
                self[runner]
            except (GraphdocError, MemoryError) as error:
                self.refused[runner] = cause_of(error)
        self.runners = list(self._open)

    def __getitem__(self, runner: str) -> Side:
        if runner not in self._open:
            self._open[runner] = OPENERS[runner](self._source)
        return self._open[runner]

    def close(self) -> None:
        """Let go of all that was opened; who asks again gets it anew."""
        self._open.clear()
        release(self._source)


def release(source: Source) -> None:
    """Give back memory: freed parts of the heap, and pages of weights that lie in files."""
    for graph in source.model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ExternalWeights):
                value.const_value.release()
    trim()


@cache
def _malloc_trim() -> Callable[[int], int]:
    """Return the C library's function that gives freed parts of the heap back; glibc alone has one."""
    found = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    return found or (lambda pad: 0)


def trim() -> None:
    """Give freed memory back to the system: the next model or runner would not find all of it again."""
    _malloc_trim()(0)
