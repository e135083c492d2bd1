"""Comparison → JUnit XML, in the dialect that Jenkins, GitLab, GitHub and Azure read.

One suite per comparison: a case for the verdict, and one for each layer that differs, the wrong ones first
when there are too many. Figures are properties of the suite. A verdict that says the sides could not be
compared (exit code 4 or 5) is an error, one that says they differ a failure.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterable

from graphdoc.compare.result import Comparison, Layer, Metrics, Status
from graphdoc.reports import words

MOST_LAYERS = 200
"""Layers that get a case of their own; continuous integration shows every one on its page."""

_LONGEST_NAME = 200
_RANK = {Status.OWN: 0, Status.NAN: 0}


def render_junit(comparison: Comparison) -> str:
    """Return a comparison as JUnit XML."""
    shown = _shown(comparison)
    failed = 0 if comparison else 1
    errors = failed if comparison.verdict.exit_code > 1 else 0
    counts = {
        "tests": str(1 + len(shown)),
        "failures": str(failed - errors + len(shown)),
        "errors": str(errors),
        "skipped": "0",
    }
    suites = ET.Element("testsuites", counts)
    suite = _add(
        suites, "testsuite", name=f"graphdoc compare {comparison.a.model} {comparison.b.model}", **counts
    )
    _properties(suite, comparison)
    _verdict_case(suite, comparison)
    for layer in shown:
        _layer_case(suite, comparison, layer)
    left_out = len(comparison.differing) - len(shown)
    if shown and left_out:
        _add(
            suite, "system-out"
        ).text = f"{words.group(left_out)} more layers differ; the JSON lists all of them."
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'


def _shown(comparison: Comparison) -> list[Layer]:
    """Return the layers that get a case; where the verdict is good, no layer may fail the build."""
    if comparison:
        return []
    rows = sorted(comparison.differing, key=lambda layer: (_RANK.get(layer.status, 1), layer.index))
    return sorted(rows[:MOST_LAYERS], key=lambda layer: layer.index)


def _add(parent: ET.Element, tag: str, **attributes: str) -> ET.Element:
    """Add an element whose attributes hold nothing that XML 1.0 forbids."""
    return ET.SubElement(parent, tag, {k: words.visible(v) for k, v in attributes.items()})


def _properties(suite: ET.Element, comparison: Comparison) -> None:
    element = _add(suite, "properties")
    for name, value in _figures(comparison).items():
        _add(element, "property", name=name, value=value)


def _figures(comparison: Comparison) -> dict[str, str]:
    """Return what the suite is about, by name."""
    figures = {"verdict": comparison.verdict.kind, "layers": str(len(comparison.layers))}
    figures |= {"differ": str(len(comparison.differing)), "skipped": str(len(comparison.skipped))}
    for side in (comparison.a, comparison.b):
        figures[f"{side.label}.model"] = side.model
        figures[f"{side.label}.sha256"] = side.sha256
        figures[f"{side.label}.runner"] = words.runner(side)
        if side.latency:
            figures[f"{side.label}.latency"] = words.seconds(side.latency.median)
    if comparison.seed is not None:
        figures["seed"] = str(comparison.seed)
    return figures | {f"environment.{k}": v for k, v in sorted(comparison.environment.items())}


def _verdict_case(suite: ET.Element, comparison: Comparison) -> None:
    verdict = comparison.verdict
    case = _add(suite, "testcase", classname=_class(comparison), name="verdict")
    text = _lines(words.facts(comparison)) + _lines(("next", command) for _, command in verdict.next_steps)
    if comparison:
        _add(case, "system-out").text = f"{words.headline(comparison)}\n{text}"
        return
    tag = "error" if verdict.exit_code > 1 else "failure"
    _add(case, tag, message=words.headline(comparison), type=verdict.kind).text = f"\n{text}"


def _layer_case(suite: ET.Element, comparison: Comparison, layer: Layer) -> None:
    name = f"{words.layer_title(layer)} {words.shorten(words.name(layer), _LONGEST_NAME)}"
    case = _add(suite, "testcase", classname=f"{_class(comparison)}.layers", name=name)
    _add(case, "failure", message=_judged(layer), type=layer.status).text = f"\n{_lines(_layer_facts(layer))}"


def _class(comparison: Comparison) -> str:
    """Return the group of the cases; a dot would split it, so the model's suffix goes."""
    return f"graphdoc.{comparison.b.model.removesuffix('.onnx').replace('.', '_').replace('/', '_')}"


def _judged(layer: Layer) -> str:
    """Return the error that decided, against its limit."""
    own = layer.own_error is not None and layer.status is not Status.INHERITED
    error, limit = (layer.own_error, layer.own_limit) if own else (layer.error, layer.limit)
    return f"{layer.status} {words.number(error)}, limit {words.number(limit.value if limit else None)}"


def _layer_facts(layer: Layer) -> list[tuple[str, str]]:
    rows = [("value", layer.value), ("dtype", f"{layer.dtype} {words.shape(layer.shape)}")]
    figures = {"own": layer.own_error, "inherited": layer.inherited_error, "total": layer.error}
    rows += [(label, words.number(value)) for label, value in figures.items() if value is not None]
    limits = {"limit": layer.limit, "own limit": layer.own_limit}
    rows += [(label, f"{words.number(x.value)}: {x.reason}") for label, x in limits.items() if x]
    rows += _metric_facts(layer.metrics) if layer.metrics else []
    return [*rows, ("note", layer.note)] if layer.note else rows


def _metric_facts(metrics: Metrics) -> list[tuple[str, str]]:
    rows = [("max abs", words.number(metrics.max_abs)), ("rms", words.number(metrics.rms))]
    rows.append(("outside", f"{words.percent(metrics.outside)} of {words.group(metrics.size)} elements"))
    if metrics.worst is not None:
        rows.append(
            ("worst", f"[{', '.join(map(str, metrics.worst))}]: A {metrics.a_worst}, B {metrics.b_worst}")
        )
    if metrics.nonfinite_differ:
        rows.append(("NaN, Inf", f"{words.group(metrics.nonfinite_differ)} elements on one side alone"))
    return rows


def _lines(rows: Iterable[tuple[str, str]]) -> str:
    """Return label and text, one pair a line."""
    return "".join(f"{words.visible(label):<10} {words.visible(text)}\n" for label, text in rows)
