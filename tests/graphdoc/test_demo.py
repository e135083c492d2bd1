"""Where the demo's model comes from. No test here needs a network: pip is replaced by a fake."""

import hashlib
import pathlib
import subprocess
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

from graphdoc import demo
from graphdoc.engine.errors import ModelError

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
