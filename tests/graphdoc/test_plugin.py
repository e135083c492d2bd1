"""The pytest plugin, seen from outside: inner pytest runs, without xdist and with it."""

import functools
import pathlib
import tomllib
from collections.abc import Callable

import pytest

import graphdoc.compare.ort_runner  # what inner runs in this process need is loaded once, not by each
import graphdoc.plugin_baseline
import graphdoc.reports.html  # noqa: F401
from graphdoc.engine.ops.table import load_families
from tests.graphdoc import small_models

load_families()  # what an inner run imports first is forgotten after it, and would be registered twice

Run = Callable[..., pytest.RunResult]

QUICK = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
"""Plugins that inner runs do without: Hypothesis is imported anew by each of them."""

CHECK = "def test_model(graphdoc):\n    graphdoc.check('m.onnx')\n"
BASELINE = "test_it.baselines/test_model.toml"


@pytest.fixture
def pytest_run(pytester: pytest.Pytester) -> Run:
    """Run an inner pytest within this process, without xdist."""
    return functools.partial(pytester.runpytest_inprocess, "-p", "no:xdist", *QUICK)


@pytest.fixture
def one_test(pytester: pytest.Pytester) -> pathlib.Path:
    """A folder with a model and a test of it."""
    small_models.save(pytester.path)
    pytester.makepyfile(test_it=CHECK)
    return pytester.path


def test_the_life_of_a_baseline(pytest_run: Run, one_test: pathlib.Path) -> None:
    """Missing fails, update writes, the same agrees, another model differs and says where, update accepts."""
    missing = pytest_run()
    assert missing.ret == 1
    missing.stdout.fnmatch_lines(
        [
            "✗ no baseline yet",
            "*accept  pytest --graphdoc-update test_it.py::test_model",
            "*FAILED*no baseline yet",
        ]
    )

    written = pytest_run("--graphdoc-update")
    assert written.ret == 0
    written.stdout.fnmatch_lines(["graphdoc: 1 model, 4 layers compared, 1 baseline written"])

    same = pytest_run()
    assert same.ret == 0
    same.stdout.fnmatch_lines(["graphdoc: 1 model, 4 layers compared, 1 agrees"])

    small_models.save(one_test, scale=1.001)
    other = pytest_run()
    assert other.ret == 1
    other.stdout.fnmatch_lines(
        [
            "✗ differs   from #2 of 4 on; its inputs are the same to the bit, so the layer itself *",
            "*where   #2 Mul  node_mul_2",
            "*own     0.001*, * × its limit of *",
            "*change  RMS *",
            "*layers  2 agree, 1 changed, 1 inherited",
            "*output  y    error *, limit *",
            "*accept  pytest --graphdoc-update test_it.py::test_model",
            "graphdoc: 1 model, 4 layers compared, 1 differs",
            "*FAILED test_it.py::test_model - differs from #2 Mul node_mul_2 on",
        ]
    )
    other.stdout.no_fnmatch_line("*Failed:*")
    other.stdout.no_fnmatch_line("*Traceback*")

    before = (one_test / BASELINE).read_text("utf-8").splitlines()
    assert pytest_run("--graphdoc-update").ret == 0
    after = (one_test / BASELINE).read_text("utf-8").splitlines()
    changed = [line.split(" =")[0] for line, old in zip(after, before, strict=True) if line != old]
    assert changed == ["sha256", '"mul_2"', '"y"']
    assert pytest_run().ret == 0


