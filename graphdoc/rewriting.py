"""The Python side of ``graphdoc rewrite``: rules applied, and the result held against the original."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import onnx_ir as ir

from graphdoc.compare.verify import Verifier
from graphdoc.simplifying import check_lists
from graphdoc.surgeon.model import Loadable, Source, open_source
from graphdoc.surgeon.rewriting import RuleLike
from graphdoc.surgeon.rewriting import rewrite as apply_rules
from graphdoc.surgeon.simplified import Simplified
from graphdoc.surgeon.verification import Verification


def rewrite_model(
    model: Loadable | Source,
    rules: RuleLike | Iterable[RuleLike],
    *,
    verify: bool = True,
    keep: Sequence[str] = (),
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Simplified:
    """Return the model after rules were applied until none matches, and the report. Truthy when all is well.

    rules: rule classes or instances, Python files of rules, names or groups of rules that come along.
    verify: compare the outputs of original and result on inputs of many kinds; a rule that changes them is
    dropped and named. keep: globs over names of nodes and values that must survive.
    shapes: sizes of dynamic inputs to verify with.

    Raises UsageError for rules that cannot be used, ModelError for a model that cannot be read.
    """
    check_lists(keep=keep)
    source = open_source(model)
    check = None
    if verify:
        check = partial(_verify, Verifier(source, shapes=None if shapes is None else dict(shapes)))
    return apply_rules(source.model, rules, keep=keep, verify=check)


def _verify(verifier: Verifier, original: ir.Model, edited: ir.Model) -> Verification:
    return verifier.verify(edited)
