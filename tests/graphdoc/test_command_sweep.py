"""``graphdoc sweep``: which cases there are, what comes out, what is kept, what cannot end it."""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graphdoc import cli
from graphdoc.compare.result import Status
from graphdoc.engine.errors import GraphdocError
from graphdoc.reports.jsonform import from_json
from graphdoc.reports.sweep import SweepRow, result_fields, sweep_of, what
from graphdoc.reports.sweep_html import render_html
from graphdoc.reports.sweep_text import sweep_json, sweep_lines, sweep_markdown
from graphdoc.sweep_cases import Case, find_cases
from graphdoc.sweep_run import Outcome
from graphdoc.sweep_store import Store
from tests.graphdoc import small_models
from tests.reports.pages import Page
from tests.reports.synthetic import HOSTILE, comparison


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder of its own, in it models/a.onnx, models/b.onnx and models/sub/a.onnx."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "sub").mkdir(parents=True)
    small_models.save(tmp_path / "models", "a.onnx")
    small_models.save(tmp_path / "models", "b.onnx", scale=1.01)
    small_models.save(tmp_path / "models" / "sub", "a.onnx", scale=2.0)
    return tmp_path


def sweep(*arguments: str) -> int:
    return cli.run(["sweep", *arguments, "--ref", "reference"])


