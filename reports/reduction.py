"""Reduction → a screen, a script that repeats the failure, and a bug report in Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphdoc.compare.environment import environment
from graphdoc.compare.reduce import FailureKind, Reduction
from graphdoc.reports.markdown import code, prose
from graphdoc.reports.words import shorten, visible

_SHOWN = 6
"""Nodes listed on the screen."""

_WIDEST = 200
"""Characters of a runner's error message."""


def reduction_lines(found: Reduction, written: Sequence[Path]) -> list[str]:
    """Return the screen: how few nodes fail, how, and what to do with them."""
    few = found.nodes[:_SHOWN]
    more = [f"… and {len(found.nodes) - _SHOWN} more"] if len(found.nodes) > _SHOWN else []
    rows = [("nodes", few[0] if few else "none"), *(("", text) for text in [*few[1:], *more])]
    rows += [
        ("whole", found.failure.text + (f", in {found.failure.value}" if found.failure.value else "")),
        ("part", found.seen),
        ("search", _search(found)),
        ("wrote", ", ".join(path.name for path in written)),
        ("next", f"python {written[2].name}"),
    ]
    head = f"✓ reduced   {len(found.nodes)} of {found.whole_nodes} nodes {_fail(found)} in the same way"
    return [visible(head), *(f"  {label:<7} {shorten(visible(text), _WIDEST)}" for label, text in rows)]


def _fail(found: Reduction) -> str:
    return "fails" if len(found.nodes) == 1 else "fail"


def _search(found: Reduction) -> str:
    runs = f"{found.runs} part{'s' * (found.runs != 1)} tried in {found.seconds:.2f} s"
    return f"{runs}; {'no node can be left out' if found.minimal else 'ended before it was minimal'}"


# ---- the script ----------------------------------------------------------------------------------------

_HEAD = '''"""{title}

{text}
Exit code: 1 while it fails, 0 once it does not. Needs {needs}.
"""

import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).parent
inputs = dict(np.load(HERE / {inputs!r}))
'''

_ORT = """
import onnxruntime

try:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.{level}
    session = onnxruntime.InferenceSession(HERE / {model!r}, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(names, inputs)))
except Exception as error:
    print(f"fails: {{type(error).__name__}}: {{error}}")
    sys.exit(1)
"""

_ENGINE = """
import graphdoc

try:
    outputs = graphdoc.Session(str(HERE / {model!r})).run(inputs)
except graphdoc.GraphdocError as error:
    print(f"fails: {{error}}")
    sys.exit(1)
"""

_TAILS = {
    FailureKind.MISMATCH: """
expected = dict(np.load(HERE / {expected!r}))
fails = False
for name, want in expected.items():
    got, want = np.asarray(outputs[name], np.float64), np.asarray(want, np.float64)
    scale = np.sqrt(np.mean(np.square(want)))
    error = np.sqrt(np.mean(np.square(got - want))) / scale if scale else np.abs(got).max(initial=0)
    print(f"{{name}}: RMS error {{error:.3g}} of the reference's RMS, limit {limit:.3g}")
    fails |= not error <= {limit!r}
sys.exit(int(fails))
""",
    FailureKind.NAN: """
bad = [name for name, value in outputs.items() if not np.isfinite(np.asarray(value, np.float64)).all()]
print(f"NaN or Inf in: {{', '.join(bad) or 'nothing'}}")
sys.exit(int(bool(bad)))
""",
    FailureKind.CRASH: """
print("runs through")
""",
    FailureKind.CHECK: """
print("runs through; what fails is the check: see the report")
""",
}


def script(found: Reduction, stem: str) -> str:
    """Return a Python file that runs the part and exits with 1 while it fails.

    On ONNX Runtime it needs nothing of graphdoc.
    """
    ort = found.test.startswith("ort")
    runner = (_ORT if ort else _ENGINE).format(model=f"{stem}.onnx", level="ORT_DISABLE_ALL")
    head = _HEAD.format(
        title=_quoted(f"{_title(found)}."),
        text=_quoted(f"The whole model ({found.whole_nodes} nodes): {found.failure.text}."),
        needs="onnxruntime and NumPy" if ort else "graphdoc",
        inputs=f"{stem}.npz",
    )
    tail = _TAILS[found.failure.kind].format(expected=f"{stem}.expected.npz", limit=found.failure.limit)
    return head + runner + tail


def _quoted(text: str) -> str:
    """Return foreign text so that it cannot end the docstring it stands in."""
    return visible(text).replace("\\", "\\\\").replace('"', "'")


def _title(found: Reduction) -> str:
    return f"{len(found.nodes)} of {found.whole_nodes} nodes {_fail(found)}: {', '.join(found.nodes[:3])}"


# ---- the bug report ------------------------------------------------------------------------------------


def bug_report(found: Reduction, stem: str, command: str) -> str:
    """Return a report in Markdown: what fails, on what, the inputs, how to repeat it, versions."""
    blocks = [
        f"### {prose(found.seen)}",
        f"{prose(_whole_sentence(found))}",
        "| | |\n|---|---|\n" + "\n".join(f"| {label} | {text} |" for label, text in _facts(found)),
        "#### Inputs\n\n" + "\n".join(_input_rows(found.cut.feeds)),
        f"#### Repeat\n\n```\npython {stem}.py\n{command}\n```",
        "#### Environment\n\n"
        + "\n".join(f"- {prose(name)}: {prose(text)}" for name, text in environment().items()),
    ]
    return "\n\n".join(blocks) + "\n"


def _whole_sentence(found: Reduction) -> str:
    return (
        f"Cut out of a model of {found.whole_nodes} nodes, which fails in the same way: {found.failure.text}."
    )


def _facts(found: Reduction) -> Iterator[tuple[str, str]]:
    yield "nodes", ", ".join(code(text, table=True) for text in found.nodes[:20])
    yield "kind", found.failure.kind.value
    if found.failure.value:
        yield "value", code(found.failure.value, table=True)
    yield "runs on", code(found.test, table=True)
    if found.failure.kind is FailureKind.MISMATCH:
        yield "held against", code(found.ref, table=True)


def _input_rows(feeds: Mapping[str, Any]) -> Iterator[str]:
    if not feeds:
        yield "None: the part reads constants only."
    for name, value in feeds.items():
        array = np.asarray(value) if not isinstance(value, list) else None
        text = f"{array.dtype} {list(array.shape)}" if array is not None else f"a list of {len(value)}"
        yield f"- {code(name)} {code(text)}"
