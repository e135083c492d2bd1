"""``graphdoc edit``: what each option means, and the edits applied in the order in which they were given."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from graphdoc.engine.errors import InputError, UsageError
from graphdoc.surgeon import edit
from graphdoc.surgeon.edit_find import Index, places, split_at
from graphdoc.surgeon.edit_merge import Merged
from graphdoc.surgeon.edit_names import looks_like_number
from graphdoc.surgeon.edit_repair import Repairs
from graphdoc.surgeon.edit_text import NodeText, parse_node
from graphdoc.surgeon.edited import Edited
from graphdoc.surgeon.layout import THRESHOLD, Layout
from graphdoc.surgeon.model import Source, load, open_source, save
from graphdoc.surgeon.rules.base import counts
from graphdoc.surgeon.stubs import is_stripped

Lines = list[str]


@dataclass(slots=True)
class Session:
    """A model while it is edited.

    location, threshold: where the weights go when it is saved (surgeon/layout.py); None: as they lie.
    left: what could not be repaired.
    inputs, outputs: the original's names, in the order in which the model has them now.
    scripted: whether a script had its hands in it.
    """

    model: ir.Model
    location: str | None = None
    threshold: int = THRESHOLD
    left: Lines = field(default_factory=list)
    inputs: Lines = field(default_factory=list)
    outputs: Lines = field(default_factory=list)
    scripted: bool = False

    def __post_init__(self) -> None:
        self.inputs = [str(value.name) for value in self.model.graph.inputs]
        self.outputs = [str(value.name) for value in self.model.graph.outputs]


def _pair(text: str, option: str, known: Callable[[str], bool] = lambda name: False) -> tuple[str, str]:
    """Return what stands left and right of "=", which names may hold too."""
    found = split_at(text, "=", known)
    if found is None or not found[0].strip():
        raise UsageError(f"'{text}' has no '='", where=f"{option} {text}", next_step=f"write {option} NAME=…")
    return found[0].strip(), found[1].strip()


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _list(text: str, known: Callable[[str], bool]) -> list[str]:
    """Return names between commas; a name may hold commas itself if the whole of it is known."""
    if known(text.strip()):
        return [text.strip()]
    names: list[str] = []
    pending = ""
    for part in text.split(","):
        pending = f"{pending},{part}" if pending else part
        if known(pending.strip()) or (not known(part.strip()) and pending == part):
            names.append(pending.strip())
            pending = ""
    return [name for name in [*names, pending.strip()] if name]


def _fed(model: ir.Model) -> list[str]:
    """Return the inputs that must be fed: models of IR version 3 list their weights as inputs too."""
    return [str(value.name) for value in model.graph.inputs if not value.is_initializer()]


def _extract(session: Session, text: str) -> Lines:
    index = Index(session.model)
    known = index.has_value
    cuts = [i for i, sign in enumerate(text) if sign == ":"]
    ways = [(_list(text[:cut], known), _list(text[cut + 1 :], known)) for cut in cuts]
    if not ways:
        raise UsageError(
            f"'{text}' does not say where to end",
            where=f"--extract {text}",
            next_step="write --extract IN,…:OUT,…",
        )
    right = [way for way in ways if all(map(known, (*way[0], *way[1])))]
    inputs, outputs = right[0] if right else ways[-1]
    before = sum(1 for _ in session.model.graph)
    session.model = edit.extract(session.model, inputs or None, outputs or None)
    after = sum(1 for _ in session.model.graph)
    ends = ", ".join(str(v.name) for v in session.model.graph.outputs)
    starts = ", ".join(_fed(session.model))
    return [f"{starts or 'nothing'} → {ends}: {after} of {before} nodes"]


def _is_value(session: Session) -> Callable[[str], bool]:
    """Return whether a name means a value of the model as it is now; the names are read when one is asked."""
    index = cache(lambda: Index(session.model))
    return lambda name: index().has_value(name)


def _is_node(session: Session) -> Callable[[str], bool]:
    """The same for nodes."""
    index = cache(lambda: Index(session.model))
    return lambda name: index().has_node(name)


def _rename(session: Session, text: str) -> Lines:
    old, new = _pair(text, "--rename", _is_value(session))
    edit.rename_values(session.model, {old: new})
    return [f"{old} → {new}"]


def _rename_all(session: Session, texts: Sequence[str]) -> list[Lines] | None:
    """Rename at once what would come out the same one by one: no name is both an old and a new one."""
    known = _is_value(session)
    pairs = [_pair(text, "--rename", known) for text in texts]
    names = [name.strip() for pair in pairs for name in pair]
    if len(set(names)) < len(names):
        return None
    edit.rename_values(session.model, dict(pairs))
    return [[f"{old} → {new}"] for old, new in pairs]


def _rename_node(session: Session, text: str) -> Lines:
    old, new = _pair(text, "--rename-node", _is_node(session))
    edit.rename_node(session.model, old, new)
    return [f"{old} → {new}"]


def _rename_dim(session: Session, text: str) -> Lines:
    old, new = _pair(text, "--rename-dim")
    edit.rename_dim(session.model, old, new)
    return [f"{old} → {new}"]


def _prefix(session: Session, text: str) -> Lines:
    edit.add_prefix(session.model, text)
    return [f"{text} before every name"]


def _output(session: Session, text: str) -> Lines:
    return [f"{edit.add_output(session.model, text).name} comes out"]


def _remove_output(session: Session, text: str) -> Lines:
    edit.remove_output(session.model, text)
    return [text]


def _remove_input(session: Session, text: str) -> Lines:
    edit.remove_input(session.model, text)
    return [text]


def _order(kind: str) -> Callable[[Session, str], Lines]:
    def apply(session: Session, text: str) -> Lines:
        before = dict(zip(getattr(session.model.graph, kind), getattr(session, kind), strict=False))
        edit.reorder(session.model, **{kind: _list(text, _is_value(session))})
        values = list(getattr(session.model.graph, kind))
        setattr(session, kind, [before.get(value, str(value.name)) for value in values])
        shown = _fed(session.model) if kind == "inputs" else [str(value.name) for value in values]
        return [", ".join(shown)]

    return apply


def _is_input(session: Session) -> Callable[[str], bool]:
    return {str(value.name) for value in session.model.graph.inputs}.__contains__


def parse_dims(text: str) -> list[int | str | None]:
    """Return the dims of ``Nx3x224`` or ``batch,3,?``: sizes, symbols, None for unknown; "" is a scalar."""
    parts = text.split(",") if "," in text else text.replace("×", "x").split("x")
    dims: list[int | str | None] = []
    for part in parts if text.strip() else ():
        word = part.strip()
        if not word:
            raise UsageError(
                f"not a shape: '{text}'",
                next_step="write Nx3x224x224, or max_len,3 where a symbol holds an x",
            )
        if looks_like_number(word) and not word.isdecimal():
            raise UsageError(
                f"'{word}' is no size",
                where=text,
                next_step="write 0 or more, a symbol, or ? for an open size",
            )
        dims.append(int(word) if word.isdecimal() else None if word == "?" else word)
    return dims


def _repaired(session: Session, head: str, repairs: Repairs) -> Lines:
    session.left += repairs.left
    return [head, *(f"repaired {line}" for line in repairs.done)]


def _set_shape(session: Session, text: str) -> Lines:
    name, shape = _pair(text, "--set-shape", _is_input(session))
    repairs = edit.set_shape(session.model, name, parse_dims(shape))
    return _repaired(session, f"{name} is {shape or 'a scalar'}", repairs)


def _freeze(session: Session, text: str) -> Lines:
    name, size = _pair(text, "--freeze")
    if not size.isdecimal():
        raise UsageError(f"'{size}' is no size", where=f"--freeze {text}", next_step="write --freeze N=1")
    return _repaired(session, f"{name} is {size}", edit.freeze(session.model, {name: int(size)}))


def _free(session: Session, text: str) -> Lines:
    name, symbol = _pair(text, "--free")
    repairs = edit.free(session.model, name, symbol)
    return _repaired(session, f"{name} takes any size, {symbol}", repairs)


def _set_dtype(session: Session, text: str) -> Lines:
    name, dtype = _pair(text, "--set-dtype", _is_value(session))
    edit.set_dtype(session.model, name, dtype)
    return [f"{name} is {dtype}"]


def _to_input(session: Session, text: str) -> Lines:
    return [f"{edit.to_input(session.model, text).name} must be fed"]


def _array(path: str, option: str) -> np.ndarray[Any, Any]:
    """Return the array of an .npy file. Raises InputError when there is none."""
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"cannot read an array from '{path}': {str(error) or type(error).__name__}",
            where=option,
            next_step="save it with numpy.save('w.npy', array)",
        ) from error
    if not isinstance(found, np.ndarray):
        raise InputError(f"'{path}' holds several arrays", where=option, next_step="save one with numpy.save")
    return found


def _to_initializer(session: Session, text: str) -> Lines:
    name, path = _pair(text, "--to-initializer", _is_value(session))
    edit.to_initializer(session.model, name, _array(path, f"--to-initializer {text}"))
    return [f"{name} holds {path}"]


def _set_initializer(session: Session, text: str) -> Lines:
    name, path = _pair(text, "--set-initializer", _is_value(session))
    edit.set_initializer(session.model, name, _array(path, f"--set-initializer {text}"))
    return [f"{name} holds {path}"]


def _with_inputs(node: NodeText, option: str, text: str) -> NodeText:
    if not node.inputs and not node.outputs:
        raise UsageError(f"'{text}' names no values", where=f"{option} {text}", next_step="write y = Relu(x)")
    return node


def _add(session: Session, text: str) -> Lines:
    node = _with_inputs(parse_node(text), "--add", text)
    made = edit.add_node(
        session.model,
        node.op,
        node.inputs,
        node.outputs or 1,
        attributes=node.attributes,
        domain=node.domain,
        name=node.name,
    )
    return [f"{node.op} makes {', '.join(str(value.name) for value in made.outputs)}"]


def _insert(session: Session, text: str) -> Lines:
    node = _with_inputs(parse_node(text), "--insert", text)
    source = next((item for item in node.inputs if isinstance(item, str)), None)
    if source is None or len(node.outputs) > 1:
        raise UsageError(
            f"'{text}' does not say after which value",
            where=f"--insert {text}",
            next_step="write y = Clip(x, 0.0, 6.0)",
        )
    made = edit.insert(
        session.model,
        source,
        node.op,
        node.inputs,
        attributes=node.attributes,
        domain=node.domain,
        name=node.name,
        output=node.outputs[0] if node.outputs else "",
    )
    return [f"{node.op} after {source} makes {made.outputs[0].name}"]


def _replace(session: Session, text: str) -> Lines:
    node = parse_node(text)
    if not node.outputs:
        raise UsageError(
            f"'{text}' names no outputs", where=f"--replace {text}", next_step="write y = Gelu(x)"
        )
    before = sum(1 for _ in session.model.graph.all_nodes())
    edit.replace(
        session.model,
        node.outputs,
        node.op,
        node.inputs,
        attributes=node.attributes,
        domain=node.domain,
        name=node.name,
    )
    gone = before + 1 - sum(1 for _ in session.model.graph.all_nodes())
    return [f"{', '.join(node.outputs)} by {node.op}, in place of {gone} node{'s' * (gone != 1)}"]


def _remove(session: Session, text: str) -> Lines:
    edit.remove_node(session.model, text)
    return [text]


def _bypass(session: Session, text: str) -> Lines:
    edit.bypass(session.model, text)
    return [text]


def _set_attribute(session: Session, text: str) -> Lines:
    node, assignment = split_at(text, ":", _is_node(session)) or (text, "")
    found = parse_node(f"X<{assignment}>").attributes if assignment else {}
    if len(found) != 1:
        raise UsageError(
            f"'{text}' sets no attribute",
            where=f"--set-attr {text}",
            next_step="write --set-attr NODE:axis=1",
        )
    for name, value in found.items():
        edit.set_attribute(session.model, node, name, value)
    return [text]


def _merged(session: Session, merged: Merged) -> Lines:
    session.model = merged.model
    renamed = list(merged.renamed.items())
    lines = [f"renamed {old} → {new}" for old, new in renamed[:3]]
    more = [f"renamed {len(renamed) - 3} more"] if len(renamed) > 3 else []
    return [*lines, *more, *(f"converted the {line}" for line in merged.converted)]


def _merge(session: Session, text: str) -> Lines:
    return [text, *_merged(session, edit.merge(session.model, load(text)))]


def _chain(session: Session, text: str) -> Lines:
    path, colon, pairs = text.partition(":")
    if not Path(path).exists() and Path(text).exists():
        path, colon, pairs = text, "", ""
    known = _is_value(session)
    connections = dict(_pair(pair, "--chain", known) for pair in _names(pairs)) if colon else None
    return [text, *_merged(session, edit.chain(session.model, load(path), connections))]


def _external(session: Session, text: str) -> Lines:
    session.location = text
    return [f"weights go to {text}"]


_UNITS = {"": 1, "K": 1000, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def parse_bytes(text: str) -> int:
    """Return a number of bytes: ``0``, ``4096``, ``1KiB``, ``2MB``. Raises UsageError."""
    found = re.fullmatch(r"\s*(\d+)\s*([KMG]I?)?B?\s*", text.upper())
    if found is None:
        raise UsageError(
            f"not a size: '{text}'",
            where=f"--external-from {text}",
            next_step="write --external-from 1KiB",
        )
    return int(found[1]) * _UNITS[found[2] or ""]


def _threshold(session: Session, text: str) -> Lines:
    session.threshold = parse_bytes(text)
    return [f"weights below {text} stay in the model"]


def _inline(session: Session, text: str) -> Lines:
    session.location = ""
    return ["weights go into the model"]


def _fold(session: Session, text: str) -> Lines:
    folded = edit.fold(session.model)
    return [f"{len(folded)} nodes computed once"]


def _cleanup(session: Session, text: str) -> Lines:
    found = edit.cleanup(session.model)
    return [
        f"nothing needed {found.nodes} nodes, {found.initializers} weights, {len(found.functions)} functions"
    ]


def _sort(session: Session, text: str) -> Lines:
    edit.toposort(session.model)
    return ["each node comes after what it reads"]


def _strip(session: Session, text: str) -> Lines:
    edit.strip(session.model, _names(text))
    return [text]


def _number(text: str, option: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"'{text}' is no version", where=f"{option} {text}", next_step=f"write {option} 17")
    return int(text)


def _opset(session: Session, text: str) -> Lines:
    converted = edit.convert_opset(session.model, _number(text, "--opset"))
    return [
        f"{text}, {'through the version converter' if converted else 'all operators are the same in both'}"
    ]


def _ir_version(session: Session, text: str) -> Lines:
    edit.set_ir_version(session.model, _number(text, "--ir-version"))
    return [text]


def _meta(session: Session, text: str) -> Lines:
    key, value = _pair(text, "--meta")
    edit.set_metadata(session.model, key, value or None)
    return [f"{key} is '{value}'" if value else f"{key} is gone"]


def _script(session: Session, text: str) -> Lines:
    session.model = edit.run_script(session.model, Path(text))
    session.scripted = True
    return [text]


@dataclass(frozen=True, slots=True)
class Verb:
    """An option of the command.

    same: the outputs do not change, for inputs that both models take.
    """

    apply: Callable[[Session, str], Lines]
    same: bool = False


VERBS: Mapping[str, Verb] = {
    "extract": Verb(_extract),
    "rename": Verb(_rename, same=True),
    "rename-node": Verb(_rename_node, same=True),
    "rename-dim": Verb(_rename_dim, same=True),
    "prefix": Verb(_prefix, same=True),
    "output": Verb(_output),
    "remove-output": Verb(_remove_output),
    "remove-input": Verb(_remove_input),
    "order-inputs": Verb(_order("inputs"), same=True),
    "order-outputs": Verb(_order("outputs"), same=True),
    "set-shape": Verb(_set_shape, same=True),
    "freeze": Verb(_freeze, same=True),
    "free": Verb(_free, same=True),
    "set-dtype": Verb(_set_dtype),
    "to-input": Verb(_to_input),
    "to-initializer": Verb(_to_initializer),
    "set-initializer": Verb(_set_initializer),
    "add": Verb(_add, same=True),
    "insert": Verb(_insert),
    "replace": Verb(_replace),
    "remove": Verb(_remove, same=True),
    "bypass": Verb(_bypass),
    "set-attr": Verb(_set_attribute),
    "merge": Verb(_merge),
    "chain": Verb(_chain),
    "external": Verb(_external, same=True),
    "external-from": Verb(_threshold, same=True),
    "inline": Verb(_inline, same=True),
    "fold": Verb(_fold, same=True),
    "cleanup": Verb(_cleanup, same=True),
    "sort": Verb(_sort, same=True),
    "strip": Verb(_strip, same=True),
    "opset": Verb(_opset, same=True),
    "ir-version": Verb(_ir_version, same=True),
    "meta": Verb(_meta, same=True),
    "script": Verb(_script),
}


_PATHS = frozenset({"script", "merge", "chain", "to-initializer", "set-initializer"})
"""Options that take paths, which may hold any bytes; all other texts end in the model."""


def _check_text(verb: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"'{text}' is no UTF-8, and ONNX models hold nothing else",
            where=f"--{verb}",
            next_step="write it in UTF-8",
        ) from error


def apply(session: Session, edits: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Apply edits in order; return (verb, what was done), a row for each line.

    Raises GraphdocError of the first edit that cannot be done.
    """
    rows: list[tuple[str, str]] = []
    for verb, group in groupby(edits, key=lambda item: item[0]):
        texts = [text for _, text in group]
        if verb not in _PATHS:
            for text in texts:
                _check_text(verb, text)
        for first, *rest in _apply(session, verb, texts):
            rows += [(verb, first), *(("", line) for line in rest)]
    return rows


