"""Machine code from text to a run: compiler, its cache, worker threads, driver, and the device."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphdoc.engine.device import cpu
from graphdoc.engine.device.llvm import compiler
from graphdoc.engine.device.llvm.builder import Kernel
from graphdoc.engine.device.llvm.objects import ObjectCache
from graphdoc.engine.device.llvm.table import shares
from graphdoc.engine.errors import InputError, RunnerError
from graphdoc.engine.program import Kind, Program, evaluate
from tests.engine.llvm import toy

HOST = compiler.host_target()


def loaded(program: Program, threads: int = 1, kernels: Sequence[Kernel | None] = ()) -> cpu.CpuExecutable:
    """Return the program with the kernels of toy, or those given."""
    found = list(kernels) or [toy.kernel(step) for step in program.steps]
    return cpu.CpuExecutable(program, found, HOST, cpu.CpuDevice(threads).threads)


def chain(size: int, steps: int, threads: int = 1, host: Sequence[int] = ()) -> Program:
    """Return y = x + k + x + k …; host: steps without a kernel."""
    work = toy.Chain(size)
    x, y = work.view("x", Kind.INPUT), work.view("y", Kind.OUTPUT)
    k = work.view("k", Kind.CONSTANT, np.arange(size, dtype=np.float32))
    value = x
    for i in range(steps):
        out = y if i == steps - 1 else None
        value = work.add(value, k if i % 2 else x, out, 0 if i in host else threads)
    return work.program


def numbers(size: int, seed: int = 0) -> Any:
    """Return floats whose sums round."""
    return np.random.default_rng(seed).standard_normal(size, np.float32)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("size", "steps", "host"),
    [(1, 1, ()), (7, 5, ()), (1000, 9, (0, 4, 8)), (5000, 6, (2, 3)), (100_000, 4, ()), (64, 3, (0, 1, 2))],
)
def test_a_run_agrees_with_numpy(size: int, steps: int, host: tuple[int, ...], threads: int) -> None:
    """The same bits as the specifications, whatever runs natively and on however many threads, twice."""
    program = chain(size, steps, threads, host)
    x = numbers(size)
    run = loaded(program, threads).run

    for _ in range(3):
        assert run([x])[0].tobytes() == evaluate(program, {"x": x})["y"].tobytes()


def test_every_run_has_outputs_of_its_own() -> None:
    """What a run returned is not overwritten by the next."""
    executable = loaded(chain(50, 3))
    first = executable.run([numbers(50)])[0]
    kept = first.copy()
    executable.run([numbers(50, 1)])

    assert first.tobytes() == kept.tobytes()


@pytest.mark.parametrize("name", ["reversed", "strided", "read-only", "big-endian", "unaligned", "matrix"])
def test_inputs_of_any_layout(name: str) -> None:
    """Arrays that kernels cannot read as they are get copied, and give the same result."""
    x = numbers(30)
    odd = {
        "reversed": x[::-1].copy()[::-1],
        "strided": np.repeat(x, 2)[::2],
        "read-only": x.copy(),
        "big-endian": x.astype(">f4"),
        "unaligned": np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32),
        "matrix": x.view(np.recarray),
    }[name]
    if name == "read-only":
        odd.flags.writeable = False
    executable = loaded(chain(30, 2))
    if name == "big-endian":
        with pytest.raises(InputError, match="float32"):
            executable.run([odd])
    else:
        assert executable.run([odd])[0].tobytes() == executable.run([x])[0].tobytes()


@pytest.mark.parametrize("bad", [np.zeros(3, np.float32), np.zeros(4, np.float64), [1.0, 2.0, 3.0, 4.0]])
def test_an_input_that_does_not_fit_is_refused(bad: Any) -> None:
    """A kernel would read past its end, or read other numbers."""
    executable = loaded(chain(4, 2))
    with pytest.raises(InputError, match=r"float32\[4\]"):
        executable.run([bad])

    assert executable.run([np.ones(4, np.float32)])[0].tolist() == [2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    ("most", "threads", "expected"),
    [(1, 2, 1), (3, 2, 3), (50, 2, 4), (330, 2, 10), (5000, 2, 16), (5000, 1, 1), (9999, 16, 128)],
)
def test_long_steps_are_cut_finer(most: int, threads: int, expected: int) -> None:
    """Never into more shares than are worth it."""
    assert shares(most, threads) == expected


@pytest.mark.parametrize(("most", "expected"), [(4, 4), (6, 2), (8, 4), (10, 2), (12, 4)])
def test_few_parts_are_shared_evenly(most: int, expected: int) -> None:
    """Ten parts in four shares would be 2, 3, 2, 3: six one after another."""
    assert shares(most, 2) == expected


def test_threads_run_one_executable_at_once() -> None:
    """Each run has memory of its own, and the pool serves one while the others go alone."""
    program = chain(3000, 12, threads=2)
    executable = loaded(program, 2)
    failures: list[int] = []

    def work(seed: int) -> None:
        x = numbers(3000, seed)
        expected = evaluate(program, {"x": x})["y"].tobytes()
        failures.extend(seed for _ in range(60) if executable.run([x])[0].tobytes() != expected)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert failures == []


def test_a_profile_has_a_time_for_every_step() -> None:
    """Steps of the host included; all together are no more than the whole run took."""
    times = loaded(chain(20_000, 6, 2, host=(3,)), 2).profile([numbers(20_000)])

    assert len(times) == 6
    assert all(0 <= t < 5 for t in times)
    assert sum(times) > 0


def test_a_number_out_of_range_is_refused_with_the_name_of_its_node() -> None:
    """A kernel notes it in its word of status; the next run starts afresh."""
    text = toy.ADD.replace(
        "done:\n",
        """done:
  %p3 = getelementptr ptr, ptr %args, i64 3
  %status = load ptr, ptr %p3
  %first = load float, ptr %a
  %bad = fcmp olt float %first, 0.0
  br i1 %bad, label %note, label %out
