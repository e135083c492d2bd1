"""The command line: finds the command, shows errors, sets exit codes. It does no work of its own.

Every command lives in ``graphdoc/commands/<name>.py`` as ``command`` and is imported only when it runs, so
that ``graphdoc --help`` loads neither onnx nor NumPy.
"""

import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

import click

from graphdoc import __version__
from graphdoc.engine.errors import GraphdocError


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the overview: the command's module and what it does."""

    name: str
    summary: str


SECTIONS: dict[str, tuple[Entry, ...]] = {
    "Find out what is wrong": (
        Entry("compare", "compare two models or runners layer by layer"),
        Entry("run", "run a model, save inner values"),
    ),
    "Look inside": (
        Entry("inspect", "inputs, layers, weights, operators"),
        Entry("lint", "find faults without running"),
    ),
    "More": (
        Entry("demo", "compare a real model end to end and write the report"),
        Entry("env", "CPU, GPU, runners, versions, caches"),
    ),
}

_DEBUG = "--debug"


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports them when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the overview."""
        return [entry.name for entries in SECTIONS.values() for entry in entries]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or None."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = import_module(f"graphdoc.commands.{cmd_name}").command
        return command

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview: one screen, grouped by what people want."""
        formatter.write("Usage: graphdoc COMMAND …         A doctor for ONNX graphs.\n")
        for title, entries in SECTIONS.items():
            formatter.write(f"\n{title}\n")
            for entry in entries:
                formatter.write(f"  {entry.name:<10} {entry.summary}\n")
        formatter.write("\nStart:  graphdoc demo          Details:  graphdoc COMMAND --help\n")


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="graphdoc")
def root() -> None:
    """Collects the commands."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run one command; return the exit code (docs/exit-codes.md)."""
    debug = _DEBUG in arguments
    arguments = [argument for argument in arguments if argument != _DEBUG]
    try:
        result = root.main(arguments, prog_name="graphdoc", standalone_mode=False)
    except GraphdocError as error:
        return _fail(error.lines(), error.exit_code, debug=debug)
    except click.ClickException as error:
        return _usage(error, debug=debug)
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


def _usage(error: click.ClickException, *, debug: bool) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "graphdoc"
    return _fail([error.format_message(), f"  next   {path} --help"], 2, debug=debug)


def _fail(lines: list[str], code: int, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    symbol = "✗" if "utf" in (sys.stderr.encoding or "").lower() else "FAIL"
    print(f"{symbol} {lines[0]}", *lines[1:], sep="\n", file=sys.stderr)
    return code
