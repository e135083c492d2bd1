"""Writes docs/commands.md from the commands' own help: python scripts/commands_page.py"""

import pathlib
from collections.abc import Iterator

import click

from graphdoc import group, overview

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "commands.md"

HEAD = """\
# Commands

This page is what `graphdoc COMMAND --help` prints; `make docs` writes it. Exit codes are explained in
[exit-codes.md](exit-codes.md), inputs in [inputs.md](inputs.md).
"""

WIDTH = 100


def page() -> str:
    """Return the page's text."""
    parts = [HEAD, *(_section(entry) for entries in overview.SECTIONS.values() for entry in entries)]
    return "\n".join(parts)


def _section(entry: overview.Entry) -> str:
    texts = "\n".join(f"```text\n{text}```\n" for text in help_texts(entry.name))
    return f"## graphdoc {entry.name}\n\n{texts}"


def help_texts(name: str) -> Iterator[str]:
    """Yield a command's help, set in a fixed width, and that of its own commands."""
    command = group.root.get_command(_context(group.root, "graphdoc"), name)
    if command is None:
        raise KeyError(name)
    context = _context(command, name, _context(group.root, "graphdoc"))
    yield command.get_help(context) + "\n"
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            if found is not None:
                yield found.get_help(_context(found, inner, context)) + "\n"


def _context(command: click.Command, name: str, parent: click.Context | None = None) -> click.Context:
    return click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
