"""The Python side of ``graphdoc compare``: one call, a result that is truthy when both sides agree."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

import onnx
import onnx_ir as ir

from graphdoc.compare.comparison import Options, compare, require_layers
from graphdoc.compare.inputs import Inputs, load_inputs, parse_shapes
from graphdoc.compare.inputs import make_inputs as inputs_for
from graphdoc.compare.ranking import PASSES
from graphdoc.compare.result import Comparison
from graphdoc.compare.target import Target
from graphdoc.compare.tolerances import Rule, rules_of
from graphdoc.engine.errors import UsageError
from graphdoc.engine.feeds import check_feeds
from graphdoc.reports.files import write_text
from graphdoc.reproduce import command_line
from graphdoc.surgeon.model import Source, open_source

Model = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model | Source
Feeds = Mapping[str, Any]


class ComparisonResult(Comparison):
    """A Comparison that can be written down in every form."""

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the page: one file that opens offline."""
        from graphdoc.reports.html import save_html

        save_html(self, path)

    def to_json(self) -> str:
        """Return the result as JSON (docs/json-schema.md)."""
        from graphdoc.reports.jsonform import to_json

        return to_json(self)

    def save_json(self, path: str | os.PathLike[str]) -> None:
        """Write the result as JSON."""
        write_text(self.to_json(), path)

    def to_markdown(self) -> str:
        """Return a review comment."""
        from graphdoc.reports.markdown import render_markdown

        return render_markdown(self)

    def save_markdown(self, path: str | os.PathLike[str]) -> None:
        """Write a review comment."""
        write_text(self.to_markdown(), path)

    def save_junit(self, path: str | os.PathLike[str]) -> None:
        """Write JUnit XML for a CI system."""
        from graphdoc.reports.junit import render_junit

        write_text(render_junit(self), path)

    def __str__(self) -> str:
        from graphdoc.reports.text import comparison_lines

        return comparison_lines(self, color=False, pipe=True)


def as_result(comparison: Comparison) -> ComparisonResult:
    """Return a comparison with the methods that write it down."""
    return ComparisonResult(**{f.name: getattr(comparison, f.name) for f in fields(Comparison)})


def compare_models(
    model: Model,
    test: Model | None = None,
    inputs: Feeds | str | os.PathLike[str] | None = None,
    *,
    ref: str = "ort",
    test_runner: str = "engine",
    taps: str | Iterable[str] = "all",
    rtol: float | None = None,
    atol: float | None = None,
    tolerances: Mapping[str, float] | Iterable[Rule] = (),
    shapes: Mapping[str, tuple[int, ...]] | Iterable[str] | None = None,
    seed: int = 0,
    threads: int = 0,
    memory: int | None = None,
    latency: bool = True,
    pictures: bool = True,
    truth: bool = False,
    noise: bool = False,
    rank: bool = False,
    passes: int = PASSES,
    command: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> ComparisonResult:
    """Compare two models, or one model on two runners, layer by layer.

    model, test: paths, bytes, ModelProtos or onnx_ir models; test None: the same model.
    ref, test_runner: who runs the model, side A, and who runs the test, side B.
    inputs: arrays by name, a file or folder of inputs, or None for seeded ones that suit the model.
    taps: "all", "outputs" or globs over names of values and nodes.
    rtol, atol: a tolerance of your own, element by element; without one, limits follow from dtype, length
        of sums and measurement.
    tolerances: the largest error (RMS(B − A) ÷ RMS(A)) of some layers, ``{"encoder.*": 1e-3,
        "op:Softmax": 1e-4, "dtype:float16": 1e-2}``; see :mod:`graphdoc.compare.tolerances` for which counts.
    shapes: sizes of dynamic inputs, ``{"x": (1, 3, 224, 224)}`` or ``["x=1x3x224x224"]``.
    memory: bytes that tapped values may take.
    latency, pictures: time whole runs too; draw histograms and the like of a few layers.
    truth: hold every layer of both sides against float64. noise: run A against itself with other threads and
        optimisations; what that moves counts as rounding.
    rank, passes: rank layers by what their own errors do to the outputs, with so many reverse passes.

    Raises ModelError, InputError, UsageError, RunnerError, NothingComparedError.
    """
    _check_saved((ref, test_runner), inputs)
    target_a = Target(open_source(model))
    target_b = target_a if test is None else Target(open_source(test))
    options = Options(
        ref=ref,
        test=test_runner,
        taps=(taps,) if isinstance(taps, str) else tuple(taps),
        rtol=rtol,
        atol=atol,
        tolerances=_rules(tolerances),
        threads=threads,
        seed=seed,
        memory=memory,
        latency=latency,
        pictures=pictures,
        truth=truth,
        noise=noise,
        rank=rank,
        passes=passes,
        model=_as_typed(model),
        suspect=_as_typed(test),
    )
    options = replace(options, command=command or command_line(model, test, options, inputs, shapes))
    result = compare(
        target_a, target_b, lambda: resolve_inputs(target_a, inputs, shapes, seed), options, progress
    )
    require_layers(result)
    return as_result(result)


def _rules(tolerances: Mapping[str, float] | Iterable[Rule]) -> tuple[Rule, ...]:
    if isinstance(tolerances, Mapping):
        return rules_of(tolerances, "the call's tolerance")
    return tuple(tolerances)


def _check_saved(runners: Iterable[str], inputs: Any) -> None:
    saved = [name for name in runners if name.startswith("saved:")]
    if saved and inputs is None:
        raise UsageError(
            "saved values follow from inputs, and none are given",
            where=saved[0],
            next_step="--inputs FILE   (what  polygraphy run --save-inputs  wrote, or an .npz)",
        )


def make_inputs(
    model: Model, *, shapes: Mapping[str, tuple[int, ...]] | Iterable[str] | None = None, seed: int = 0
) -> Inputs:
    """Return seeded inputs that suit a model, as a comparison without ``inputs`` uses them.

    model: a path, bytes, ModelProto or onnx_ir.Model. shapes: as for :func:`compare_models`.

    Raises ModelError, UsageError.
    """
    return resolve_inputs(Target(open_source(model)), None, shapes, seed)


def _as_typed(model: Model | None) -> str:
    return os.fspath(model) if isinstance(model, str | os.PathLike) else ""


def resolve_inputs(
    target: Target,
    inputs: Feeds | str | os.PathLike[str] | None,
    shapes: Mapping[str, tuple[int, ...]] | Iterable[str] | None,
    seed: int,
) -> Inputs:
    """Return the inputs of a run: given arrays, a file, or seeded ones. Raises InputError, UsageError."""
    sizes = dict(shapes) if isinstance(shapes, Mapping) else parse_shapes(shapes or ())
    if inputs is None:
        return inputs_for(target.model, shapes=sizes, seed=seed)
    if isinstance(inputs, Mapping):
        check_feeds(target.model, inputs)
        return Inputs(dict(inputs), dict.fromkeys(inputs, "given in Python"), None)
    return load_inputs(target.model, inputs, shapes=sizes, seed=seed)
