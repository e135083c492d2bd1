"""The model of ``graphdoc demo``: a trained text detector that a package on PyPI carries.

It is taken out of the package's wheel, never installed, checked by SHA-256 and kept in the user's cache, so
that it is fetched once.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from graphdoc.engine.cache import cache_folder
from graphdoc.engine.errors import ModelError

_TIMEOUT = 300
"""Seconds for the whole download (15 MB)."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model inside a wheel.

    member: its path in the wheel. sha256: of the model's bytes. file: its name in the cache.
    """

    package: str
    version: str
    member: str
    sha256: str
    file: str


MODEL = PackagedModel(
    package="rapidocr-onnxruntime",
    version="1.4.4",
    member="rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
    sha256="d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    file="ppocr_v4_det.onnx",
)
"""PP-OCRv4 text detection, Apache-2.0, 4.75 MB, 330 layers."""

SHAPE = "x=1x3x320x480"
"""A page cut to a size that the detector's 32-fold grid divides."""


def cached(model: PackagedModel = MODEL) -> Path | None:
    """Return the model's file if it is in the cache and whole, else None."""
    path = cache_folder() / model.file
    return path if path.is_file() and _digest(path.read_bytes()) == model.sha256 else None


def fetch(model: PackagedModel = MODEL) -> Path:
    """Return the model's file, downloading it if it is not in the cache.

    Raises ModelError when it cannot be downloaded, or is not the file it should be.
    """
    return cached(model) or _store(model, _download(model))


def _download(model: PackagedModel) -> bytes:
    with tempfile.TemporaryDirectory(prefix="graphdoc-") as folder:
        _pip_download(model, folder)
        data = _member(model, Path(folder))
    if _digest(data) != model.sha256:
        raise ModelError(
            f"{model.package} {model.version} delivers another model than expected",
            where=f"{model.member}: sha256 {_digest(data)}",
            next_step="check the package index that pip uses:  pip config list",
        )
    return data


def _pip_download(model: PackagedModel, folder: str) -> None:
    """Put the package's wheel into ``folder``; pip knows the user's index, proxy and certificates."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--retries=1", "--timeout=15", "--dest", folder]
    command.append(f"{model.package}=={model.version}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise _unreachable(model, f"no answer within {_TIMEOUT} s") from None
    if done.returncode:
        raise _unreachable(model, _last_error(done.stderr))


def _unreachable(model: PackagedModel, reason: str) -> ModelError:
    return ModelError(
        f"the demo's model could not be downloaded: {model.package} {model.version}",
        where=f"pip download: {reason}",
        next_step="connect to a network and repeat, or try a model of yours:  graphdoc compare MODEL",
    )


def _last_error(log: str) -> str:
    """Return the line of pip's log that says what went wrong."""
    if "connection" in log.lower():
        return "no connection to the package index"
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["no reason given"])[-1]


def _member(model: PackagedModel, folder: Path) -> bytes:
    """Return the model's bytes out of the one wheel in ``folder``."""
    wheel = next(folder.glob("*.whl"), None)
    try:
        if wheel is None:
            raise KeyError(model.package)
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(model.member)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(
            f"{model.package} {model.version} does not hold {model.member}",
            where=wheel.name if wheel else "no wheel was downloaded",
            next_step="check the package index that pip uses:  pip config list",
        ) from error


def _store(model: PackagedModel, data: bytes) -> Path:
    """Write to a name of its own first, so that two demos at once or a full disk leave no half file."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(data)
            file.close()
            temporary.replace(folder / model.file)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
    return folder / model.file


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
