"""``graphdoc diff``, ``graphdoc weights`` and ``graphdoc lint --fix`` as they are typed."""

import json
import pathlib
import re

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from graphdoc import cli
from graphdoc.reports.diff_html import render_html
from graphdoc.reports.diff_text import diff_json, diff_lines
from graphdoc.reports.words import cells
from graphdoc.surgeon.diff import diff_models
from tests.surgeon import build
from tests.surgeon.lint_models import FAULTY, node
from tests.surgeon.test_align import blocks, conv_bn


@pytest.fixture
def files(tmp_path: pathlib.Path) -> tuple[str, str]:
    """Return two models on the disk, the second with its normalisation folded."""
    paths = tmp_path / "a.onnx", tmp_path / "b.onnx"
    for proto, path in zip(conv_bn(), paths, strict=True):
        onnx.save_model(proto, path)
    return str(paths[0]), str(paths[1])


def test_exit_codes(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """0 the same, 1 differs, 3 unreadable; the answer is the first line."""
    assert cli.run(["diff", files[0], files[0]]) == 0
    assert capsys.readouterr().out.startswith("✓ same   4 nodes and 6 weights are equal\n")
    assert cli.run(["diff", *files]) == 1
    assert capsys.readouterr().out.startswith("✗ differs   ")
    assert cli.run(["diff", files[0], "gone.onnx"]) == 3


def test_what_is_printed(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """What was merged, the weight that changed, and how much is equal."""
    cli.run(["diff", *files])
    out = capsys.readouterr().out

    assert re.search(r"removed +BatchNormalization 1\n", out)
    assert re.search(r"removed +BatchNormalization +n +merged into Conv cn\n", out)
    assert re.search(r"changed +w → w2 +float32 4×3×3×3 ", out)


def test_json_to_stdout_is_json_alone(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """A program reads every change."""
    cli.run(["diff", *files, "--json", "-"])
    document = json.loads(capsys.readouterr().out)

    assert (document["schema"], document["same"]) == ("graphdoc.diff/1", False)
    assert {change["kind"] for change in document["nodes"]} == {"removed", "wiring"}
    assert document["a"]["opsets"] == {"ai.onnx": 18}


def test_the_page_needs_nothing(files: tuple[str, str], tmp_path: pathlib.Path) -> None:
    """One file, no script, no request, the same bytes each time."""
    pages = [tmp_path / "1.html", tmp_path / "2.html"]
    for page in pages:
        cli.run(["diff", *files, "-o", str(page)])
    text = pages[0].read_text("utf-8")

    assert text == pages[1].read_text("utf-8")
    assert "<script" not in text
    assert not re.search(r"(?:src|href)=\"(?!#|data:,)", text)
    assert "BatchNormalization: removed" in text


def test_names_are_foreign_text() -> None:
    """A name can neither break a row nor become markup."""
    a = build.model([node("Abs", "x", "y", name="<b>\n‮evil</b>")])
    b = build.model([node("Neg", "x", "y", name="n")])
    diff = diff_models(a, b)
    page, text = render_html(diff), diff_lines(diff, color=False, pipe=True)

    assert "<b>\n" not in page
    assert "&lt;b&gt;⟨U+000A⟩⟨U+202E⟩evil" in page
    assert "⟨U+000A⟩⟨U+202E⟩evil" in text


def test_a_terminal_is_not_overrun() -> None:
    """On a narrow terminal every line fits; in ASCII nothing else is printed; a screen is enough."""
    diff = diff_models(blocks(30), blocks(30, prefix="a_very_long_prefix_", seed=2, extra="Sqrt"))
    narrow = diff_lines(diff, color=False, pipe=False, width=60)
    plain = diff_lines(diff, color=False, pipe=False, width=80, unicode=False)

    assert max(cells(line) for line in narrow.splitlines()) <= 60
    assert plain.isascii()
    assert len(diff_lines(diff, color=False, pipe=False).splitlines()) <= 34
    assert json.loads(diff_json(diff))["a"]["nodes"] == 121


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (1e-6, "1 was next to 0 before, as w0"),
        (0.0, "1 was next to 0 before, as w0"),
        (0.5, "the largest change is 1.0 of the norm, in w0"),
    ],
)
def test_a_weight_that_was_next_to_nothing(scale: float, words: str) -> None:
    """A share of next to nothing is no figure for the headline."""
    before, after = blocks(2), blocks(2)
    weight = numpy_helper.to_array(before.graph.initializer[0])
    before.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight * np.float32(scale), "w0"))
    shown = diff_lines(diff_models(before, after), color=False, pipe=True)

    assert words in shown
    assert ("of the norm" in shown) == (scale == 0.5)


