"""Runs the cases of a sweep, each as a ``graphdoc compare`` in a process of its own.

A case that crashes, is killed or takes all memory ends its process and nothing else. The same function runs a
case here and on a Dask worker.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from graphdoc.compare.environment import cores, memory_available
from graphdoc.compare.memory import LEAST, SPARED
from graphdoc.engine.errors import RunnerError, UsageError
from graphdoc.sweep_cases import Case

FAILED = 4
"""Exit code of a case that ended without one: a runner failed."""

_TAPPED = 8
"""The part of the free memory, one of so many, that tapped values may take, as for one comparison."""

TICK = 0.5
"""Seconds between two looks at what runs."""

_ERRORS = range(2, 6)
"""Exit codes that come with an error in words; 0 and 1 without a result are an accident of some library."""

_RESULTS = (0, 1, 4, 5)
"""Exit codes with which a comparison may have written a result."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run cases.

    options: words for ``graphdoc compare`` that all share. jobs: cases that share a machine's memory and
    cores at a time. memory: bytes for tapped values of all of them, None for an eighth of what is free.
    threads: of ONNX Runtime, None for the case's share of the cores. timeout: seconds of a case, None for no
    end. bounded: let the system refuse memory beyond a case's share. folder: where to run.
    """

    options: tuple[str, ...] = ()
    jobs: int = 1
    memory: int | None = None
    threads: int | None = None
    timeout: float | None = None
    bounded: bool = True
    folder: str = field(default_factory=os.getcwd)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case came out.

    text: the result as JSON, "" where there is none. page: the HTML. error: what was wrong, in lines, where
    there is no result. seconds: of the process.
    """

    exit_code: int
    text: str = ""
    page: str = ""
    error: tuple[str, ...] = ()
    seconds: float = 0.0


class Processes:
    """The processes that run now; once stopped, none starts any more."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    @contextmanager
    def started(self, words: Sequence[str], folder: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start a process and take care that it has ended afterwards."""
        with self._lock:
            if self._stopped:
                raise RunnerError("the sweep was stopped")
            process = subprocess.Popen(  # noqa: S603 - our own command line, no shell
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
            )
            self._running.add(process)
        try:
            with process:
                try:
                    yield process
                finally:
                    process.kill()
        finally:
            with self._lock:
                self._running.discard(process)

    def stop(self) -> None:
        """End what runs."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.kill()


def run_case(case: Case, plan: Plan, processes: Processes | None = None) -> Outcome:
    """Compare one case in a process of its own; whatever happens to it is an Outcome."""
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="graphdoc-sweep-") as folder:
            page = Path(folder) / "page.html"
            with (processes or Processes()).started(_words(case, plan, page), plan.folder) as process:
                code, out, err = _finished(process, plan)
            html = page.read_text(encoding="utf-8") if page.exists() else ""
    except OSError as error:
        lines = (f"{error.strerror or error}: '{error.filename}'",)
        return Outcome(FAILED, error=lines, seconds=time.monotonic() - started)
    return _outcome(code, out.decode("utf-8", "replace"), html, err, time.monotonic() - started)


def _words(case: Case, plan: Plan, page: Path) -> list[str]:
    """Return the command line; memory and cores are divided among the cases that run at a time."""
    memory = plan.memory if plan.memory is not None else memory_available() // _TAPPED
    threads = plan.threads if plan.threads is not None else max(1, cores() // plan.jobs)
    shared = ["--memory", str(max(LEAST, memory // plan.jobs))]
    if plan.threads is not None or plan.jobs > 1:
        shared += ["--threads", str(threads)]
    timed = ["--latency" if plan.jobs == 1 else "--no-latency"]
    written = ["--json", "-", "-o", str(page)]
    command = [sys.executable, "-m", "graphdoc", "compare", *plan.options, *shared, *timed, *written]
    return [*command, *case.words()]


def _finished(process: subprocess.Popen[bytes], plan: Plan) -> tuple[int, bytes, bytes]:
    if plan.bounded:
        _bound(process.pid, plan.jobs)
    try:
        out, err = process.communicate(timeout=plan.timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return FAILED, b"", f"stopped after {plan.timeout:g} s (--timeout)".encode()
    return process.returncode, out, err


def _bound(pid: int, jobs: int) -> None:
    """Give a process its share of the free memory; ``graphdoc compare`` keeps within it (Linux only)."""
    if sys.platform != "linux":
        return
    import resource

    free = memory_available()
    share = (free - free // SPARED) // jobs
    try:
        hard = resource.prlimit(pid, resource.RLIMIT_DATA)[1]
        most = share if hard == resource.RLIM_INFINITY else min(share, hard)
        resource.prlimit(pid, resource.RLIMIT_DATA, (most, hard))
    except ProcessLookupError:
        return  # it has ended already


def _outcome(code: int, out: str, page: str, err: bytes, seconds: float) -> Outcome:
    if code in _RESULTS and out.rstrip().endswith("}") and page:
        return Outcome(code, out, page, seconds=seconds)
    lines = tuple(err.decode("utf-8", "replace").strip().splitlines())
    if code < 0:
        return Outcome(FAILED, error=(_signal(-code), *lines[-1:]), seconds=seconds)
    if code not in _ERRORS or not lines:
        last = lines[-1:] or ("nothing was printed",)
        return Outcome(FAILED, error=(f"ended with exit code {code}: {last[0]}",), seconds=seconds)
    if lines[0].startswith("Traceback"):
        return Outcome(FAILED, error=(f"a fault of graphdoc: {lines[-1]}",), seconds=seconds)
    first = lines[0].removeprefix("✗ ").removeprefix("FAIL ")
    return Outcome(code, error=(first, *lines[1:]), seconds=seconds)


def _signal(number: int) -> str:
    """Return what ended a process; Linux kills with SIGKILL where memory runs out."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hint = ", as Linux does when memory runs out" if name == "SIGKILL" else ""
    return f"the process was ended by {name}{hint}"