@pytest.mark.parametrize("workers", ["0", "2"])
def test_workers_of_xdist_do_the_same(
    pytester: pytest.Pytester, one_test: pathlib.Path, workers: str
) -> None:
    """Baselines are written, failures shown and results summed up across processes."""
    (one_test / "test_it.py").write_text(
        CHECK + "def test_other(graphdoc):\n    graphdoc.check('m.onnx', taps='outputs')\n", "utf-8"
    )
    run = functools.partial(pytester.runpytest_subprocess, *QUICK, "-n", workers)

    run("--graphdoc-update").stdout.fnmatch_lines(
        ["graphdoc: 2 models, 5 layers compared, 2 baselines written"]
    )
    small_models.save(one_test, scale=1.001)
    result = run("--graphdoc-report", "pages")

    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "✗ differs   from #2 of 4 on*",
            "graphdoc: 2 models, 5 layers compared, 2 differ",
            "FAILED test_it.py::test_model - differs from #2 Mul node_mul_2 on",
        ]
    )
    assert len(list((one_test / "pages").iterdir())) == 2


def test_rounding_is_no_difference(pytest_run: Run, one_test: pathlib.Path) -> None:
    """Another runner rounds otherwise; the measured limits allow it, and not every bit is the same."""
    pytest_run("--graphdoc-update")
    (one_test / "test_it.py").write_text(CHECK.replace("'m.onnx'", "'m.onnx', runner='ort'"), "utf-8")

    assert pytest_run().ret == 0


def test_a_page_is_written_for_a_failing_test(pytest_run: Run, one_test: pathlib.Path) -> None:
    """``--graphdoc-report`` leaves one page, for the test that fails, and names it."""
    pytest_run("--graphdoc-update")
    assert pytest_run("--graphdoc-report", "pages").ret == 0
    assert not (one_test / "pages").exists()

    small_models.save(one_test, scale=2.0)
    result = pytest_run("--graphdoc-report", "pages")

    result.stdout.fnmatch_lines(["*report  pages/test_it.test_model.html"])
    page = (one_test / "pages" / "test_it.test_model.html").read_text("utf-8")
    assert "node_mul_2" in page


def test_two_models_are_compared(pytest_run: Run, one_test: pathlib.Path) -> None:
    """``graphdoc.compare`` needs no baseline, and names the first layer that differs."""
    small_models.save(one_test, "same.onnx")
    small_models.save(one_test, "other.onnx", scale=1.01)
    (one_test / "test_it.py").write_text(
        "def test_same(graphdoc):\n    assert graphdoc.compare('m.onnx', 'same.onnx')\n"
        "def test_runners(graphdoc):\n    graphdoc.compare('m.onnx')\n"
        "def test_other(graphdoc):\n    graphdoc.compare('m.onnx', 'other.onnx', test_runner='ort')\n",
        "utf-8",
    )

    result = pytest_run()

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["✗ differs*", "*#2 Mul*", "graphdoc: 3 models, 12 layers compared, 2 agree, 1 differs"]
    )
    assert not list(one_test.glob("*.baselines"))


def test_files_are_tests_without_code(pytest_run: Run, pytester: pytest.Pytester) -> None:
    """Every table of a ``*.graphdoc.toml`` is a test: with "model" a check, with "ref" a comparison."""
    small_models.save(pytester.path)
    small_models.save(pytester.path, "other.onnx", scale=3.0)
    (pytester.path / "models.graphdoc.toml").write_text(
        '[baseline]\nmodel = "m.onnx"\n\n[runners]\nref = "m.onnx"\n\n'
        '[export]\nref = "m.onnx"\ntest = "other.onnx"\ntaps = "outputs"\n',
        "utf-8",
    )

    first = pytest_run("--graphdoc-update")
    first.assert_outcomes(passed=2, failed=1)
    second = pytest_run()
    second.assert_outcomes(passed=2, failed=1)
    second.stdout.fnmatch_lines(["*FAILED models.graphdoc.toml::export - differs*"])
    assert (pytester.path / "models.baselines" / "baseline.toml").is_file()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[t]\nmodel = "m.onnx"\nrunnner = "ort"\n', "*did you mean 'runner'?"),
        ('[t]\nruner = "ort"\n', "*needs either 'model' or 'ref'"),
        ('[t]\nmodel = "a"\nref = "b"\n', "*needs either 'model' or 'ref'"),
        ('model = "m.onnx"\n', "*'model' stands outside a table"),
        ("[t\n", "*bad.graphdoc.toml: *line 1*"),
    ],
)
def test_a_file_with_a_mistake_is_refused(
    pytest_run: Run, pytester: pytest.Pytester, text: str, message: str
) -> None:
    """The message names the mistake, and pytest ends with an error instead of skipping the file."""
    (pytester.path / "bad.graphdoc.toml").write_text(text, "utf-8")

    result = pytest_run()

    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([message])


