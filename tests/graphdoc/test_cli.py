"""The command line's frame: overview, errors, exit codes. What each command does is tested beside it."""

import pathlib
import re
import signal
import subprocess
import sys
from subprocess import PIPE
from typing import Any

import click
import pytest

from graphdoc import cli, group, overview
from graphdoc.engine import errors
from tests import sources

COMMANDS = overview.names()
DOCUMENTS = ("README.md", *(f"docs/{path.name}" for path in sorted((sources.ROOT / "docs").glob("*.md"))))


def command(name: str) -> click.Command:
    found = group.root.get_command(click.Context(group.root), name)
    assert found is not None
    return found


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make ``graphdoc lint`` raise what a test wants."""

    def install(error: BaseException) -> None:
        @click.command("lint")
        def lint() -> None:
            raise error

        monkeypatch.setattr(group.LazyGroup, "get_command", lambda *_: lint)

    return install


def test_the_overview_lists_every_command() -> None:
    """Every module that holds a command stands in the overview, and the other way round."""
    modules = sources.python("graphdoc/commands")
    with_command = {m.path.stem for m in modules if "\ndef command(" in m.text}

    assert set(COMMANDS) == with_command


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command says what it does, and each of its options says what it is for."""
    assert cli.run([name, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    found = command(name)

    assert found.help
    assert " ".join(found.help.split("\n\n")[0].split()) in text
    assert [p.name for p in found.params if isinstance(p, click.Option) and not p.help] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_docs(name: str) -> None:
    """README or docs show how to call each command."""
    texts = [(sources.ROOT / path).read_text("utf-8") for path in DOCUMENTS]

    assert any(f"graphdoc {name}" in text for text in texts)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_commands_is_up_to_date(name: str, root: pathlib.Path) -> None:
    """docs/commands.md lists the options there are, with their help, and no others; ``make docs`` writes it.

    The layout is click's and changes with its version, so words are compared and not lines.
    """
    text = (root / "docs" / "commands.md").read_text("utf-8")
    section = " ".join(text.partition(f"\n## graphdoc {name}\n")[2].partition("\n## ")[0].split())
    found = command(name)
    inner = found.commands.values() if isinstance(found, click.Group) else ()
    options = [p for each in (found, *inner) for p in each.params if isinstance(p, click.Option)]
    flags = {flag for option in options for flag in (*option.opts, *option.secondary_opts)}

    listed = set(re.findall(r"(?<=[ ,])-{1,2}[a-z][a-z-]*(?=[ ,])", section.partition("Options:")[2]))
    assert listed - {"-h", "--help"} == flags
    assert [o.name for o in options if " ".join((o.help or "").split()) not in section] == []


def test_help_is_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """The overview goes to stdout and fits a terminal of 24 lines and 80 columns."""
    assert cli.run(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_the_overview_is_the_same_through_click(capsys: pytest.CaptureFixture[str]) -> None:
    """``graphdoc --help`` is printed without click; with click in the way the text is the same."""
    cli.run(["--help"])
    quick = capsys.readouterr().out
    with pytest.raises(SystemExit):
        group.root.main(["--help"], prog_name="graphdoc")

    assert capsys.readouterr().out == quick


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Usage: graphdoc COMMAND"),
        (["nonsense"], "No such command 'nonsense'"),
        (["--nonsense"], "No such option"),
        (["lint"], "Missing argument 'MODEL'"),
        (["lint", "m.onnx", "--nonsense"], "No such option"),
    ],
)
def test_misuse_is_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Misuse prints what is wrong on stderr and nothing on stdout."""
    assert cli.run(arguments) == 2
    shown = capsys.readouterr()

    assert message in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("cause", where="place", next_step="step"), 2),
        (errors.ModelError("cause", where="place", next_step="step"), 3),
        (errors.InputError("cause", where="place", next_step="step"), 3),
        (errors.RunnerError("cause", where="place", next_step="step"), 4),
        (errors.NothingComparedError("cause", where="place", next_step="step"), 5),
        (MemoryError(), 4),
        (PermissionError(13, "Permission denied", "m.onnx"), 3),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_failures_have_their_exit_codes(
    failing: Any, error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cause, where and next step, each on its line; no traceback."""
    failing(error)

    assert cli.run(["lint"]) == code
    shown = capsys.readouterr().err
    assert shown.strip().startswith("✗ ")
    assert "Traceback" not in shown
    if isinstance(error, errors.GraphdocError):
        assert shown == "✗ cause\n  where  place\n  next   step\n"


def test_debug_shows_the_traceback(failing: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """``--debug``, wherever it stands, adds the traceback."""
    failing(errors.ModelError("cause"))

    assert cli.run(["lint", "--debug"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_is_not_hidden(failing: Any) -> None:
    """What is not the user's fault stays an exception."""
    failing(ZeroDivisionError())

    with pytest.raises(ZeroDivisionError):
        cli.run(["lint"])


def test_ctrl_c_that_a_library_turns_into_another_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """NumPy, interrupted in the middle of its import, raises RecursionError: stopped all the same."""

    @click.command("lint")
    def lint() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RecursionError from None

    monkeypatch.setattr(group.LazyGroup, "get_command", lambda *_: lint)
    before = signal.getsignal(signal.SIGINT)

    assert cli.run(["lint"]) == 130
    assert capsys.readouterr().err == "✗ stopped\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_terminal_without_unicode_is_served(tmp_path: pathlib.Path) -> None:
    """In ASCII the overview and an error appear, with other signs, and without a traceback."""
    environment = {"PYTHONIOENCODING": "ascii", "PATH": "", "PYTHONUTF8": "0"}
    for arguments, code in ((["--help"], 0), (["lint", "none.onnx"], 3)):
        done = subprocess.run(
            [sys.executable, "-m", "graphdoc", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
        )
        assert done.returncode == code
        assert "Traceback" not in done.stderr
        assert (done.stdout + done.stderr).isascii()


def test_a_pipe_that_closes_ends_quietly() -> None:
    """``graphdoc env | head -1``: no traceback when the reader has enough."""
    first = subprocess.Popen([sys.executable, "-m", "graphdoc", "env"], stdout=PIPE, stderr=PIPE, text=True)
    assert first.stdout is not None
    first.stdout.close()

    assert first.communicate()[1] == ""
