"""``graphdoc sweep`` as one function: cases in, rows out, results kept as they come."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from graphdoc.engine.errors import InputError
from graphdoc.reports.files import write_text
from graphdoc.reports.jsonform import from_json
from graphdoc.reports.sweep import Sweep, SweepRow, failure_fields, result_fields, sweep_of
from graphdoc.reports.sweep_html import render_html
from graphdoc.sweep_cases import Case
from graphdoc.sweep_run import FAILED, Outcome, Plan, run_cases
from graphdoc.sweep_store import Store

Progress = Callable[[int, int], None]


class StoppedError(KeyboardInterrupt):
    """The user stopped a sweep; what there is of it is ``sweep``."""

    def __init__(self, sweep: Sweep) -> None:
        super().__init__("stopped")
        self.sweep = sweep


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where results go. store: None for nowhere. fresh: take no earlier results over."""

    store: Store | None = None
    fresh: bool = False


def sweep_cases(
    cases: Sequence[Case],
    plan: Plan,
    shelf: Shelf,
    *,
    dask: str | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Compare all cases and keep what comes out; earlier results that still hold are taken over.

    Raises StoppedError where the user stops it, with what was there until then; UsageError and RunnerError
    for Dask; OSError where a result cannot be written.
    """
    if shelf.store:
        shelf.store.prepare()
    rows: list[SweepRow] = []
    shown = progress or _unseen
    try:
        for row in _rows(cases, plan, shelf, dask, lambda: shown(len(rows), len(cases))):
            rows.append(row)
            shown(len(rows), len(cases))
    except KeyboardInterrupt as error:
        sweep = sweep_of(rows, stopped=len(cases) - len(rows))
        _write_index(sweep, shelf)
        raise StoppedError(sweep) from error
    sweep = sweep_of(rows)
    _write_index(sweep, shelf)
    return sweep


def _unseen(done: int, total: int) -> None:
    """Stands in for a bar where nobody looks."""


def _write_index(sweep: Sweep, shelf: Shelf) -> None:
    if shelf.store:
        write_text(render_html(sweep), shelf.store.folder / "index.html")


def _rows(
    cases: Sequence[Case], plan: Plan, shelf: Shelf, dask: str | None, tick: Callable[[], None]
) -> Iterator[SweepRow]:
    store = shelf.store
    keys = {case.name: store.key(case) if store else None for case in cases}
    missing = []
    for case in cases:
        key = keys[case.name]
        held = store.held(case, key) if store and key and not shelf.fresh else None
        row = _row(case, held, store) if held else None
        if row is not None and row.page:
            yield replace(row, taken_over=True)
        else:
            missing.append(case)
    for case, outcome in run_cases(missing, plan, dask, tick) if missing else ():
        if store:
            store.keep(case, keys[case.name], outcome)
        yield _row(case, outcome, store)


def _row(case: Case, outcome: Outcome, store: Store | None) -> SweepRow:
    row = SweepRow(
        name=case.name,
        ref=case.ref,
        test=case.test or "",
        inputs=case.inputs or "",
        seed=case.seed,
        seconds=outcome.seconds,
        page=f"{case.name}.html" if store and outcome.page else "",
    )
    fields = _fields(outcome)
    return replace(row, **fields) if outcome.text else replace(row, **fields, page="")  # type: ignore[arg-type]


def _fields(outcome: Outcome) -> dict[str, object]:
    if not outcome.text:
        return failure_fields(outcome.exit_code, outcome.error)
    try:
        return result_fields(from_json(outcome.text))
    except InputError as error:
        return failure_fields(FAILED, (f"the result cannot be read: {error.cause}",))
