"""The click group that knows its commands by name and imports each only when it is called."""

from importlib import import_module

import click

from graphdoc import __version__, overview


class LazyGroup(click.Group):
    """A group whose commands lie in ``graphdoc/commands/<name>.py`` as ``command``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the overview."""
        return overview.names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or None."""
        if cmd_name not in overview.names():
            return None
        command: click.Command = import_module(f"graphdoc.commands.{cmd_name}").command
        return command

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview."""
        formatter.write(overview.text() + "\n")


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="graphdoc")
def root() -> None:
    """Collects the commands."""
