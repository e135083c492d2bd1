"""Why an operator failed, in its own terms: which of its inputs does not fit, and what was expected.

What an operator says itself is told as it stands. What an array library says of its arrays is replaced: by
the first size that contradicts the operator's signature, or the first dtype that its schema does not allow.
"""

import dis
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import onnx
import onnx_ir as ir

from graphdoc.engine.ops.signatures import BATCH_FIRST, BROADCAST, INDEXED, SIGNATURES

VAGUE = "its inputs do not fit together, or a number in them is out of range"
"""What is said when nothing tells which input is wrong; their shapes follow."""

_RAISE = dis.opmap["RAISE_VARARGS"]
_LIBRARIES = ("numpy", "cupy", "ml_dtypes", "onnx")


def reason(node: ir.Node, run: Any, arguments: Sequence[Any], error: Exception) -> str:
    """Return in one line why a node failed; ``run`` is its bound operator, ``arguments`` its inputs."""
    text = str(error).strip()
    if isinstance(error, MemoryError):
        return text or "Unable to allocate memory"  # NumPy says how much; Python itself says nothing
    if text and _deliberate(error):
        return text
    names = input_names(node, run)
    try:
        found = next(_complaints(node, run, names, arguments), "")
    except (AttributeError, IndexError, TypeError, ValueError):  # inputs too odd to be looked at
        found = ""
    return found or VAGUE


def _deliberate(error: Exception) -> bool:
    """Whether a ``raise`` of an operator made the error, not a library it called."""
    trace = error.__traceback__
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code.co_code
    library = str(trace.tb_frame.f_globals.get("__name__", "")).split(".")[0] in _LIBRARIES
    return code[trace.tb_lasti] == _RAISE and not library


def input_names(node: ir.Node, run: Any) -> list[str]:
    """Return the specification's name of each input of a node, or the one its operator's function has."""
    schema = _schema(node, run)
    if schema is not None and schema.inputs:
        formal = [each.name for each in schema.inputs]
    elif isinstance(run, partial):
        placed = getattr(run.func, "row", None)  # on a card the function stands behind one that moves arrays
        code = getattr(run.func if placed is None else placed.evaluate, "__code__", None)
        formal = [] if code is None else list(code.co_varnames[1 : code.co_argcount])
    else:
        formal = []
    count = len(node.inputs)
    more = formal[-1] if formal else "input"
    return [*formal[:count], *(f"{more} {place}" for place in range(len(formal), count))]


def _schema(node: ir.Node, run: Any) -> Any:
    """Return ONNX's schema of a node's operator in the model's version, None when there is none."""
    version = run.args[0].version if isinstance(run, partial) and run.args else node.version
    try:
        domain = "" if node.domain == "ai.onnx" else node.domain
        return onnx.defs.get_schema(node.op_type, version or onnx.defs.onnx_opset_version(), domain)
    except onnx.defs.SchemaError:
        return None


def _complaints(node: ir.Node, run: Any, names: list[str], arguments: Sequence[Any]) -> Iterator[str]:
    yield from unlike_dtypes(_schema(node, run), names, arguments)
    yield from _foreign_dtypes(node, _schema(node, run), names, arguments)
    shapes = [getattr(value, "shape", None) for value in arguments]
    yield from _sizes(signature_of(node), names, shapes)
    if node.op_type in BROADCAST and node.op_type != "Expand":
        yield from _broadcast(names, shapes)
    rule = _RULES.get(node.op_type)
    yield from _axes(node, run, names, arguments)
    if rule is not None and None not in shapes[:2]:
        yield from rule(node, names, arguments)
    for name, shape in zip(names, shapes, strict=True):
        if shape is not None and 0 in shape:
            yield f"{name} is empty, its shape {_text(shape)}"


def _axes(node: ir.Node, run: Any, names: Sequence[str], arguments: Sequence[Any]) -> Iterator[str]:
    """Yield a complaint where an attribute or an input names an axis that the first input does not have."""
    first = getattr(arguments[0], "shape", None) if arguments else None
    inputs = {n: x.reshape(-1).tolist() for n, x in zip(names, arguments, strict=True) if _lists_axes(n, x)}
    given = {key: node.attributes[key].value for key in ("axis", "axes") if key in node.attributes}
    usual = getattr(getattr(run, "func", None), "__kwdefaults__", None) or {}
    for key in ("axis", "axes"):
        value = inputs.get(key, given.get(key, usual.get(key)))
        axes = [value] if isinstance(value, int) else list(value or ())
        wrong = [axis for axis in axes if not _exists(axis, first)]
        if wrong:
            yield f"axis {wrong[0]} does not fit {names[0]} of shape {_text(first or ())}"