def test_broken_models_and_baselines_fail_with_cause_and_next_step(
    pytest_run: Run, pytester: pytest.Pytester
) -> None:
    """An error of graphdoc shows as it does on the command line: no traceback."""
    small_models.save(pytester.path)
    (pytester.path / "bad.onnx").write_bytes(b"\xff\xff\xff\xff")
    (pytester.path / "test_it.baselines").mkdir()
    (pytester.path / "test_it.baselines" / "test_baseline.toml").write_text("<<<<<<< ours\n", "utf-8")
    pytester.makepyfile(
        test_it="def test_missing(graphdoc):\n    graphdoc.compare('none.onnx')\n"
        "def test_bad(graphdoc):\n    graphdoc.compare('bad.onnx')\n"
        "def test_baseline(graphdoc):\n    graphdoc.check('m.onnx')\n"
        "def test_runner(graphdoc):\n    graphdoc.compare('m.onnx', test_runner='nobody')\n"
    )

    result = pytest_run()

    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(
        ["*✗*none.onnx*", "*✗ the baseline cannot be read", "*next   restore the file*"]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.fnmatch_lines(["graphdoc: 4 models, 0 layers compared, 4 failed"])


def test_settings_of_the_project_count(pytest_run: Run, pytester: pytest.Pytester) -> None:
    """[tool.graphdoc] sets tolerances and the folder for reports; a call's tolerance goes before."""
    small_models.save(pytester.path)
    pytester.makepyfile(
        test_it="def test_model(graphdoc):\n    graphdoc.check('m.onnx')\n"
        "def test_strict(graphdoc):\n    graphdoc.check('m.onnx', tolerances={'mul_2': 1e-5})\n"
    )
    pytester.makepyprojecttoml('[tool.graphdoc]\nreport = "out"\n[tool.graphdoc.tolerances]\nfloat32 = 0.5\n')
    pytest_run("--graphdoc-update").assert_outcomes(passed=2)
    small_models.save(pytester.path, scale=1.1)

    result = pytest_run()

    result.assert_outcomes(passed=1, failed=1)
    assert [page.name for page in (pytester.path / "out").iterdir()] == ["test_it.test_strict.html"]


def test_a_wrong_setting_is_named(pytest_run: Run, pytester: pytest.Pytester) -> None:
    """A misspelt key fails the test that needs the settings, and names the right key."""
    small_models.save(pytester.path)
    pytester.makepyfile(test_it=CHECK)
    pytester.makepyprojecttoml('[tool.graphdoc]\nruner = "ort"\n')

    result = pytest_run()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*unknown key 'runer'*", "*did you mean 'runner'?*"])


def test_a_tolerance_written_into_the_baseline_survives_an_update(
    pytest_run: Run, pytester: pytest.Pytester
) -> None:
    """The file's own [tolerances] hold and are kept when layers are updated."""
    small_models.save(pytester.path)
    pytester.makepyfile(test_it=CHECK)
    run = pytest_run
    run("--graphdoc-update")
    path = pytester.path / BASELINE
    path.write_text(
        path.read_text("utf-8").replace("[inputs]", '[tolerances]\n"mul_*" = 0.2\n\n[inputs]'), "utf-8"
    )
    small_models.save(pytester.path, scale=1.1)

    result = run()
    result.stdout.fnmatch_lines(["*differs   from #3 of 4 on*"])
    run("--graphdoc-update").assert_outcomes(passed=1)

    assert tomllib.loads(path.read_text("utf-8"))["tolerances"] == {"mul_*": 0.2}


def test_new_and_gone_layers_fail(pytest_run: Run, pytester: pytest.Pytester) -> None:
    """A model whose layers are others is not silently compared on what is left."""
    small_models.save(pytester.path, layers=("MatMul", "Relu", "Softmax"))
    pytester.makepyfile(test_it=CHECK)
    run = pytest_run
    run("--graphdoc-update")
    small_models.save(pytester.path, layers=("MatMul", "Relu", "Identity", "Softmax"))

    result = run()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["✗ changed   the model's layers changed: 1 new, 0 gone"])
    run("--graphdoc-update").assert_outcomes(passed=1)
    run().assert_outcomes(passed=1)