# Many cases


def run_cases(
    cases: Sequence[Case], plan: Plan, dask: str | None = None, tick: Callable[[], None] = lambda: None
) -> Iterator[tuple[Case, Outcome]]:
    """Yield every case with its outcome as it ends.

    dask: address of a scheduler, None to run here. tick: called every TICK seconds while cases run.

    Where the reader stops early, what still runs is ended. Raises UsageError, RunnerError for Dask.
    """
    if dask is not None:
        with _dask(dask) as (pool, jobs, total):
            yield from _run(pool, cases, replace(plan, jobs=jobs), total * 2, tick)
        return
    processes = Processes()
    pool = ThreadPoolExecutor(plan.jobs)
    try:
        yield from _run(pool, cases, plan, plan.jobs, tick, processes)
    finally:
        processes.stop()
        pool.shutdown(cancel_futures=True)


def _run(
    pool: Executor,
    cases: Sequence[Case],
    plan: Plan,
    most: int,
    tick: Callable[[], None],
    *more: Processes,
) -> Iterator[tuple[Case, Outcome]]:
    """Keep ``most`` cases on their way, so that results do not pile up."""
    waiting = iter(cases)
    running = {pool.submit(run_case, case, plan, *more): case for case in islice(waiting, most)}
    while running:
        done, _ = wait(running, timeout=TICK, return_when=FIRST_COMPLETED)
        tick()
        for future in sorted(done, key=lambda future: running[future].name):
            case = running.pop(future)
            for following in islice(waiting, 1):
                running[pool.submit(run_case, following, plan, *more)] = following
            yield case, _settled(future)


def _settled(future: Future[Outcome]) -> Outcome:
    """Return the outcome of a case; a worker that went away with it is one too."""
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 - whatever a cluster raises ends this case only
        return Outcome(FAILED, error=(f"the worker failed: {type(error).__name__}: {error}",))


@contextmanager
def _dask(address: str) -> Iterator[tuple[Executor, int, int]]:
    """Yield an executor over the workers of a scheduler, how many cases share a machine at most, and how many
    run at a time in all."""
    try:
        import distributed
    except ImportError as error:
        raise UsageError(
            "--dask needs the package distributed",
            where=f"--dask {address}",
            next_step='pip install "onnx-graphdoc[dask]"',
        ) from error
    connect: Any = distributed.Client  # which has no types
    try:
        client = connect(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise RunnerError(
            f"no Dask scheduler answers: {error}",
            where=f"--dask {address}",
            next_step="dask scheduler   prints its address; dask worker ADDRESS adds machines",
        ) from error
    with client:
        threads = _threads(client.scheduler_info(n_workers=-1)["workers"], address)
        yield client.get_executor(pure=False, retries=0), max(threads.values()), sum(threads.values())


def _threads(workers: Mapping[str, Any], address: str) -> dict[str, int]:
    """Return for every machine the threads that its workers have together."""
    threads: dict[str, int] = {}
    for worker in workers.values():
        host = worker.get("host", "")
        threads[host] = threads.get(host, 0) + int(worker["nthreads"])
    if not threads:
        raise RunnerError(
            "the Dask scheduler has no workers",
            where=f"--dask {address}",
            next_step=f"dask worker {address}",
        )
    return threads