def test_weights_there_and_back(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """strip, restore and diff: the model is the same again."""
    model, bare, again = (str(tmp_path / name) for name in ("m.onnx", "bare.onnx", "again.onnx"))
    onnx.save_model(blocks(3), model)

    assert cli.run(["weights", "strip", model, "-o", bare]) == 0
    assert "✓ stripped   3 weights, 768 B" in capsys.readouterr().out
    assert cli.run(["diff", model, bare]) == 3
    assert "a comparison of 'bare.onnx' needs them" in capsys.readouterr().err
    assert cli.run(["weights", "restore", bare, "--weights", model, "-o", again]) == 0
    assert "all hashes agree" in capsys.readouterr().out
    assert cli.run(["diff", model, again]) == 0


def test_weights_of_another_model_are_refused(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the weight and what to do; nothing is written."""
    model, other, bare, again = (str(tmp_path / f"{name}.onnx") for name in ("m", "o", "bare", "again"))
    onnx.save_model(blocks(2), model)
    onnx.save_model(blocks(2, seed=4), other)
    cli.run(["weights", "strip", model, "-o", bare])

    assert cli.run(["weights", "restore", bare, "--weights", other, "-o", again]) == 3
    error = capsys.readouterr().err
    assert "weight 'w0' is not the one that was taken out" in error
    assert "next" in error
    assert not pathlib.Path(again).exists()


def test_prune_and_stats(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pruning tells what it cost; the statistics of the result show half zeros."""
    model, sparse = str(tmp_path / "m.onnx"), str(tmp_path / "s.onnx")
    onnx.save_model(blocks(2), model)

    assert cli.run(["weights", "prune", model, "-o", sparse, "--skip", "w1"]) == 0
    out = capsys.readouterr().out
    assert "✓ pruned   1 of 2 weights, 2:4" in out
    assert "skipped on request" in out
    assert cli.run(["weights", "stats", sparse, "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["weights"]
    assert [row["zeros"] for row in rows] == [0.5, 0.0]
    assert cli.run(["weights", "stats", sparse]) == 0
    assert "2 constants, 512 B" in capsys.readouterr().out


def test_dedup(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal weights are shared in the file that is written."""
    proto = blocks(2)
    proto.graph.initializer[1].CopyFrom(
        numpy_helper.from_array(numpy_helper.to_array(proto.graph.initializer[0]), "w1")
    )
    onnx.save_model(proto, tmp_path / "m.onnx")

    assert cli.run(["weights", "dedup", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "d.onnx")]) == 0
    assert "✓ shared   1 weights, 256 B less" in capsys.readouterr().out
    assert len(onnx.load(tmp_path / "d.onnx").graph.initializer) == 1


def test_lint_fix_writes_and_verifies(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The mends are told, the outputs were compared, and the file is mended."""
    faulty, mended = str(tmp_path / "f.onnx"), str(tmp_path / "m.onnx")
    onnx.save_model(FAULTY["unused-node"](), faulty)

    assert cli.run(["lint", faulty, "--fix", "-o", mended]) == 0
    out = capsys.readouterr().out
    assert out.startswith("✓ mended   ")
    assert "unused-node  2 nodes of the main graph removed" in out
    assert "verified" in out
    assert "f.onnx" not in out
    assert "in m.onnx" in out
    assert cli.run(["lint", mended]) == 0
    assert "unused-node" not in capsys.readouterr().out


def test_lint_fix_of_declarations(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A declaration that was mended is no reason to write nothing."""
    faulty, mended = str(tmp_path / "f.onnx"), str(tmp_path / "m.onnx")
    onnx.save_model(FAULTY["negative-dim"](), faulty)

    assert cli.run(["lint", faulty, "--fix", "-o", mended]) == 0
    assert pathlib.Path(mended).exists()


@pytest.mark.parametrize("options", [["--fix"], ["-o", "x.onnx"]])
def test_fix_and_out_go_together(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One without the other is a mistake."""
    assert cli.run(["lint", "m.onnx", *options]) == 2
    assert "--fix and -o go together" in capsys.readouterr().err