note:
  store i64 1, ptr %status
  br label %out
out:
""",
    )
    program = chain(5, 2)
    plain = toy.kernel(program.steps[0])
    executable = loaded(program, 1, [plain, Kernel(text, (5,), status=True)])
    assert executable.run([np.ones(5, np.float32)])[0][0] == 2.0
    with pytest.raises(RunnerError, match="at 'y': an index lies outside"):
        executable.run([-np.ones(5, np.float32)])

    assert executable.run([np.ones(5, np.float32)])[0][0] == 2.0


def test_each_thread_has_scratch_of_its_own() -> None:
    """A kernel that passes its sums through scratch gets them back, whatever the other threads do there."""
    text = toy.ADD.replace("  store float %s, ptr %py\n", "").replace(
        "  %n = load i64, ptr %dims\n",
        "  %p3 = getelementptr ptr, ptr %args, i64 3\n"
        "  %mine = load ptr, ptr %p3\n"
        "  %n = load i64, ptr %dims\n",
    )
    text = text.replace(
        "  %i1 =",
        "  store volatile float %s, ptr %mine\n  %k = load volatile float, ptr %mine\n"
        "  store float %k, ptr %py\n  %i1 =",
    )
    program = chain(40_000, 1, threads=2)
    executable = loaded(program, 2, [Kernel(text, (40_000,), scratch=4, threads=2)])
    x = numbers(40_000)
    for _ in range(20):
        assert executable.run([x])[0].tobytes() == evaluate(program, {"x": x})["y"].tobytes()


def test_text_that_llvm_refuses() -> None:
    """A fault of an emitter comes out as an error, and later kernels compile."""
    with pytest.raises(RuntimeError):
        compiler.compile_kernel(Kernel("define void @KERNEL() { nonsense }", ()), HOST)

    assert compiler.compile_kernel(Kernel(toy.ADD, ()), HOST) > 0


def test_code_that_calls_what_is_missing_is_left_to_the_host() -> None:
    """LLVM would end the process; the step's specification computes instead."""
    text = toy.ADD.replace("define void @KERNEL", "declare void @nobody_has_this()\ndefine void @KERNEL")
    text = text.replace("done:\n", "done:\n  call void @nobody_has_this()\n")
    with pytest.raises(RuntimeError, match="lacks"):
        compiler.compile_kernel(Kernel(text, ()), HOST)
    program = chain(6, 2)
    executable = loaded(program, 1, [toy.kernel(program.steps[0]), Kernel(text, (6,))])
    x = numbers(6)

    assert [kernel is None for kernel in executable.kernels] == [False, True]
    assert executable.run([x])[0].tobytes() == evaluate(program, {"x": x})["y"].tobytes()


