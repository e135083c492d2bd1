"""``graphdoc reduce``."""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphdoc.commands.common import THREADS, Finite, input_options, ops_option
from graphdoc.commands.targets import check_targets
from graphdoc.engine.errors import UsageError

if TYPE_CHECKING:
    from graphdoc.compare.reduce import Reduction, Setting
    from graphdoc.compare.reduce_part import Cut


@click.command("reduce")
@click.argument("model", type=click.Path())
@click.option("-o", "output", required=True, metavar="OUT.onnx", help="Write the smallest part that fails.")
@click.option(
    "--compare",
    "compare_",
    metavar="MODEL|RUNNER",
    help="What it differs from: another model with the same names, or a runner. [default: ort]",
)
@click.option("--runner", metavar="RUNNER", help="Runs MODEL. [default: engine; ort against another model]")
@click.option("--nan", is_flag=True, help="Look for NaN and Inf made of finite values.")
@click.option("--crash", is_flag=True, help="Look for what the runner stops with an error at.")
@click.option(
    "--check",
    metavar="CMD",
    help="A command that fails on MODEL; {} is the part's file, GRAPHDOC_INPUTS its inputs.",
)
@click.option(
    "--timeout",
    type=Finite(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds for one --check.",
)
@input_options
@ops_option
@click.option("--threads", type=THREADS, default=0, help="Threads of ONNX Runtime.")
def command(**options: Any) -> int:
    """Cut a failing model down to the few nodes that fail.

    Writes OUT.onnx, its inputs (.npz), a script that repeats the failure (.py) and a bug report (.md).
    Exit code 5 when the model does not fail.

    \b
      graphdoc reduce fp16.onnx -o part.onnx --compare fp32.onnx
      graphdoc reduce m.onnx -o part.onnx --compare ort --runner engine
      graphdoc reduce m.onnx -o part.onnx --nan --runner ort
      graphdoc reduce m.onnx -o part.onnx --check 'python try.py {}'
    """
    from graphdoc.compare.memory import bounded_memory

    _check_options(options)
    targets = _targets(options["output"])
    check_targets({f"-o ({path.suffix})": str(path) for path in targets}, reads=(options["model"],))
    setting = _setting(options)
    with bounded_memory((setting.ref, setting.test)):
        found = _reduce(setting, options)
    written = _write(found, targets, _command_line(options))
    from graphdoc.reports.reduction import reduction_lines

    click.echo("\n".join(reduction_lines(found, written)))
    return 0


_WAYS = ("compare_", "nan", "crash", "check")


def _check_options(options: dict[str, Any]) -> None:
    given = [f"--{name.rstrip('_')}" for name in _WAYS if options[name]]
    if len(given) > 1:
        raise UsageError(
            f"{given[0]} and {given[1]} cannot both be given", next_step="say one way of failing"
        )
    if not options["output"].endswith(".onnx"):
        raise UsageError(f"not an .onnx file: '{options['output']}'", where="-o", next_step="-o part.onnx")


def _targets(output: str) -> list[Path]:
    """Return the files that are written: model, inputs, script, report, expected outputs."""
    path = Path(output)
    names = (".onnx", ".npz", ".py", ".md", ".expected.npz")
    return [path.with_name(path.name.removesuffix(".onnx") + name) for name in names]


def _setting(options: dict[str, Any]) -> "Setting":
    from graphdoc.reducing import setting_for

    return setting_for(
        options["model"],
        options["compare_"] or None,
        options["runner"],
        options["inputs"],
        options["shapes"],
        options["seed"],
        options["threads"],
    )


def _reduce(setting: "Setting", options: dict[str, Any]) -> "Reduction":
    from graphdoc.reducing import reduced

    if options["check"]:
        with tempfile.TemporaryDirectory(prefix="graphdoc-reduce-") as folder:
            return reduced(setting, Check(options["check"], Path(folder), options["timeout"]))
    return reduced(setting, "nan" if options["nan"] else "crash" if options["crash"] else "mismatch")


class Check:
    """A user's command, run on one part at a time."""

    def __init__(self, text: str, folder: Path, timeout: float) -> None:
        self._words = shlex.split(text)
        self._folder = folder
        self._timeout = timeout
        if not self._words:
            raise UsageError("--check needs a command", next_step="--check 'python try.py {}'")

    def __call__(self, cut: "Cut") -> str:
        """Return how the command fails, "" when it passes."""
        import onnx

        from graphdoc.values import save_npz

        model, inputs = self._folder / "part.onnx", self._folder / "part.npz"
        onnx.save(cut.model, model)
        save_npz(inputs, cut.feeds)
        words = [word.replace("{}", str(model)) for word in self._words]
        if not any("{}" in word for word in self._words):
            words.append(str(model))
        try:
            done = subprocess.run(  # noqa: S603 - the command is what the user typed
                words,
                env={**os.environ, "GRAPHDOC_INPUTS": str(inputs)},
                capture_output=True,
                timeout=self._timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"the check takes more than {self._timeout:g} s"
        except OSError as error:
            raise UsageError(
                f"the check cannot be run: {error.strerror}: '{words[0]}'",
                where="--check",
                next_step="name a command that is there: --check 'python try.py {}'",
            ) from error
        return f"the check ends with exit code {done.returncode}" if done.returncode else ""


def _write(found: "Reduction", targets: list[Path], command_line: str) -> list[Path]:
    from graphdoc.reports.files import whole_file, write_text
    from graphdoc.reports.reduction import bug_report, script
    from graphdoc.values import save_npz

    model, inputs, python, report, expected = targets
    stem = model.name.removesuffix(".onnx")
    with whole_file(model) as file:
        file.write(found.cut.model.SerializeToString())
    save_npz(inputs, found.cut.feeds)
    write_text(script(found, stem), python)
    write_text(bug_report(found, stem, command_line), report)
    if found.failure.limit or found.expected:
        save_npz(expected, found.expected)
        return targets
    return targets[:4]


def _command_line(options: dict[str, Any]) -> str:
    """Return what was typed, for the report."""
    words = ["graphdoc", "reduce", options["model"], "-o", options["output"]]
    for name, option in (
        ("compare_", "--compare"),
        ("runner", "--runner"),
        ("check", "--check"),
        ("inputs", "--inputs"),
    ):
        words += [option, options[name]] if options[name] else []
    words += [f"--{name}" for name in ("nan", "crash") if options[name]]
    words += [word for shape in options["shapes"] for word in ("--shape", shape)]
    words += ["--seed", str(options["seed"])] if options["seed"] else []
    return shlex.join(words)
