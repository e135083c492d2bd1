"""Where the answer of a command goes: stdout, a file, a terminal or a pipe."""

import shutil
import sys
from typing import Any

import click

from graphdoc.commands.common import color_wanted, unicode_wanted
from graphdoc.commands.targets import STDOUT


def print_settings(color: bool | None) -> dict[str, Any]:
    """Return how printed forms are set for the present stdout: width, color, pipe, unicode."""
    return {
        "width": shutil.get_terminal_size().columns,
        "color": color_wanted(color),
        "pipe": not sys.stdout.isatty(),
        "unicode": unicode_wanted(),
    }


def write_or_print(text: str, target: str) -> None:
    """Write text to a file, or to stdout when the target is "-"; as UTF-8 in both, since programs read it."""
    if target == STDOUT:
        click.echo((text.rstrip("\n") + "\n").encode("utf-8"), nl=False)
        return
    from graphdoc.reports.files import write_text

    write_text(text, target)