@pytest.mark.skipif(sys.platform != "linux", reason="object files are ELF on Linux")
def test_names_that_an_object_needs() -> None:
    """A routine of libm that stands in the text, none where there is none."""
    from graphdoc.engine.device.llvm.symbols import undefined

    text = toy.ADD.replace("define void @KERNEL", "declare float @erff(float)\ndefine void @KERNEL")
    text = text.replace("%s = fadd float %x, %z", "%s = call float @erff(float %x)")
    plain, calls = (compiler.objects([t], HOST) for t in (toy.ADD, text))

    assert [list(undefined(body)) for body in plain.values()] == [[]]
    assert [list(undefined(body)) for body in calls.values()] == [["erff"]]
    assert list(undefined(b"no object file")) == []


def test_equal_texts_are_compiled_once() -> None:
    """Two programs share the code of equal kernels; functions of a kernel's own do not collide."""
    helper = "define internal void @KERNEL.help() {\n  ret void\n}\n"
    texts = [toy.ADD, helper + toy.ADD, helper + toy.ADD.replace("%lo0", "%low")]
    once = compiler.addresses(texts, HOST)

    assert len(set(once.values())) == 3
    assert compiler.addresses(texts, HOST) == once


class TestObjectCache:
    """The files of machine code."""

    def test_what_was_put_comes_back(self, tmp_path: Path) -> None:
        """The folder is made, closed to others."""
        folder = tmp_path / "a" / "objects"
        ObjectCache(folder).put("k1", b"code")

        assert ObjectCache(folder).get("k1") == b"code"
        assert ObjectCache(folder).get("k2") is None
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    @pytest.mark.parametrize("at", [0, 7, 8, 20, 39, 40, 45])
    def test_a_damaged_file_is_a_miss(self, tmp_path: Path, at: int) -> None:
        """One bit anywhere, and the file goes."""
        cache = ObjectCache(tmp_path / "o")
        cache.put("k", b"some code")
        (path,) = (tmp_path / "o").iterdir()
        content = bytearray(path.read_bytes())
        content[at] ^= 4
        path.write_bytes(content)

        assert cache.get("k") is None
        assert not path.exists()

    @pytest.mark.parametrize("length", [0, 5, 39, 40, 48])
    def test_a_short_file_is_a_miss(self, tmp_path: Path, length: int) -> None:
        """As a full disk may leave it."""
        cache = ObjectCache(tmp_path / "o")
        cache.put("k", b"some code")
        (path,) = (tmp_path / "o").iterdir()
        path.write_bytes(path.read_bytes()[:length])

        assert cache.get("k") is None

    def test_a_folder_open_to_others_is_not_trusted(self, tmp_path: Path) -> None:
        """Anyone could have put code there."""
        cache = ObjectCache(tmp_path / "o")
        cache.put("k", b"code")
        (tmp_path / "o").chmod(0o777)

        assert cache.get("k") is None

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        """Nothing is kept, nothing fails."""
        (tmp_path / "file").write_text("", "utf-8")
        for cache in (ObjectCache(tmp_path / "file" / "o"), ObjectCache(tmp_path / "file"), ObjectCache()):
            cache.put("k", b"code")
            assert cache.get("k") is None

    def test_the_oldest_go_first(self, tmp_path: Path) -> None:
        """Past the limit files are dropped, and what killed processes left."""
        cache = ObjectCache(tmp_path / "o", limit=10_000)
        for number in range(12):
            cache.put(f"k{number:02}", bytes(1000))
            path = tmp_path / "o" / f"k{number:02}.o"
            if path.exists():
                os.utime(path, (number, number))
        left = tmp_path / "o" / ".new-abc"
        left.write_bytes(b"half")
        os.utime(left, (1, 1))
        cache.put("k99", bytes(1300))

        names = sorted(path.name for path in (tmp_path / "o").iterdir())
        assert "k99.o" in names
        assert "k00.o" not in names
        assert ".new-abc" not in names
        assert sum(path.stat().st_size for path in (tmp_path / "o").iterdir()) <= 10_000


