"""The result of a sweep: one row per case, and the words that all its forms share."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphdoc.compare.result import Comparison, Latency, Status
from graphdoc.reports import words

_ORDER = {4: 0, 3: 1, 2: 1, 5: 2, 1: 3, 0: 5}
"""Exit code → place in the table: what did not run, was refused, compared nothing, differs, agrees."""

_REMARKED = 4
"""Place of what agrees with a remark."""

_WORDS = {2: "refused", 3: "invalid", 4: "failed", 5: "nothing compared"}
"""The word of a case without a result, by exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """A case and how it came out.

    name: of its files. ref, test, inputs: as typed, "" for none. exit_code, symbol, word, sentence: the
    verdict, or what was wrong. compared, differ: layers; None without a result. first: the first layer that
    diverges. remarked: outputs with a remark, such as one that cannot be judged. worst: the largest own
    error over its limit. error: the largest error of an output. latency: B's median over A's. seconds: that
    the case took. taken_over: from an earlier sweep. page: the HTML file, "" for none.
    """

    name: str
    ref: str
    test: str = ""
    inputs: str = ""
    seed: int = 0
    exit_code: int = 0
    symbol: str = "✓"
    word: str = "agrees"
    sentence: str = ""
    compared: int | None = None
    differ: int | None = None
    first: str = ""
    remarked: int = 0
    worst: float | None = None
    error: float | None = None
    latency: float | None = None
    seconds: float = 0.0
    taken_over: bool = False
    page: str = ""

    @property
    def place(self) -> tuple[float, float, str]:
        """What rows are sorted by: the worst first."""
        rank = _REMARKED if self.exit_code == 0 and self.symbol == "▲" else _ORDER.get(self.exit_code, 0)
        worst = 0.0 if self.worst is None or math.isnan(self.worst) else self.worst
        return rank, -worst, self.name


@dataclass(frozen=True, slots=True)
class Sweep:
    """All rows, the failing ones first. stopped: how many cases did not get their turn."""

    rows: tuple[SweepRow, ...]
    stopped: int = 0

    def __bool__(self) -> bool:
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """The largest of the cases' exit codes."""
        return max((row.exit_code for row in self.rows), default=5)


def sweep_of(rows: Sequence[SweepRow], stopped: int = 0) -> Sweep:
    """Return a sweep with its rows in order."""
    return Sweep(tuple(sorted(rows, key=lambda row: row.place)), stopped)


def result_fields(result: Comparison) -> dict[str, object]:
    """Return what a row says of a comparison."""
    verdict, first = result.verdict, result.first_divergence
    outputs = [layer.error for layer in result.layers if layer.is_output and layer.error is not None]
    a, b = result.a.latency, result.b.latency
    return {
        "exit_code": verdict.exit_code,
        "symbol": verdict.symbol,
        "word": verdict.word,
        "sentence": words.opening(result),
        "compared": sum(layer.metrics is not None or layer.error is not None for layer in result.layers),
        "differ": len(result.differing),
        "first": "" if first is None else f"{words.layer_title(first)} {words.name(first)}",
        "remarked": sum(layer.is_output and layer.status is Status.REMARK for layer in result.layers),
        "worst": next((layer.of_limit for layer in result.worst(1)), 0.0 if result.layers else None),
        "error": max(outputs, default=None),
        "latency": _latency(a, b),
    }


def _latency(a: Latency | None, b: Latency | None) -> float | None:
    """Return B's median over A's, None where there are too few runs to mean anything."""
    if a is None or b is None or a.median <= 0 or min(a.runs, b.runs) < words.FEWEST_RUNS:
        return None
    return b.median / a.median


def failure_fields(exit_code: int, lines: Sequence[str]) -> dict[str, object]:
    """Return what a row says of a case without a result. lines: the error as it was printed."""
    where = next((line.strip() for line in lines[1:] if line.strip().startswith("where")), "")
    where, cause = where.removeprefix("where").strip(), lines[0] if lines else "no reason was given"
    return {
        "exit_code": exit_code,
        "symbol": "–" if exit_code == 5 else "✗",
        "word": _WORDS.get(exit_code, "failed"),
        "sentence": f"{cause} ({where})" if where and where not in cause else cause,
    }


# Words


def verdict(sweep: Sweep) -> tuple[str, str]:
    """Return symbol and word of the whole: ✗ 3 of 12 differ or failed."""
    failing = sum(row.exit_code != 0 for row in sweep.rows)
    total = len(sweep.rows)
    cases = "case" if total == 1 else "cases"
    if not failing:
        return "✓", f"{words.group(total)} of {words.group(total)} {cases} agree"
    return "✗", f"{words.group(failing)} of {words.group(total)} {cases} did not agree"


def counts(sweep: Sweep) -> str:
    """Return how many cases came out how, and how many were taken over: 9 agree, 2 differ, 1 failed."""
    labels = {0: "agree", 1: "differ", 2: "refused", 3: "invalid", 4: "failed", 5: "compared nothing"}
    found = [sum(row.exit_code == code for row in sweep.rows) for code in labels]
    parts = [f"{words.group(n)} {label}" for n, label in zip(found, labels.values(), strict=True) if n]
    parts += _extra(sweep)
    return ", ".join(parts)


def _extra(sweep: Sweep) -> Iterator[str]:
    taken = sum(row.taken_over for row in sweep.rows)
    if taken:
        yield f"{words.group(taken)} taken over"
    if sweep.stopped:
        yield f"{words.group(sweep.stopped)} not run"


def _remarks(count: int) -> str:
    return "an output has a remark" if count == 1 else f"{words.group(count)} outputs have remarks"


def what(row: SweepRow) -> str:
    """Return the one thing to know of a row: where it starts, or what went wrong."""
    if row.exit_code == 0 and row.symbol != "▲":
        remark = f"; {_remarks(row.remarked)}" if row.remarked else ""
        return words.visible(row.sentence.partition(";")[0]) + remark
    return words.visible(row.first if row.exit_code == 1 and row.first else row.sentence)
