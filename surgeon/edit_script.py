"""A Python file of edits: ``def edit(model)`` changes the model, or returns another one."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from graphdoc.engine.errors import GraphdocError, ModelError, UsageError
from graphdoc.surgeon.edit_find import Place, places
from graphdoc.surgeon.reader import read_model
from graphdoc.surgeon.rules.base import use_count
from graphdoc.surgeon.schemas import required_inputs
from graphdoc.surgeon.validate import validate

FUNCTION = "edit"


def run_script(model: ir.Model, path: Path) -> ir.Model:
    """Call ``edit(model)`` of a Python file and return the model: what it returns, else the one it was given.

    The file is run as it is, with all that Python may do: run only files that you trust.

    Raises UsageError when the file is missing, is no Python, has no such function or calls sys.exit();
    ModelError when it fails, names the line, or leaves something else than a model that can be written.
    """
    model = _changed(_function(path), model, path)
    for place in places(model):
        _check_complete(place, model, path)
    validate(model)
    return model


def _check_complete(place: Place, model: ir.Model, path: Path) -> None:
    """Raise ModelError for values without a name and nodes without an input that they need."""
    unnamed = [value for value in (*place.graph.inputs, *place.graph.outputs) if not value.name]
    used = (value for node in place.graph for value in node.outputs if not value.name)
    if unnamed or any(use_count(value) for value in used):
        raise ModelError(
            f"{path.name} leaves a value of {place.title} without a name",
            where=str(path),
            next_step="give each input, each output and what nodes read a name of its own",
        )
    for node in place.graph:
        version = model.opset_imports.get(node.domain, 1)
        needed = required_inputs(node.domain, node.op_type, version)
        given = [value is not None for value in node.inputs]
        lacking = [index for index in needed if index >= len(given) or not given[index]]
        if lacking:
            raise ModelError(
                f"{path.name} leaves {node.op_type} '{node.name or node.outputs[0].name}' "
                f"without its input {lacking[0]}",
                where=str(path),
                next_step="give the node all inputs that its operator needs, or remove it",
            )


def _changed(function: Callable[[ir.Model], Any], model: ir.Model, path: Path) -> ir.Model:
    try:
        found = function(model)
    except GraphdocError:
        raise
    except (Exception, SystemExit) as error:
        raise _failure(path, error) from error
    if found is None:
        return model
    if isinstance(found, onnx.ModelProto):
        return read_model(found, None, external=False)
    if not isinstance(found, ir.Model):
        raise ModelError(
            f"edit(model) returned {type(found).__name__}, not a model",
            where=str(path),
            next_step="return the model, or nothing after changing it in place",
        )
    return found


def _function(path: Path) -> Callable[[ir.Model], Any]:
    try:
        text = path.read_text("utf-8")
        code = compile(text, str(path), "exec")
    except OSError as error:
        raise UsageError(
            f"cannot read '{path}': {(error.strerror or str(error)).lower()}",
            where=f"--script {path}",
            next_step=f"ls -l {path}",
        ) from error
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        raise UsageError(
            f"'{path}' is no Python: {error}",
            where=f"--script {path}",
            next_step=f"python -m py_compile {path}",
        ) from error
    names: dict[str, Any] = {"__name__": "__edit__", "__file__": str(path)}
    try:
        exec(code, names)  # noqa: S102 - running the user's own file is what --script is for
    except GraphdocError:
        raise
    except (Exception, SystemExit) as error:
        raise _failure(path, error) from error
    function = names.get(FUNCTION)
    if not callable(function):
        raise UsageError(
            f"'{path}' has no function edit(model)",
            where=f"--script {path}",
            next_step="write:  def edit(model): …",
        )
    found: Callable[[ir.Model], Any] = function
    return found


def _failure(path: Path, error: BaseException) -> GraphdocError:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = f", line {frames[-1].lineno}" if frames else ""
    kind = UsageError if isinstance(error, SystemExit) else ModelError
    return kind(
        f"{path.name} failed: {type(error).__name__}: {error}",
        where=f"{path}{line}",
        next_step="run again with --debug for the traceback",
    )
