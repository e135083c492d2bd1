"""Baselines: what a model computed once, kept as text beside the test that looks at it.

A baseline is a TOML file with one line per layer, so that a review shows which layers changed::

    format = 1
    model = "detector.onnx"
    runner = "engine 0.1.0"
    sha256 = "…"                      # of the model, so that a changed file is told from a changed runner

    [tolerances]                      # written by hand, kept when the rest is updated
    float16 = 2e-2                    # by dtype …
    "head/*" = 1e-4                   # … or by the value's name

    [inputs]
    "x" = { dtype = "float32", shape = "1x3x32x32", digest = "…", rms = 0.58, sketch = […], samples = […] }

    [layers]
    "conv1" = { op = "Conv", dtype = "float32", shape = "…", digest = "…", limit = 9.5e-7, … }
"""

import json
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphdoc.compare.tolerances import Described, find, rules_of
from graphdoc.engine.errors import InputError
from graphdoc.fingerprint import Fingerprint, root_mean_square

FORMAT = 1
"""Version of the file's layout."""

LFS_POINTER = "version https://git-lfs"

LOOSE = 0.1
"""A limit above this is pointed out in the file."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """The largest error that counts as rounding.

    limit: with what the layers before it bring along. own: of the layer alone, on inputs equal to the bit.
    """

    limit: float
    own: float


@dataclass(frozen=True, slots=True)
class Entry:
    """One layer of a baseline; its allowance was measured when the entry was made."""

    op: str
    seen: Fingerprint
    allowance: Allowance


@dataclass(frozen=True, slots=True)
class Baseline:
    """All that is kept of one run, layers in execution order. sha256: of the model, "" when not known."""

    model: str
    runner: str
    inputs: Mapping[str, Fingerprint] = field(default_factory=dict)
    layers: Mapping[str, Entry] = field(default_factory=dict)
    tolerances: Mapping[str, float] = field(default_factory=dict)
    sha256: str = ""


def tolerance(rules: Mapping[str, float], value: str, dtype: str, op: str = "") -> float | None:
    """Return the tolerance that a rule sets for a value, None when no rule speaks of it.

    Rules are those of :mod:`graphdoc.compare.tolerances`: the most specific counts, of several the last.
    """
    found = find(rules_of(rules, "tolerances"), Described(value, "", op, (dtype,)))
    return None if found is None else found.value


def read(path: Path) -> Baseline | None:
    """Return the baseline in a file, None when there is no such file.

    Raises InputError when the file is not a baseline.
    """
    try:
        text = path.read_text("utf-8")
        if text.startswith(LFS_POINTER):
            raise InputError(
                "the baseline is a git-lfs pointer; the file itself was not fetched",
                where=path.name,
                next_step="git lfs pull   (a baseline is text for reviews: better keep it out of LFS)",
            )
        data = tomllib.loads(text)
    except FileNotFoundError:
        return None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _unreadable(path, str(error)) from error
    if data.get("format") != FORMAT:
        raise _unreadable(path, f"format {data.get('format')} instead of {FORMAT}")
    try:
        return _parsed(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(path, f"{type(error).__name__}: {error}") from error


def write(path: Path, baseline: Baseline) -> None:
    """Write a baseline, under another name first so that a stopped run leaves the old file whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = render(baseline)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", newline="\n", dir=path.parent, suffix=".part", delete=False
    ) as file:
        temporary = Path(file.name)
        try:
            file.write(text)
            file.close()
            temporary.chmod(0o644)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def render(baseline: Baseline) -> str:
    """Return the text of a baseline; the same for the same content."""
    lines = [
        "# graphdoc baseline. Update it with:  pytest --graphdoc-update",
        f"format = {FORMAT}",
        f"model = {_quoted(baseline.model)}",
        f"runner = {_quoted(baseline.runner)}",
    ]
    lines += [f"sha256 = {_quoted(baseline.sha256)}"] if baseline.sha256 else []
    if baseline.tolerances:
        lines += ["", "[tolerances]"]
        lines += [f"{_quoted(name)} = {_number(limit, 6)}" for name, limit in baseline.tolerances.items()]
    loose = sum(entry.allowance.limit > LOOSE for entry in baseline.layers.values())
    if loose:
        lines.insert(
            1, f"# {loose} layers may differ by more than {LOOSE:.0%}: rounding alone moves them that far."
        )
    lines += ["", "[inputs]", *(_row(name, seen) for name, seen in baseline.inputs.items())]
    lines += ["", "[layers]"]
    lines += [_row(name, entry.seen, entry) for name, entry in baseline.layers.items()]
    return "\n".join(lines) + "\n"


def _row(name: str, seen: Fingerprint, entry: Entry | None = None) -> str:
    """Return one line: a name and an inline table; what is empty is left out."""
    allowed = entry.allowance if entry else None
    fields = {
        "op": _quoted(entry.op) if entry else "",
        "dtype": _quoted(seen.dtype),
        "shape": _quoted(seen.shape),
        "digest": _quoted(seen.digest),
        "exact": _quoted(seen.exact) if seen.exact else "",
        "limit": _number(allowed.limit, 2) if allowed else "",
        "own": _number(allowed.own, 2) if allowed and allowed.own != allowed.limit else "",
        "rms": _number(seen.rms, 10) if seen.sketch else "",
        "sketch": _numbers(seen.sketch, 10),
        "samples": _numbers(seen.samples, 6 if seen.sketch else 10),
    }
    return f"{_quoted(name)} = {{ {', '.join(f'{key} = {text}' for key, text in fields.items() if text)} }}"


def _quoted(text: str) -> str:
    """Return a TOML basic string; JSON's escapes are TOML's, but for the delete character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _number(value: float, digits: int) -> str:
    text = f"{value:.{digits}g}"
    return text if set(text) & set(".en") else f"{text}.0"


def _numbers(values: tuple[float, ...], digits: int) -> str:
    return f"[{', '.join(_number(value, digits) for value in values)}]" if values else ""


def _parsed(data: Mapping[str, Any]) -> Baseline:
    return Baseline(
        str(data["model"]),
        str(data["runner"]),
        {name: _fingerprint(row) for name, row in data["inputs"].items()},
        {name: _entry(row) for name, row in data["layers"].items()},
        {name: float(limit) for name, limit in data.get("tolerances", {}).items()},
        str(data.get("sha256", "")),
    )


def _entry(row: Mapping[str, Any]) -> Entry:
    limit = float(row["limit"])
    return Entry(str(row["op"]), _fingerprint(row), Allowance(limit, float(row.get("own", limit))))


def _fingerprint(row: Mapping[str, Any]) -> Fingerprint:
    samples = tuple(float(x) for x in row.get("samples", ()))
    return Fingerprint(
        str(row["dtype"]),
        str(row["shape"]),
        str(row["digest"]),
        str(row.get("exact", "")),
        float(row["rms"]) if "rms" in row else root_mean_square(samples),
        tuple(float(x) for x in row.get("sketch", ())),
        samples,
    )


def _unreadable(path: Path, reason: str) -> InputError:
    return InputError(
        "the baseline cannot be read",
        where=f"{path.name}: {reason}",
        next_step="restore the file, or delete it and make it again:  pytest --graphdoc-update",
    )