def test_other_inputs_are_not_blamed_on_the_model(pytest_run: Run, pytester: pytest.Pytester) -> None:
    """With other inputs nothing can be said of the layers, and the message says that."""
    small_models.save(pytester.path)
    pytester.makepyfile(
        test_it="import pathlib\nimport numpy as np\n"
        "def test_model(graphdoc):\n"
        "    seed = int(pathlib.Path('seed').read_text())\n"
        "    x = np.random.default_rng(seed).standard_normal((2, 16)).astype(np.float32)\n"
        "    graphdoc.check('m.onnx', {'x': x})\n"
    )
    seed = pytester.path / "seed"
    seed.write_text("1")
    pytest_run("--graphdoc-update").assert_outcomes(passed=1)
    seed.write_text("2")

    result = pytest_run()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["✗ changed   the inputs are not those of the baseline: x"])


def test_several_checks_in_one_test_need_names(pytest_run: Run, pytester: pytest.Pytester) -> None:
    """Parametrised tests and named checks each have a baseline; a second check without a name is refused."""
    small_models.save(pytester.path)
    pytester.makepyfile(
        test_it="import pytest\n"
        "class TestModels:\n"
        "    @pytest.mark.parametrize('taps', ['all', 'outputs', 'mul*'])\n"
        "    def test_taps(self, graphdoc, taps):\n        graphdoc.check('m.onnx', taps=taps)\n"
        "def test_named(graphdoc):\n"
        "    graphdoc.check('m.onnx', name='a')\n    graphdoc.check('m.onnx', name='b')\n"
        "def test_twice(graphdoc):\n    graphdoc.check('m.onnx')\n    graphdoc.check('m.onnx')\n"
    )

    result = pytest_run("--graphdoc-update")

    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["*a second check of this test has no name", "*name='…'*"])
    names = sorted(path.name for path in (pytester.path / "test_it.baselines").iterdir())
    assert [name for name in names if "*" in name] == []
    assert len(names) == 6


def test_models_in_memory_are_checked(pytest_run: Run, pytester: pytest.Pytester) -> None:
    """A ModelProto and an onnx_ir.Model do as well as a path."""
    small_models.save(pytester.path)
    pytester.makepyfile(
        test_it="import onnx, onnx_ir\n"
        "def test_proto(graphdoc):\n    graphdoc.check(onnx.load('m.onnx'))\n"
        "def test_ir(graphdoc):\n    assert graphdoc.check(onnx_ir.load('m.onnx'))\n"
    )

    pytest_run("--graphdoc-update").assert_outcomes(passed=2)
    pytest_run().assert_outcomes(passed=2)


def test_nothing_is_loaded_until_a_test_asks(pytester: pytest.Pytester) -> None:
    """A run without ONNX tests loads neither numpy nor onnx; one that collects such tests does not either."""
    small_models.save(pytester.path)
    pytester.makepyfile(
        test_it="import sys\n"
        "def test_loaded():\n"
        "    heavy = {'numpy', 'onnx', 'onnx_ir', 'onnxruntime', 'pandas', 'click', 'rich', 'jinja2'}\n"
        "    assert not heavy & {name.split('.')[0] for name in sys.modules}\n"
        "    assert 'graphdoc.plugin_check' not in sys.modules\n"
        "def test_later(graphdoc):\n    graphdoc.compare('m.onnx')\n"
    )
    (pytester.path / "models.graphdoc.toml").write_text('[t]\nref = "m.onnx"\n', "utf-8")

    result = pytester.runpytest_subprocess("-p", "no:xdist", *QUICK, "test_it.py", "models.graphdoc.toml")

    result.assert_outcomes(passed=3)


