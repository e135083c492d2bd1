"""The command line: finds the command, shows errors, sets exit codes. It does no work of its own.

Every command lives in ``graphdoc/commands/<name>.py`` as ``command`` and is imported only when it runs, so
that ``graphdoc --help`` loads neither onnx nor NumPy (nor click, see :mod:`graphdoc.overview`).
"""

import io
import sys
from collections.abc import Sequence

from graphdoc import overview
from graphdoc.engine.errors import GraphdocError

_DEBUG = "--debug"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows "?" and not a traceback
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run one command; return the exit code (docs/exit-codes.md)."""
    debug = _DEBUG in arguments
    arguments = [argument for argument in arguments if argument != _DEBUG]
    if not arguments:
        print(overview.text(), file=sys.stderr)
        return 2
    if arguments in (["--help"], ["-h"]):
        print(overview.text())
        return 0
    return _command(arguments, debug=debug)


def _command(arguments: list[str], *, debug: bool) -> int:
    import click

    from graphdoc.deferred import defer_sympy
    from graphdoc.group import root

    defer_sympy()
    try:
        result = root.main(arguments, prog_name="graphdoc", standalone_mode=False)
    except GraphdocError as error:
        return _fail(error.lines(), error.exit_code, debug=debug)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "graphdoc"
        return _fail([error.format_message(), f"  next   {path} --help"], 2, debug=debug)
    except (click.Abort, KeyboardInterrupt):
        return _fail(["stopped"], 130, debug=debug)
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    except OSError as error:
        return _fail([f"{error.strerror or error}", f"  where  {error.filename}"], 3, debug=debug)
    except MemoryError:
        return _fail(
            ["not enough memory", "  next   give a smaller --shape, or fewer --taps"], 4, debug=debug
        )
    return int(result or 0)


def _fail(lines: list[str], code: int, *, debug: bool) -> int:
    if debug:
        import traceback  # needed only here, and costs start-up time

        traceback.print_exc()
    from graphdoc.reports.words import visible  # the same; names in messages are foreign text

    symbol = "✗" if "utf" in (sys.stderr.encoding or "").lower() else "FAIL"
    print(f"{symbol} {visible(lines[0])}", *map(visible, lines[1:]), sep="\n", file=sys.stderr)
    return code
