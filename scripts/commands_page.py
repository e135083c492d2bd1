"""Writes docs/commands.md from the commands' own help: python scripts/commands_page.py"""

import pathlib

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
    return f"## graphdoc {entry.name}\n\n```text\n{help_text(entry.name)}```\n"


def help_text(name: str) -> str:
    """Return a command's help, set in a fixed width."""
    root = click.Context(group.root, info_name="graphdoc", terminal_width=WIDTH, max_content_width=WIDTH)
    command = group.root.get_command(root, name)
    if command is None:
        raise KeyError(name)
    context = click.Context(
        command,
        info_name=name,
        parent=root,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )
    return command.get_help(context) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