def _lists_axes(name: str, value: Any) -> bool:
    return name in ("axis", "axes") and hasattr(value, "dtype") and value.dtype.kind in "iu"


def _exists(axis: int, shape: Sequence[int] | None) -> bool:
    return shape is None or -len(shape) <= axis < len(shape)


# ---- dtypes -------------------------------------------------------------------------------------------


def unlike_dtypes(schema: Any, names: Sequence[str], arguments: Sequence[Any]) -> Iterator[str]:
    """Yield a complaint for each input whose dtype is not the one of an input of the same type variable."""
    if schema is None:
        return
    first: dict[str, tuple[str, Any]] = {}
    for name, value, formal in zip(names, arguments, _formals(schema, len(names)), strict=True):
        dtype = getattr(value, "dtype", None)
        if dtype is None or formal is None or "(" in formal.type_str or not formal.is_homogeneous:
            continue
        before, known = first.setdefault(formal.type_str, (name, dtype))
        if dtype is not known and dtype != known:
            yield f"{name} is {_dtype(dtype)} and {before} {_dtype(known)}; both must have one type"


def _formals(schema: Any, count: int) -> list[Any]:
    """Return what a schema says of each of ``count`` inputs."""
    formal = list(schema.inputs)
    return [formal[min(place, len(formal) - 1)] if formal else None for place in range(count)]


def unlike_inputs(node: ir.Node, run: Any, arguments: Sequence[Any]) -> str:
    """Return the first complaint of unlike_dtypes about a node, "" when there is none."""
    return next(unlike_dtypes(_schema(node, run), input_names(node, run), arguments), "")


def _foreign_dtypes(
    node: ir.Node, schema: Any, names: Sequence[str], arguments: Sequence[Any]
) -> Iterator[str]:
    if schema is None:
        return
    for name, value, formal in zip(names, arguments, _formals(schema, len(names)), strict=True):
        allowed = sorted(t[7:-1] for t in formal.types if t.startswith("tensor(")) if formal else []
        dtype = getattr(value, "dtype", None)
        if dtype is not None and allowed and _dtype(dtype) not in {_WORDS.get(t, t) for t in allowed}:
            few = ", ".join(_WORDS.get(t, t) for t in allowed[:6]) + (" …" if len(allowed) > 6 else "")
            yield f"{name} is {_dtype(dtype)}; {node.op_type} takes {few} there"


_WORDS = {"float": "float32", "double": "float64"}
"""Names of types in schemas, where they are not those of NumPy."""


def _dtype(dtype: Any) -> str:
    return "string" if dtype.kind == "O" else str(dtype)


# ---- sizes --------------------------------------------------------------------------------------------


def signature_of(node: ir.Node) -> str:
    """Return the letters of an operator's sizes, "" when none are written down."""
    layout = node.attributes.get("layout")
    first = layout is not None and layout.value == 1
    return (BATCH_FIRST if first else SIGNATURES).get(node.op_type, SIGNATURES.get(node.op_type, ""))


def _sizes(signature: str, names: Sequence[str], shapes: Sequence[Any]) -> Iterator[str]:
    """Yield a complaint for the first input whose sizes contradict the letters."""
    known: dict[str, tuple[int, str]] = {}
    for entry, name, shape in zip(signature.split("; ") if signature else (), names, shapes, strict=False):
        formal, *marks = entry.split(" ")
        if shape is None or (formal.endswith("?") and prod(shape) == 1):
            continue
        if marks == ["()"]:
            if prod(shape) != 1:
                yield f"{name} has shape {_text(shape)}; one element is expected"
            continue
        plain = [mark for mark in marks if mark != "*"]
        if len(shape) < len(plain) or ("*" not in marks and len(shape) != len(plain)):
            axes = f"{len(plain)} axes{' or more' if '*' in marks else ''}"
            yield f"{name} has shape {_text(shape)}; {axes} are expected{_letters(marks)}"
            return
        for mark, size in zip(plain, shape, strict=False):
            if not _fits(mark, size, name, known):
                yield _contradiction(name, shape, marks, known)
                return


def _letters(marks: Sequence[str]) -> str:
    words = [{"*": "…", "_": "any"}.get(mark, mark) for mark in marks]
    return f" ({', '.join(words)})" if any(w.isalpha() and w != "any" for w in words) else ""