def summary(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the cases of ``--json -`` by name."""
    document = json.loads(capsys.readouterr().out)
    return {row["name"]: row for row in document["cases"]}


# Which cases


def names(*what: str, **options: Any) -> list[str]:
    return [case.name for case in find_cases(what, **options)]


def test_folders_globs_and_models(folder: pathlib.Path) -> None:
    """A folder counts with all below it, sorted; what is named twice counts once."""
    assert names("models") == ["a", "b", "sub-a"]
    assert names("models/*.onnx") == ["a", "b"]
    assert names("models/**/a.onnx") == names("models/a.onnx", "models/sub/a.onnx")
    assert names("models/a.onnx", "models/a.onnx") == ["a"]
    assert len(set(names("models/a.onnx", "models/sub/a.onnx"))) == 2
    assert names("models/sub") == ["a"]


def test_names_do_not_depend_on_the_other_cases_once_they_clash(folder: pathlib.Path) -> None:
    """Two models of a name get digits that follow from their paths, so a later sweep finds them again."""
    two = names("models/a.onnx", "models/sub/a.onnx")

    assert two == names("models/a.onnx", "models/sub/a.onnx", "models/b.onnx")[:2]
    assert all(re.fullmatch(r"a-[0-9a-f]{8}", name) for name in two)


def test_a_list(folder: pathlib.Path) -> None:
    """MODEL, MODEL TEST, MODEL INPUTS, MODEL TEST INPUTS; names are beside the list."""
    lines = [
        "# a remark",
        "",
        "a.onnx",
        "a.onnx b.onnx   # two models",
        "a.onnx x.npz",
        "a.onnx b.onnx x.npz",
        "'a b.onnx' - y.npz",
    ]
    (folder / "models" / "list.txt").write_text("\n".join(lines), encoding="utf-8")
    found = find_cases(["models/list.txt"])

    assert [(c.ref, c.test, c.inputs) for c in found] == [
        ("models/a.onnx", None, None),
        ("models/a.onnx", "models/b.onnx", None),
        ("models/a.onnx", None, "models/x.npz"),
        ("models/a.onnx", "models/b.onnx", "models/x.npz"),
        ("models/a b.onnx", None, "models/y.npz"),
    ]
    assert [c.name for c in found] == ["a", "a-b", "a-x", "a-b-x", "a-b-y"]


def test_many_inputs_and_seeds(folder: pathlib.Path) -> None:
    """Every model on every input; a folder of data sets counts as many; seeds are for made-up inputs."""
    for n in (0, 1, 10):
        (folder / "data" / f"test_data_set_{n}").mkdir(parents=True)
    (folder / "x.npz").touch()

    assert names("models/*.onnx", seeds=(0, 1)) == ["a-seed0", "a-seed1", "b-seed0", "b-seed1"]
    assert [c.inputs for c in find_cases(["models/a.onnx"], inputs=["data", "*.npz"], seeds=(3, 4))] == [
        "data/test_data_set_0",
        "data/test_data_set_1",
        "data/test_data_set_10",
        "x.npz",
    ]


def test_against_another_folder(folder: pathlib.Path) -> None:
    """Pairs by the name below the folder."""
    assert [c.test for c in find_cases(["models"], against="fp16")] == [
        "fp16/a.onnx",
        "fp16/b.onnx",
        "fp16/sub/a.onnx",
    ]


@pytest.mark.parametrize("name", ["index", "a\n<b>", ".hidden", "x" * 200, "층", "-o", "../up", "con/../.."])
def test_every_name_is_one_for_a_file(name: str, folder: pathlib.Path) -> None:
    (case,) = find_cases([f"{name}.onnx"])

    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", case.name)
    assert case.name != "index"
    assert case.ref == f"{name}.onnx"


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("nothing*.onnx",), 2, "no file matches"),
        (("empty",), 2, "no model in 'empty'"),
        (("models", "--inputs", "*.npy"), 2, "no file matches"),
        (("empty.txt",), 3, "the list is empty"),
        (("long.txt",), 3, "at most 3 names"),
        (("quote.txt",), 3, "no closing quotation"),
        (("latin.txt",), 3, "not UTF-8"),
        (("long.txt", "--against", "models"), 2, "do not go together"),
        (("models", "-j", "2", "--dask", "tcp://127.0.0.1:1"), 2, "do not go together"),
        (("models", "-j", "0"), 2, "0 is not in the range"),
        (("models", "--memory", "much"), 2, "not a size"),
        (("models", "-o", "models"), 2, "no results of a sweep"),
        (("models", "--json", "no/such/folder.json"), 3, "there is no folder"),
        ((), 2, "Missing argument"),
    ],
)
def test_what_cannot_be_understood_is_refused(
    arguments: tuple[str, ...], code: int, part: str, folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything runs; nothing of the user's is touched."""
    (folder / "empty").mkdir()
    (folder / "empty.txt").write_text("# nothing\n", encoding="utf-8")
    (folder / "long.txt").write_text("a b c d\n", encoding="utf-8")
    (folder / "quote.txt").write_text("'a b\n", encoding="utf-8")
    (folder / "latin.txt").write_bytes(b"\xe9t\xe9.onnx\n")
    before = sorted(p.name for p in folder.rglob("*"))

    assert sweep(*arguments) == code
    shown = capsys.readouterr()
    assert part in shown.err
    assert "Traceback" not in shown.err
    assert sorted(p.name for p in folder.rglob("*")) == before


# What comes out


def test_every_case_gets_its_files_and_its_line(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of each kind, two at a time: the failing ones first, the exit code is the largest."""
    (folder / "models" / "broken.onnx").write_bytes(b"\x08\x07garbage")
    lines = ["a.onnx", "a.onnx b.onnx", "broken.onnx", "a.onnx missing.npz"]
    (folder / "models" / "list.txt").write_text("\n".join(lines), encoding="utf-8")

    assert sweep("models/list.txt", "-j", "2", "-o", "out", "--test", "reference") == 3
    rows = [line.split()[:3] for line in capsys.readouterr().out.splitlines()[3:7]]
    assert rows == [
        ["✗", "invalid", "a-missing"],
        ["✗", "invalid", "broken"],
        ["✗", "differs", "a-b"],
        ["✓", "agrees", "a"],
    ]
    written = {path.name for path in (folder / "out").iterdir() if not path.name.startswith(".")}
    assert written == {
        "index.html",
        *(f"{name}{end}" for name in ("a", "a-b") for end in (".html", ".json", ".state.json")),
    }
    result = from_json((folder / "out" / "a-b.json").read_text("utf-8"))
    assert (result.verdict.exit_code, result.verdict.first) == (1, 2)
    assert result.b.latency is None or result.b.latency.runs == 1, "no timing beside other cases"
    page = Page((folder / "out" / "index.html").read_text("utf-8"))
    links = [link.get("href") for link in page.all("a") if not (link.get("href") or "").startswith("#")]
    assert links == ["a-b.html", "a.html"]


def test_results_that_still_hold_are_taken_over(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A changed model, a changed file of results, another option: compared again; else taken over."""

    def taken(*options: str) -> dict[str, bool]:
        sweep("models/a.onnx", "models/b.onnx", "-o", "out", "--taps", "outputs", "--json", "-", *options)
        return {name: row["taken_over"] for name, row in summary(capsys).items()}

    assert taken("-j", "2") == {"a": False, "b": False}
    assert taken() == {"a": True, "b": True}
    small_models.save(folder / "models", "b.onnx", scale=1.5)
    assert taken("-j", "2") == {"a": True, "b": False}
    (folder / "out" / "a.json").write_text("{}", encoding="utf-8")
    assert taken() == {"a": False, "b": True}
    assert taken("--fresh", "-j", "2") == {"a": False, "b": False}
    assert taken("--rtol", "0.5", "-j", "2") == {"a": False, "b": False}


KILLER = """
import os, signal, sys, time
case = next((word for word in sys.argv if word.endswith(".onnx")), "")
if os.path.exists("armed") and case.endswith("b.onnx"):
    if {how!r}.startswith("parent"):
        os.kill(os.getppid(), signal.SIGTERM if {how!r} == "parent, kindly" else signal.SIGINT)
        time.sleep(60)
    os.kill(os.getpid(), signal.{how})
"""


def arm(folder: pathlib.Path, how: str) -> None:
    """Write operators whose loading ends the case b.onnx, or the sweep that waits for it."""
    (folder / "killer.py").write_text(KILLER.format(how=how), encoding="utf-8")
    (folder / "armed").touch()


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_killed_case_is_a_line_like_others(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when memory runs out: its line says so, the others are done, its old result is gone."""
    arguments = ("models/a.onnx", "models/b.onnx", "-o", "out", "-j", "2", "--json", "-", "--taps", "outputs")
    assert sweep(*arguments) in (0, 1)
    capsys.readouterr()
    arm(folder, "SIGKILL")

    assert sweep(*arguments, "--ops", "killer.py") == 4
    rows = summary(capsys)
    assert rows["a"]["exit_code"] == 0
    assert "SIGKILL" in rows["b"]["sentence"]
    assert rows["b"]["page"] == ""
    assert not list((folder / "out").glob("b.*"))


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("how", ["parent", "parent, kindly"], ids=["SIGINT", "SIGTERM"])
def test_interrupted_and_resumed(how: str, folder: pathlib.Path) -> None:
    """Ctrl-C in the second case: exit 130, the first is kept and shown; the next call does the rest."""
    arm(folder, how)
    words = ["sweep", "models/a.onnx", "models/b.onnx", "models/sub", "-o", "out", "--ops", "killer.py"]
    command = [sys.executable, "-m", "graphdoc", *words, "--ref", "reference", "--taps", "outputs"]
    first = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=60, check=False)

    assert first.returncode == 130, first.stderr
    assert "Traceback" not in first.stderr
    assert "2 not run" in first.stdout
    assert len(list((folder / "out").glob("*.state.json"))) == 1
    assert (folder / "out" / "index.html").exists()
    (folder / "armed").unlink()
    again = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=90, check=False)

    assert again.returncode == 0, again.stdout + again.stderr
    assert "3 agree, 1 taken over" in again.stdout


def test_a_case_that_takes_too_long_is_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("models/a.onnx", "--timeout", "0.05", "--json", "-") == 4
    assert "stopped after 0.05 s" in summary(capsys)["a"]["sentence"]


def test_memory_and_threads_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cases at a time get a quarter of the memory each, and no timing."""
    from graphdoc import sweep_run

    plan = sweep_run.Plan(jobs=4, memory=2**32)
    words = sweep_run._words(Case("a", "a.onnx", seed=3), plan, pathlib.Path("p.html"))

    assert words[words.index("--memory") + 1] == str(2**30)
    assert words[-4:] == ["--seed", "3", "--", "a.onnx"]
    assert "--no-latency" in words
    assert "--latency" in sweep_run._words(Case("a", "a.onnx"), sweep_run.Plan(), pathlib.Path("p.html"))


@pytest.mark.parametrize(
    ("code", "out", "page", "err", "expected", "part"),
    [
        (0, "{}", "page", b"", 0, None),
        (1, "{}", "page", b"", 1, None),
        (0, "", "", b"", 4, "nothing was printed"),
        (1, "", "", b"some library: no memory", 4, "exit code 1: some library: no memory"),
        (1, "{cut", "page", b"gone", 4, "gone"),
        (3, "", "", "✗ not a model\n  where  x".encode(), 3, "not a model"),
        (1, "", "", b"Traceback (most recent call last):\nKeyError: 1", 4, "KeyError: 1"),
        (-11, "", "", b"", 4, "SIGSEGV"),
        (-9, "{}", "page", b"", 4, "memory runs out"),
        (139, "", "", b"x", 4, "exit code 139"),
    ],
)
def test_every_end_of_a_process_is_an_outcome(
    code: int, out: str, page: str, err: bytes, expected: int, part: str | None
) -> None:
    """An accident is never taken for a verdict: 0 and 1 count only with a result."""
    from graphdoc import sweep_run

    outcome = sweep_run._outcome(code, out, page, err, 1.0)

    assert outcome.exit_code == expected
    assert bool(outcome.text) == (part is None)
    assert part is None or part in outcome.error[0]


@pytest.mark.skipif(sys.platform != "linux", reason="the system bounds memory on Linux only")
def test_a_case_keeps_to_its_share_of_memory(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what a process needs is refused by the system: that case fails in words, nothing else."""
    from graphdoc import sweep_run

    plan = sweep_run.Plan(("--ref", "reference"), jobs=2)
    case = Case("a", "models/a.onnx")
    assert sweep_run.run_case(case, plan).exit_code == 0
    monkeypatch.setattr(sweep_run, "memory_available", lambda: 40_000_000)
    starved = sweep_run.run_case(case, plan)

    assert starved.exit_code in (3, 4)
    assert (starved.text, bool(starved.error)) == ("", True)


# Many machines


CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


def test_two_dask_workers(folder: pathlib.Path) -> None:
    """The same lines and files as here; a killed case ends neither a worker nor the sweep."""
    (folder / "cluster.py").write_text(CLUSTER, encoding="utf-8")
    arm(folder, "SIGKILL")
    words = ["sweep", "models", "-o", "out", "--ops", "killer.py", "--ref", "reference", "--json", "-"]
    with subprocess.Popen(
        [sys.executable, "cluster.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as cluster:
        assert cluster.stdout
        address = cluster.stdout.readline().strip()
        command = [sys.executable, "-m", "graphdoc", *words, "--dask", address]
        run = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", timeout=150, check=False
        )
        cluster.communicate("")

    assert run.returncode == 4, run.stderr
    codes = {row["name"]: row["exit_code"] for row in json.loads(run.stdout)["cases"]}
    assert codes == {"a": 0, "b": 4, "sub-a": 0}
    assert {p.name for p in (folder / "out").glob("*.json")} >= {"a.json", "sub-a.json"}


def test_without_dask_the_error_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)  # as if it were not there
    assert sweep("models", "--dask", "tcp://127.0.0.1:1") == 2
    assert 'pip install "onnx-graphdoc[dask]"' in capsys.readouterr().err


# Keeping


def test_a_key_follows_every_part(folder: pathlib.Path) -> None:
    """Another model, input, seed, option or operator file: another key. A missing file: none."""
    np.savez(folder / "x.npz", x=np.zeros(3))
    (folder / "ops.py").write_text("A = 1\n", encoding="utf-8")

    def key(case: Case, *options: str) -> str | None:
        return Store(folder / "out", options, ("ops.py",)).key(case)

    case = Case("a", "models/a.onnx", "models/b.onnx", "x.npz")
    keys = [
        key(case),
        key(case, "--rtol", "1"),
        key(Case("a", "models/a.onnx", "models/b.onnx")),
        key(Case("a", "models/a.onnx", "models/b.onnx", seed=1)),
        key(Case("a", "models/a.onnx")),
    ]
    np.savez(folder / "x.npz", x=np.ones(3))
    keys.append(key(case))
    small_models.save(folder / "models", "b.onnx", scale=9.0)
    keys.append(key(case))
    (folder / "ops.py").write_text("A = 2\n", encoding="utf-8")
    keys.append(key(case))

    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert key(case) == keys[-1]
    assert key(Case("a", "no.onnx")) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda out: (out / "a.state.json").write_text("{", encoding="utf-8"),
        lambda out: (out / "a.state.json").write_text("[]", encoding="utf-8"),
        lambda out: (out / "a.state.json").unlink(),
        lambda out: (out / "a.html").unlink(),
        lambda out: (out / "a.html").write_text("other", encoding="utf-8"),
        lambda out: (out / "a.json").write_bytes(b"\xff"),
    ],
)
def test_a_damaged_result_is_not_taken_over(folder: pathlib.Path, spoil: Callable[[Any], Any]) -> None:
    store, case = Store(folder / "out"), Case("a", "models/a.onnx")
    store.prepare()
    store.keep(case, "key", Outcome(0, "text", "page", seconds=1.0))
    assert store.held(case, "key") == Outcome(0, "text", "page", seconds=1.0)
    assert store.held(case, "other") is None

    spoil(folder / "out")
    assert store.held(case, "key") is None


def test_a_failed_run_is_tried_again(folder: pathlib.Path) -> None:
    """Its result is shown; memory may have been short, so the next sweep does not take it over."""
    store, case = Store(folder / "out"), Case("a", "models/a.onnx")
    store.prepare()
    store.keep(case, "key", Outcome(4, "text", "page"))

    assert (folder / "out" / "a.html").exists()
    assert store.held(case, "key") is None


def test_a_folder_of_others_is_left_alone(folder: pathlib.Path) -> None:
    with pytest.raises(GraphdocError, match="no results of a sweep"):
        Store(folder / "models").prepare()
    assert sorted(p.name for p in (folder / "models").iterdir()) == ["a.onnx", "b.onnx", "sub"]


# Forms


def rows(hostile: bool = False) -> list[SweepRow]:
    text = HOSTILE if hostile else ("a", "b", "c", "d", "e", "f")
    kinds = ((0, "✓"), (1, "✗"), (1, "∅"), (4, "✗"), (5, "–"), (0, "▲"))
    return [
        SweepRow(
            name=f"case{n}",
            ref=text[n],
            exit_code=code,
            symbol=symbol,
            word="word",
            sentence=text[(n + 1) % len(text)],
            first=text[(n + 2) % len(text)],
            worst=float(n) if n % 2 else float("inf"),
            page=f"case{n}.html" if code != 4 else "",
        )
        for n, (code, symbol) in enumerate(kinds)
    ]


@pytest.mark.parametrize("hostile", [False, True])
def test_every_form(hostile: bool) -> None:
    """Sorted whatever the order of the rows, well formed, inert; strict JSON; a short comment."""
    found, turned = sweep_of(rows(hostile)), sweep_of(rows(hostile)[::-1])
    page = Page(render_html(found))

    assert found == turned
    assert [row.name for row in found.rows] == ["case3", "case4", "case2", "case1", "case5", "case0"]
    assert found.exit_code == 5
    assert len(page.all("script")) == 1
    assert page.all("img") == []
    assert render_html(turned) == render_html(found)
    assert json.loads(sweep_json(found), parse_constant=pytest.fail)["exit_code"] == 5
    assert len(sweep_markdown(found).splitlines()) < 60
    text = sweep_lines(found, color=False, pipe=True)
    assert text.startswith("✗ 4 of 6 cases did not agree   2 agree, 2 differ, 1 failed, 1 compared nothing\n")
    assert "\x1b" not in text
    assert sweep_lines(found, color=False, pipe=True, unicode=False).isascii()


def test_an_output_that_cannot_be_judged_is_said() -> None:
    """A case that agrees but for an output with a remark does not look like one that agrees."""
    result = comparison("agrees", 4)
    odd = dataclasses.replace(result.layers[3], status=Status.REMARK)
    plain, remarked = (
        SweepRow(name="a", ref="a", **result_fields(dataclasses.replace(result, layers=layers)))  # type: ignore[arg-type]
        for layers in (result.layers, (*result.layers[:3], odd))
    )

    assert what(plain) == "4 of 4 layers agree within float32 rounding"
    assert what(remarked) == "4 of 4 layers agree within float32 rounding; an output has a remark"


def test_nothing_at_all_is_a_failure() -> None:
    assert sweep_of([]).exit_code == 5
