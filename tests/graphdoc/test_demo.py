"""Where the demo's model comes from. No test here needs a network: pip is replaced by a fake."""

import hashlib
import pathlib
import subprocess
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

from graphdoc import cli, demo
from graphdoc.engine.errors import ModelError
from tests.graphdoc import small_models

CONTENT = b"the model's bytes"
MODEL = demo.PackagedModel(
    "some-package", "1.0", "some/model.onnx", hashlib.sha256(CONTENT).hexdigest(), "m.onnx"
)

Calls = list[list[str]]


@pytest.fixture
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "graphdoc"


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Calls]:
    """Let "pip download" do what a test says; the result lists the commands it was called with."""

    def install(
        *, member: str = MODEL.member, content: bytes = CONTENT, code: int = 0, log: str = ""
    ) -> Calls:
        calls: Calls = []

        def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
            calls.append(command)
            if not code:
                folder = pathlib.Path(command[command.index("--dest") + 1])
                with zipfile.ZipFile(folder / "some_package-1.0-py3-none-any.whl", "w") as archive:
                    archive.writestr(member, content)
            return subprocess.CompletedProcess(command, code, "", log)

        monkeypatch.setattr(subprocess, "run", run)
        return calls

    return install


def test_the_model_is_fetched_once(cache: pathlib.Path, pip: Callable[..., Calls]) -> None:
    """The first call downloads the pinned version, the second reads the cache."""
    calls = pip()

    first, second = demo.fetch(MODEL), demo.fetch(MODEL)

    assert first == second == cache / "m.onnx"
    assert first.read_bytes() == CONTENT
    assert [path.name for path in cache.iterdir()] == ["m.onnx"]
    (command,) = calls
    assert command[1:4] == ["-m", "pip", "download"]
    assert command[-1] == "some-package==1.0"
    assert "install" not in command


def test_a_damaged_cache_is_replaced(cache: pathlib.Path, pip: Callable[..., Calls]) -> None:
    """A file that is not what it should be counts as missing."""
    pip()
    cache.mkdir()
    (cache / "m.onnx").write_bytes(b"half")

    assert demo.cached(MODEL) is None
    assert demo.fetch(MODEL).read_bytes() == CONTENT


def test_another_hash_is_refused(cache: pathlib.Path, pip: Callable[..., Calls]) -> None:
    """A package that delivers another file is not believed, and nothing is kept."""
    pip(content=b"something else")

    with pytest.raises(ModelError, match="delivers another model") as caught:
        demo.fetch(MODEL)

    assert hashlib.sha256(b"something else").hexdigest() in str(caught.value)
    assert not cache.exists()


def test_a_wheel_without_the_model_is_refused(cache: pathlib.Path, pip: Callable[..., Calls]) -> None:
    """The message names the member that is missing."""
    pip(member="some/other.onnx")

    with pytest.raises(ModelError, match=r"does not hold some/model\.onnx"):
        demo.fetch(MODEL)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("WARNING: Retrying after connection broken\nERROR: No matching distribution", "no connection"),
        ("ERROR: first\nERROR: Hash mismatch\n", "Hash mismatch"),
        ("python: No module named pip", "No module named pip"),
        ("", "no reason given"),
    ],
)
def test_a_failed_download_says_why(
    cache: pathlib.Path, pip: Callable[..., Calls], log: str, reason: str
) -> None:
    """Cause, pip's reason and a next step; exit code 3."""
    pip(code=1, log=log)

    with pytest.raises(ModelError, match=reason) as caught:
        demo.fetch(MODEL)

    assert "could not be downloaded" in caught.value.cause
    assert caught.value.next_step
    assert caught.value.exit_code == 3


def test_a_download_that_hangs_ends(cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The download has a time limit."""

    def hang(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)

    with pytest.raises(ModelError, match="no answer within 300 s"):
        demo.fetch(MODEL)


def test_a_cache_that_cannot_be_written_leaves_nothing(
    cache: pathlib.Path, pip: Callable[..., Calls], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed rename removes the temporary file and passes the error on."""
    pip()

    def refuse(self: pathlib.Path, target: object) -> pathlib.Path:
        raise PermissionError(13, "Permission denied", str(target))

    monkeypatch.setattr(pathlib.Path, "replace", refuse)

    with pytest.raises(PermissionError):
        demo.fetch(MODEL)
    assert list(cache.iterdir()) == []


def test_the_real_model_is_pinned() -> None:
    """Version and hash are exact."""
    assert len(demo.MODEL.sha256) == 64
    assert demo.MODEL.version.replace(".", "").isdigit()


def test_without_xdg_the_cache_lies_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default of the XDG specification."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    assert demo.cache_folder() == pathlib.Path.home() / ".cache" / "graphdoc"


def test_the_command_prints_the_verdict_and_writes_the_page(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On one screen: the verdict first, the page's place last; on a small model in place of the real one."""
    model = small_models.save(tmp_path)
    monkeypatch.setattr(demo, "cached", lambda model=None: tmp_path)
    monkeypatch.setattr(demo, "fetch", lambda: model)
    monkeypatch.setattr(demo, "SHAPE", "x=2x16")
    page = tmp_path / "page.html"

    code = cli.run(["demo", "-o", str(page)])

    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert lines[0].startswith("✓ agrees   4 of 4 layers agree")
    assert lines[-1].split() == ["report", str(page)]
    assert len(lines) <= 24
    assert "node_softmax_3" in page.read_text("utf-8")


def test_the_command_fails_without_a_network(
    cache: pathlib.Path,
    pip: Callable[..., Calls],
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 3, cause and next step on stderr, nothing on stdout, no page."""
    pip(code=1, log="ERROR: no connection")
    page = tmp_path / "page.html"

    code = cli.run(["demo", "-o", str(page)])

    shown = capsys.readouterr()
    assert code == 3
    assert shown.out == ""
    assert "could not be downloaded" in shown.err
    assert "  next   " in shown.err
    assert not page.exists()


@pytest.mark.skipif(
    demo.cached() is None, reason="the demo's model is not in the cache: graphdoc demo fetches it"
)
def test_the_real_model_agrees(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All 330 layers of the real detector agree."""
    code = cli.run(["demo", "-o", str(tmp_path / "page.html")])

    assert code == 0
    assert capsys.readouterr().out.startswith("✓ agrees   330 of 330 layers agree")
