"""The command line: finds the command, shows errors, sets exit codes. It does no work of its own.

Every command lives in ``graphdoc/commands/<name>.py`` as ``command`` and is imported only when it runs, so
that ``graphdoc --help`` loads neither onnx nor NumPy (nor click, see :mod:`graphdoc.overview`).
"""

import errno
import gc
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from graphdoc import overview
from graphdoc.engine.errors import GraphdocError

_DEBUG = "--debug"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows "?" and not a traceback
    code = run(list(sys.argv[1:] if arguments is None else arguments))
    if arguments is None and "numpy" in sys.modules:
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> None:
    """End the process without taking hundreds of megabytes of values apart, which takes 0.2 s."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 3
    os._exit(code)


def _replace_closed_streams() -> None:
    """Send to nowhere what goes to a stream that the shell closed (``>&-``)."""
    if sys.stdout is None:
        sys.stdout = _nowhere()
    if sys.stderr is None:
        sys.stderr = _nowhere()


def _nowhere() -> io.TextIOWrapper:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - open until the process ends


def run(arguments: list[str]) -> int:
    """Run one command; return the exit code (docs/exit-codes.md)."""
    debug = _DEBUG in arguments
    arguments = [argument for argument in arguments if argument != _DEBUG]
    try:
        if not arguments:
            print(overview.text(), file=sys.stderr, flush=True)
            return 2
        if arguments in (["--help"], ["-h"]):
            print(overview.text(), flush=True)
            return 0
        return _command(arguments, debug=debug)
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    except KeyboardInterrupt:
        return _stopped(debug=debug)
    except OSError as error:
        return _fail(_os_lines(error), 3, debug=debug)


def _os_lines(error: OSError) -> list[str]:
    """Return what the operating system refused, and where; an error without a file came from stdout."""
    steps = {errno.ENOSPC: "make room on the disk, or write elsewhere", errno.EACCES: "check its permissions"}
    step = steps.get(error.errno or 0, "run it again with --debug for the details")
    where = error.filename if error.filename is not None else "stdout"
    return [error.strerror or str(error), f"  where  {where}", f"  next   {step}"]


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Yield a list that Ctrl-C adds to, besides what it does anyway."""
    import signal  # needed by commands only

    seen: list[int] = []

    def note(number: int, frame: Any) -> None:
        seen.append(number)
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield seen
        return
    try:
        signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread
        yield seen
        return
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _command(arguments: list[str], *, debug: bool) -> int:
    """Run a command. Libraries that Ctrl-C meets in the middle of their import raise what comes to hand."""
    with _interrupts() as seen:
        try:
            return _called(arguments, debug=debug)
        except Exception:
            if not seen:
                raise
            return _stopped(debug=debug)


def _called(arguments: list[str], *, debug: bool) -> int:
    import click

    from graphdoc.deferred import defer_sympy
    from graphdoc.group import root

    defer_sympy()
    # NumPy's BLAS threads and ONNX Runtime's, which spin on after a run, would fight for the same cores
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # a graph is a million small objects that all stay: looking through them again and again takes 5 %
    gc.set_threshold(100_000, 50, 100)
    try:
        result = root.main(arguments, prog_name="graphdoc", standalone_mode=False)
    except GraphdocError as error:
        return _fail(error.lines(), error.exit_code, debug=debug)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "graphdoc"
        return _fail([error.format_message(), f"  next   {path} --help"], 2, debug=debug)
    except (click.Abort, KeyboardInterrupt):
        return _stopped(debug=debug)
    except MemoryError:
        return _fail(
            ["not enough memory", "  next   give a smaller --shape, or fewer --taps"], 4, debug=debug
        )
    return int(result or 0)


def _stopped(*, debug: bool) -> int:
    """Say that Ctrl-C was heard, at once and without an import: one that it has cut short fails for good."""
    if debug:
        _trace()
    return _said(["stopped"], 130)


def _fail(lines: list[str], code: int, *, debug: bool) -> int:
    if debug:
        _trace()
    from graphdoc.reports.words import visible  # names in messages are foreign text

    return _said(list(map(visible, lines)), code)


def _trace() -> None:
    import traceback  # needed only here, and costs start-up time

    traceback.print_exc()


def _said(lines: list[str], code: int) -> int:
    symbol = "✗" if "utf" in (sys.stderr.encoding or "").lower() else "FAIL"
    try:
        print(f"{symbol} {lines[0]}", *lines[1:], sep="\n", file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = _nowhere()  # nobody can be told; the exit code still can
    return code