def _apply(session: Session, verb: str, texts: Sequence[str]) -> Iterable[Lines]:
    """Apply one verb several times; each reads all names of the model, so many renames are done at once."""
    if verb == "rename" and len(texts) > 1:
        done = _rename_all(session, texts)
        if done is not None:
            return done
    return [VERBS[verb].apply(session, text) for text in texts]


def run(path: str, out: str, edits: Iterable[tuple[str, str]], *, verify: bool = True) -> Edited:
    """Edit a file and write the result, all of it or nothing; nothing is written when the outputs are wrong.

    edits: (verb, text) in order. Raises GraphdocError when an edit cannot be done or the result is not sound.
    """
    session, result = edited(open_source(path), edits, verify=verify)
    if not result.wrong:
        layout = None if session.location is None else Layout(session.location, session.threshold)
        save(session.model, out, layout=layout)
    return replace(result, out=Path(out).name)


def edited(
    source: Source, edits: Iterable[tuple[str, str]], *, verify: bool = True
) -> tuple[Session, Edited]:
    """Return a model with edits applied to a copy of it, and what was done.

    Raises GraphdocError as :func:`run` does.
    """
    steps = list(edits)
    session = Session(edit.copy_model(source.model))
    if not steps:
        raise UsageError("no edits are given", next_step="graphdoc edit --help")
    before = _count(session.model)
    rows = apply(session, steps)
    checked = None
    if verify:
        from graphdoc.editing_check import check_edited, check_part  # opens runners

        if [verb for verb, _ in steps] == ["extract"]:
            checked = check_part(source, session.model)
        else:
            checked = check_edited(source, session, same=all(VERBS[verb].same for verb, _ in steps))
    result = Edited(
        source.name,
        "",
        tuple(rows),
        before,
        _count(session.model),
        "" if checked is None else _said(checked.text, session.model),
        "" if checked is None else checked.wrong,
        tuple(dict.fromkeys(session.left)),
        checked is not None and checked.doubtful,
    )
    return session, result


def _said(text: str, model: ir.Model) -> str:
    return f"{text}; zeros stood in place of the stripped weights" if is_stripped(model) else text


def _count(model: ir.Model) -> int:
    return sum(counts(node) for place in places(model) for node in place.graph)
