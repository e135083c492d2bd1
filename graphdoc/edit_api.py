"""The Python side of ``graphdoc edit``: its edits and checks on a model in memory."""

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from graphdoc.editing import VERBS, edited
from graphdoc.engine.errors import UsageError
from graphdoc.surgeon.edit_find import nearest
from graphdoc.surgeon.edited import Edited
from graphdoc.surgeon.model import Loadable, Source, open_source


@dataclass(frozen=True, slots=True)
class EditedModel:
    """A model after edits. Truthy when its outputs are not wrong and nothing is left to repair.

    report: what was done, how it was checked, and how outputs differ although they must not.
    """

    model: ir.Model
    report: Edited

    def __bool__(self) -> bool:
        return bool(self.report)


def edit_model(
    model: Loadable | Source, edits: Iterable[tuple[str, str]], *, verify: bool = True
) -> EditedModel:
    """Return a model with edits applied in order; the original is not changed.

    edits: pairs of an option of ``graphdoc edit`` without its dashes and what it takes:
        ``[("free", "x.0=N"), ("rename", "x=image")]``; "" for options that take nothing. Where weights go is
        for ``graphdoc.save`` to say, so "external", "external-from" and "inline" make no difference here.
    verify: check types and shapes, load the result, and run it against the original where its outputs must
        be the same.

    Raises UsageError for an edit that does not exist or cannot be done; ModelError for a model that cannot
    be read, or a result that is not sound.
    """
    steps = list(edits)
    for verb, _ in steps:
        if verb not in VERBS:
            close = nearest(verb, list(VERBS))
            raise UsageError(
                f"there is no edit '{verb}'",
                next_step=f"did you mean {' or '.join(map(repr, close))}?"
                if close
                else "graphdoc edit --help",
            )
    session, report = edited(open_source(model), steps, verify=verify)
    return EditedModel(session.model, report)
