"""The wheel: built from the sources, installed into a fresh environment, used from another folder."""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest

from tests import sources
from tests.graphdoc import small_models

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]


def run(*command: str | pathlib.Path, cwd: pathlib.Path, code: int = 0) -> str:
    """Run a command; return its output and show it when the exit code is another than expected."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV_", "PYTEST"))}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=clean, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, root: pathlib.Path) -> pathlib.Path:
    """Build the wheel from a copy, so that nothing is left in the checkout and nothing old gets in."""
    copy = tmp_path_factory.mktemp("source")
    for name in sources.FOLDERS:
        shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, copy)
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, copy, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory, wheel: pathlib.Path) -> pathlib.Path:
    """Install the wheel into a fresh environment that borrows the dependencies of this one."""
    home = tmp_path_factory.mktemp("fresh") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home.parent)
    scripts = home / ("Scripts" if os.name == "nt" else "bin")
    install = ("install", "--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", scripts / "python", *install, wheel, cwd=home.parent)
    place = run(scripts / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home)
    (pathlib.Path(place.strip()) / "borrowed.pth").write_text(sysconfig.get_path("purelib"), "utf-8")
    return scripts


def test_the_wheel_holds_every_source_file_and_nothing_else(wheel: pathlib.Path, root: pathlib.Path) -> None:
    """Every module, template and marker of the five folders is in it, under graphdoc/, and no test is."""
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    files = [p for f in sources.FOLDERS for p in (root / f).rglob("*") if p.is_file()]
    wanted = {p.relative_to(root).as_posix() for p in files if "__pycache__" not in p.parts}

    assert names == {n if n.startswith("graphdoc/") else f"graphdoc/{n}" for n in wanted}


def test_the_wheel_says_what_it_is(wheel: pathlib.Path) -> None:
    """Licence, command and plugin are in the metadata."""
    archive = zipfile.ZipFile(wheel)
    info = {n.partition("/")[2]: archive.read(n).decode() for n in archive.namelist() if ".dist-info/" in n}

    assert "Apache License" in info["licenses/LICENSE"]
    assert "graphdoc = graphdoc.cli:main" in info["entry_points.txt"]
    assert "graphdoc = graphdoc.plugin" in info["entry_points.txt"]
    assert "License-Expression: Apache-2.0" in info["METADATA"]


def test_the_installed_command_works_elsewhere(bin_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """``graphdoc compare`` runs, agrees and writes its page, with the package of the wheel."""
    small_models.save(tmp_path)
    place = run(bin_folder / "python", "-c", "import graphdoc.engine as e; print(e.__file__)", cwd=tmp_path)

    assert pathlib.Path(place.strip()).is_relative_to(bin_folder.parent)
    assert run(bin_folder / "graphdoc", "--version", cwd=tmp_path).startswith("graphdoc")
    shown = run(bin_folder / "graphdoc", "compare", "m.onnx", "-o", "page.html", cwd=tmp_path)
    assert shown.startswith("✓ agrees   4 of 4 layers agree")
    assert "node_softmax_3" in (tmp_path / "page.html").read_text("utf-8")
    run(bin_folder / "graphdoc", "inspect", "m.onnx", cwd=tmp_path)
    run(bin_folder / "graphdoc", "lint", "none.onnx", cwd=tmp_path, code=3)


def test_the_installed_plugin_works_elsewhere(bin_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """pytest finds the plugin by its entry point."""
    small_models.save(tmp_path)
    (tmp_path / "test_it.py").write_text("def test(graphdoc):\n    graphdoc.check('m.onnx')\n", "utf-8")
    command = (bin_folder / "python", "-m", "pytest", "-p", "no:xdist", "-p", "no:hypothesispytest")

    assert "1 baseline written" in run(*command, "--graphdoc-update", cwd=tmp_path)
    assert "1 agrees" in run(*command, cwd=tmp_path)