def _split(mark: str) -> tuple[int, str]:
    """Return the factor and the letter of a mark; no letter where it is a number."""
    digits = "".join(c for c in mark if c.isdigit())
    return int(digits or 1), mark.removeprefix(digits)


def _fits(mark: str, size: int, name: str, known: dict[str, tuple[int, str]]) -> bool:
    """Whether a size is what a mark says; a letter that is new takes its size from it."""
    factor, letter = _split(mark)
    if letter == "_":
        return True
    if not letter:
        return size == factor
    if letter not in known and size % factor == 0:
        known[letter] = (size // factor, name)
    return letter in known and size == factor * known[letter][0]


def _contradiction(
    name: str, shape: Sequence[int], marks: Sequence[str], known: dict[str, tuple[int, str]]
) -> str:
    sizes, reasons = [], []
    for mark in marks:
        factor, letter = _split(mark) if mark != "*" else (1, "…")
        size, source = known.get(letter, (None, ""))
        number = letter == "" or size is not None
        sizes.append(
            str(factor * (size or 1) if size != 0 else 0) if number else "any" if letter == "_" else mark
        )
        if size is not None and source != name:
            reasons.append(f"{letter} = {size} from {source}")
    wanted = "×".join(size for size in sizes if size != "*")
    because = f", {', '.join(dict.fromkeys(reasons))}" if reasons else ""
    return f"{name} has shape {_text(shape)}; expected {wanted}{_letters(marks)}{because}"


def _text(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "()"


def _broadcast(names: Sequence[str], shapes: Sequence[Any]) -> Iterator[str]:
    have = [(name, shape) for name, shape in zip(names, shapes, strict=True) if shape is not None]
    for (first, a), (second, b) in pairwise(have):
        axes = zip(range(1, min(len(a), len(b)) + 1), reversed(a), reversed(b), strict=False)
        wrong = next(((axis, m, n) for axis, m, n in axes if m != n and 1 not in (m, n)), None)
        if wrong is not None:
            axis, m, n = wrong
            yield (
                f"{first} {_text(a)} and {second} {_text(b)} do not broadcast: "
                f"sizes {m} and {n} on axis -{axis}"
            )


# ---- single operators ---------------------------------------------------------------------------------


def _expand(node: ir.Node, names: Sequence[str], arguments: Sequence[Any]) -> Iterator[str]:
    target = tuple(int(n) for n in arguments[1].reshape(-1).tolist())
    yield from _broadcast(names, [arguments[0].shape, target])


def _affine(node: ir.Node, names: Sequence[str], arguments: Sequence[Any]) -> Iterator[str]:
    """Scale and shift broadcast to the first input, whatever they would make of it together."""
    for name, value in zip(names[1:], arguments[1:], strict=True):
        if value is not None:
            yield from _broadcast([names[0], name], [arguments[0].shape, value.shape])


def _transpose(node: ir.Node, names: Sequence[str], arguments: Sequence[Any]) -> Iterator[str]:
    perm = list(node.attributes["perm"].value) if "perm" in node.attributes else []
    yield f"{_has(names[0], arguments[0])}; perm {perm} orders {len(perm)} axes"


def _squeeze(node: ir.Node, names: Sequence[str], arguments: Sequence[Any]) -> Iterator[str]:
    yield f"{_has(names[0], arguments[0])}; the axes to leave out must be there, and of size 1"


def _attention(node: ir.Node, names: Sequence[str], arguments: Sequence[Any]) -> Iterator[str]:
    if all(getattr(x, "ndim", 0) == 4 for x in arguments[:3]):
        yield from _sizes("Q N H S D; K N G T D; V N G T E", names, [x.shape for x in arguments[:3]])


def _not_negative(node: ir.Node, names: Sequence[str], arguments: Sequence[Any]) -> Iterator[str]:
    for name, value in zip(names, arguments, strict=True):
        if value is not None and value.dtype.kind == "i" and value.size and int(value.min()) < 0:
            yield f"{name} holds {int(value.min())}; sizes are not negative"


def _attribute(node: ir.Node, name: str, default: int) -> int:
    return int(node.attributes[name].value) if name in node.attributes else default


def _has(name: str, value: Any) -> str:
    return f"{name} has shape {_text(value.shape)}"


def _matmul(node: ir.Node, names: Sequence[str], arguments: Sequence[Any]) -> Iterator[str]:
    a, b = arguments[0].shape, arguments[1].shape
    both = f"{names[0]} {_text(a)} and {names[1]} {_text(b)}"
    if not a or not b:
        yield f"{both}: a scalar is no matrix"
        return
    inner = b[-2] if len(b) > 1 else b[0]
    if a[-1] != inner:
        yield f"{both}: {a[-1]} columns meet {inner} rows"
    else:
        yield from _broadcast([f"the stacks of {names[0]}", names[1]], [a[:-2], b[:-2]])


def _gemm(node: ir.Node, names: Sequence[str], arguments: Sequence[Any]) -> Iterator[str]:
    a, b = arguments[0].shape, arguments[1].shape
    a = a[::-1] if _attribute(node, "transA", 0) else a
    b = b[::-1] if _attribute(node, "transB", 0) else b
    if a[1] != b[0]:
        yield f"{names[0]} gives {a[1]} columns and {names[1]} {b[0]} rows, transposed as the node asks"
    elif len(arguments) > 2 and arguments[2] is not None:
        yield f"{_has(names[2], arguments[2])}, which does not broadcast to {a[0]}×{b[1]}"


def _concat(node: ir.Node, names: Sequence[str], arguments: Sequence[Any]) -> Iterator[str]:
    axis, first = _attribute(node, "axis", 1), arguments[0].shape
    for name, value in zip(names[1:], arguments[1:], strict=True):
        pairs = zip(first, value.shape, strict=False)
        same = all(m == n or at == axis % len(first) for at, (m, n) in enumerate(pairs))
        if not same or len(first) != len(value.shape):
            yield f"{_has(name, value)} and {names[0]} {_text(first)}; they may differ on axis {axis} alone"


def _reshape(node: ir.Node, names: Sequence[str], arguments: Sequence[Any]) -> Iterator[str]:
    data, target = arguments[0], [int(n) for n in arguments[1].reshape(-1).tolist()]
    past = next((axis for axis, size in enumerate(target) if size == 0 and axis >= data.ndim), None)
    if target.count(-1) > 1:
        yield f"{names[1]} {target} leaves more than one size open"
    if past is not None and not _attribute(node, "allowzero", 0):
        yield f"{names[1]} {target} keeps axis {past}, and {names[0]} has {data.ndim} axes"
    yield f"{_has(names[0], data)}: {prod(data.shape)} elements, which {names[1]} {target} cannot hold"


def _past(indices: Any, size: int) -> int | None:
    """Return an index that is out of bounds, None when there is none."""
    low, high = (int(indices.min()), int(indices.max())) if indices.size else (0, 0)
    if low < -size:
        return low
    return high if high >= size else None


def _out_of_bounds(names: Sequence[str], index: int, axis: int, size: int) -> str:
    return f"{names[1]} hold {index}, out of bounds: axis {axis} of {names[0]} has {size} entries"


def _indexed(node: ir.Node, names: Sequence[str], arguments: Sequence[Any]) -> Iterator[str]:
    (data, indices), axis = arguments[:2], _attribute(node, "axis", 0)
    wrong = _past(indices, data.shape[axis])
    if wrong is not None:
        yield _out_of_bounds(names, wrong, axis, data.shape[axis])
    if len(arguments) > 2 and arguments[2] is not None and arguments[2].shape != indices.shape:
        yield f"{_has(names[2], arguments[2])} and {names[1]} {_text(indices.shape)}; expected one shape"


def _nested(node: ir.Node, names: Sequence[str], arguments: Sequence[Any]) -> Iterator[str]:
    (data, indices), batch = arguments[:2], _attribute(node, "batch_dims", 0)
    if not indices.ndim or not 0 < indices.shape[-1] <= data.ndim:
        yield f"{_has(names[1], indices)}; its last axis counts axes of {names[0]} {_text(data.shape)}"
        return
    for place, size in enumerate(data.shape[batch : batch + indices.shape[-1]]):
        wrong = _past(indices[..., place], size)
        if wrong is not None:
            yield _out_of_bounds(names, wrong, batch + place, size)
    if len(arguments) > 2 and arguments[2] is not None:
        wanted = (*indices.shape[:-1], *data.shape[indices.shape[-1] :])
        if arguments[2].shape != wanted:
            yield f"{_has(names[2], arguments[2])}; expected {_text(wanted)}"


_RULES: dict[str, Any] = {
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "Gemm": _gemm,
    "Concat": _concat,
    "Reshape": _reshape,
    **dict.fromkeys(INDEXED, _indexed),
    "GatherND": _nested,
    "ScatterND": _nested,
    "Expand": _expand,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _affine),
    "Attention": _attention,
    **dict.fromkeys(("AffineGrid", "CenterCropPad", "ConstantOfShape"), _not_negative),
}
"""What letters do not tell: rules from (node, names, inputs) to complaints."""