def test_help_lists_the_options(pytest_run: Run, pytester: pytest.Pytester) -> None:
    """Both options stand in a group of their own, and no summary line appears without comparisons."""
    pytester.makepyfile(test_it="def test_nothing():\n    pass\n")

    pytest_run("--help").stdout.fnmatch_lines(
        ["graphdoc: ONNX models:", "*--graphdoc-update*", "*--graphdoc-report=DIR*"]
    )
    pytest_run().stdout.no_fnmatch_line("graphdoc:*")


def test_an_update_prints_what_it_wrote(pytest_run: Run, one_test: pathlib.Path) -> None:
    """Only layers that failed are listed, and that the model is another."""
    pytest_run("--graphdoc-update").stdout.fnmatch_lines(
        ["graphdoc: wrote test_it.baselines/test_model.toml", "  + 4 layers, a new baseline"]
    )
    small_models.save(one_test, scale=1.001)

    result = pytest_run("--graphdoc-update")

    result.stdout.fnmatch_lines(["  ~ mul_2  Mul  RMS *", "  ~ y  Softmax  *", "  ~ sha256  * → *"])
    result.stdout.no_fnmatch_line("*matmul_0*")
    pytest_run("--graphdoc-update").stdout.no_fnmatch_line("graphdoc: wrote*")


def test_another_model_is_told_from_another_result(pytest_run: Run, one_test: pathlib.Path) -> None:
    """A failure says whether the model is the one that the baseline was written from."""
    pytest_run("--graphdoc-update")
    small_models.save(one_test, scale=1.001)

    result = pytest_run()

    result.stdout.fnmatch_lines(["*since   the model is another than the baseline was written from*"])


def test_junit_names_the_first_layer(pytest_run: Run, one_test: pathlib.Path) -> None:
    """As a property of the test case."""
    pytest_run("--graphdoc-update")
    small_models.save(one_test, scale=1.001)

    pytest_run("--junitxml", "junit.xml")

    text = (one_test / "junit.xml").read_text("utf-8")
    assert 'name="graphdoc_first_divergence" value="#2 Mul node_mul_2"' in text


def test_a_marker_sets_what_holds_for_a_test(pytest_run: Run, pytester: pytest.Pytester) -> None:
    """Tolerances of the marker count; a key that means nothing is refused."""
    small_models.save(pytester.path)
    small_models.save(pytester.path, "other.onnx", scale=1.001)
    pytester.makepyfile(
        test_it="import pytest\n"
        "@pytest.mark.graphdoc(runner='ort', tolerances={'*': 0.1})\n"
        "def test_loose(graphdoc):\n    graphdoc.compare('m.onnx', 'other.onnx')\n"
        "def test_strict(graphdoc):\n    graphdoc.compare('m.onnx', 'other.onnx', test_runner='ort')\n"
        "@pytest.mark.graphdoc(sead=1)\n"
        "def test_wrong(graphdoc):\n    graphdoc.compare('m.onnx')\n"
    )

    result = pytest_run("--strict-markers")

    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*unknown key 'sead'*", "*did you mean 'seed'?*"])


def test_a_pointer_in_place_of_a_baseline_is_named(pytest_run: Run, one_test: pathlib.Path) -> None:
    """Git LFS leaves a short text where the file was not fetched."""
    path = one_test / BASELINE
    path.parent.mkdir()
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "utf-8")

    result = pytest_run()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the baseline is a git-lfs pointer*", "*git lfs pull*"])