def run_python(code: str, tmp_path: Path, root: Path) -> "subprocess.CompletedProcess[str]":
    """Run a script with a cache of its own."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(root)}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


_PRELUDE = """
    import os, sys, signal, threading, time
    import numpy as np
    from tests.engine.llvm.test_runtime import chain, loaded, numbers
    from graphdoc.engine.program import evaluate
"""


def test_code_comes_from_the_cache_in_a_second_process(tmp_path: Path, root: Path) -> None:
    """The second process compiles nothing."""
    code = (
        _PRELUDE
        + """
    from graphdoc.engine.device.llvm import compiler
    made = []
    real = compiler._compile
    compiler._compile = lambda *a: made.append(1) or real(*a)
    loaded(chain(10, 3, 2), 2).run([numbers(10)])
    print(len(made))
    """
    )
    first, second = (run_python(code, tmp_path, root) for _ in range(2))

    assert int(first.stdout) > 0, first.stderr
    assert int(second.stdout) == 0, second.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_computes(tmp_path: Path, root: Path) -> None:
    """The child has no workers and starts its own; neither parent nor child hangs or differs."""
    code = (
        _PRELUDE
        + """
    program = chain(20_000, 8, 2)
    executable = loaded(program, 2)
    x = numbers(20_000)
    expected = evaluate(program, {"x": x})["y"].tobytes()
    assert executable.run([x])[0].tobytes() == expected
    for _ in range(5):
        child = os.fork()
        if not child:
            signal.alarm(20)
            good = all(executable.run([x])[0].tobytes() == expected for _ in range(5))
            os._exit(0 if good else 3)
        assert executable.run([x])[0].tobytes() == expected
        assert os.waitpid(child, 0)[1] == 0
    print("done")
    """
    )
    found = run_python(code, tmp_path, root)

    assert found.stdout == "done\n", found.stderr
    assert found.returncode == 0


def test_a_process_ends_while_workers_spin_or_run(tmp_path: Path, root: Path) -> None:
    """Code stays mapped to the very end: no crash as the interpreter goes down."""
    code = (
        _PRELUDE
        + """
    executable = loaded(chain(200_000, 30, 2), 2)
    x = numbers(200_000)
    worker = threading.Thread(target=lambda: [executable.run([x]) for _ in range(10_000)], daemon=True)
    worker.start()
    time.sleep(0.2)
    """
    )
    for _ in range(3):
        assert run_python(code, tmp_path, root).returncode == 0


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_writer_leaves_the_cache_whole(tmp_path: Path, root: Path) -> None:
    """Whatever the moment, the next process reads right code or none."""
    code = """
    import pathlib
    from graphdoc.engine.device.llvm.objects import ObjectCache
    cache = ObjectCache(pathlib.Path(__import__("os").environ["XDG_CACHE_HOME"]) / "o")
    print("go", flush=True)
    for number in range(10**6):
        cache.put(f"k{number % 7}", bytes([number % 7]) * 50_000)
    """
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    for wait in (0.01, 0.03, 0.05):
        writer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], env=environment, stdout=subprocess.PIPE
        )
        with writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"go\n"
            threading.Event().wait(wait)
            writer.kill()
        cache = ObjectCache(tmp_path / "o")
        for number in range(7):
            assert cache.get(f"k{number}") in (None, bytes([number]) * 50_000)
