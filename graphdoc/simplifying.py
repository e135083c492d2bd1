"""The Python side of ``graphdoc simplify``: the result is held against the original first."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import onnx_ir as ir

from graphdoc.engine.errors import UsageError
from graphdoc.surgeon.model import Loadable, Source, open_source
from graphdoc.surgeon.reader import read_model
from graphdoc.surgeon.simplified import Simplified
from graphdoc.surgeon.simplify import MIB, Options
from graphdoc.surgeon.simplify import simplify as apply_all
from graphdoc.surgeon.tensors import detached
from graphdoc.surgeon.verification import Verification, Verify


def simplify(
    model: Loadable | Source,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    request: Sequence[str] = (),
    keep: Sequence[str] = (),
    max_growth: int = MIB,
    shapes: Mapping[str, tuple[int, ...]] | Iterable[str] | None = None,
    freeze: Sequence[str] = (),
    to_opset: int | None = None,
    inline: bool = False,
    verify: bool = True,
) -> Simplified:
    """Return a model with fewer nodes and the same outputs, and the report of what was done and refused.

    model: a path, bytes, ModelProto or onnx_ir model; not changed.
    only, skip: rules or groups of rules (docs/simplify.md). request: rules that do not run by default.
    keep: globs over names of nodes and values that must survive. max_growth: bytes that folding may add.
    shapes: sizes of inputs or symbols, ``{"x": (1, 3, 224, 224)}`` or ``["x=1x3x224x224"]``; the result is
        for these sizes alone. freeze: globs over inputs with a default value, which become constants.
    to_opset: the version of ai.onnx to convert to. inline: put the bodies of the model's functions in place
        of their calls.
    verify: run original and result on inputs of many kinds; a rule that changes an output is dropped.

    The result is truthy when no rule had to be dropped and the outputs agree.
    Raises UsageError for unknown rules, inputs and sizes; ModelError for a model that cannot be read.
    """
    check_lists(only=only, skip=skip, request=request, keep=keep, freeze=freeze)
    if not isinstance(max_growth, int):
        raise UsageError(f"max_growth is a number of bytes, not {max_growth!r}", next_step="max_growth=2**20")
    source = open_source(model)
    sizes = _sizes(shapes)
    options = Options(
        only=tuple(only),
        skip=tuple(skip),
        request=tuple(request),
        keep=tuple(keep),
        max_growth=max_growth,
        shapes=tuple(sorted(sizes.items())),
        freeze=tuple(freeze),
        to_opset=to_opset,
        inline=inline,
    )
    check = _verifier(source, sizes, to_opset) if verify else None
    return apply_all(source.model, options, check, fresh=_copies(source, used=verify))


def check_lists(**options: Sequence[str]) -> None:
    """Raise UsageError for a text where a list of texts belongs: it would be taken letter by letter."""
    for name, given in options.items():
        if isinstance(given, str):
            raise UsageError(f"{name} is a list of texts", next_step=f"{name}=[{given!r}]")


def _sizes(shapes: Mapping[str, tuple[int, ...]] | Iterable[str] | None) -> dict[str, tuple[int, ...]]:
    if not shapes:
        return {}
    if isinstance(shapes, Mapping):
        return dict(shapes)
    if isinstance(shapes, str):
        raise UsageError("shapes are a list of texts", next_step=f"shapes=[{shapes!r}]")
    from graphdoc.compare.inputs import parse_shapes

    return parse_shapes(shapes)


def _copies(source: Source, *, used: bool) -> Callable[[], ir.Model]:
    """Return what makes models to edit. A file is read again, which costs less than a copy.

    used: the source's own model is needed as the original; otherwise the first to ask gets it.
    """
    if source.path is None and not used:
        return partial(detached, source.model)
    first = [] if used else [source.model]

    def fresh() -> ir.Model:
        return first.pop() if first else read_model(source.proto, source.folder)

    return fresh


def _verifier(source: Source, sizes: dict[str, Any], opset: int | None) -> Verify:
    from graphdoc.compare.verify import Verifier

    verifier = Verifier(source, shapes=sizes or None, opset=opset)
    verifier.warm()

    def verify(original: ir.Model, edited: ir.Model) -> Verification:
        return verifier.verify(edited)

    return verify
