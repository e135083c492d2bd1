"""What the fixture ``graphdoc`` offers to a test: comparisons that fail with a verdict."""

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from graphdoc.config import Config, check_key, load_config, numbers
from graphdoc.engine.errors import GraphdocError, UsageError
from graphdoc.plugin import FAILURE, OPTIONS
from graphdoc.plugin_summary import Result

CONFIG = pytest.StashKey[Config]()

Shapes = Mapping[str, tuple[int, ...]] | Sequence[str]
"""Input name → sizes, or the command line's form: ["x=1x3x224x224"]."""


_MARKED = ("runner", "seed", "taps", "shapes", "tolerances")
"""What the marker ``graphdoc`` may set."""


def _title(layer: Any) -> str:
    """Return a layer as one line names it: #321 BatchNormalization encoder.bn3."""
    from graphdoc.reports import words

    return f"{words.layer_title(layer)} {words.name(layer)}"


class Checker:
    """Compares models on behalf of one test.

    Baselines lie in ``<test file>.baselines/<test>.toml`` beside the test file.
    """

    def __init__(self, item: pytest.Item, path: Path) -> None:
        self._item = item
        self._path = path
        self._names: set[str] = set()

    def check(
        self,
        model: Any,
        inputs: Any = None,
        *,
        name: str = "",
        runner: str | None = None,
        taps: str | None = None,
        shapes: Shapes | None = None,
        seed: int | None = None,
        tolerances: Mapping[str, float] | None = None,
    ) -> Any:
        """Fail unless every layer of a model still computes what its baseline says.

        model: a path (relative to the test file's folder or the working directory), an onnx_ir.Model or a
            ModelProto. inputs: a dict of arrays, or a file as for ``--inputs``; seeded ones when left out.
        name: tells several checks of one test apart. runner: who runs it ("engine", "ort", …).
        taps: "all", "outputs" or a glob. shapes: sizes of dynamic inputs. tolerances: largest error
            (RMS(B − A) ÷ RMS(A)) by dtype, ``op:NAME``, or a glob over value names. What is left out here
            comes from the marker ``graphdoc``, else from pyproject.toml.

        Returns the :class:`graphdoc.compare.result.Comparison`. With ``--graphdoc-update`` a baseline that is
        missing or does not agree is written instead.
        """
        from graphdoc.plugin_baseline import Case, run

        config, marked, where = self._config(), self._marked(), self._baseline(name)
        case = Case(
            self._located(model),
            self._located(inputs),
            runner or marked.get("runner", config.runner),
            taps or marked.get("taps", "all"),
            marked.get("shapes") if shapes is None else shapes,
            marked.get("seed", config.seed) if seed is None else seed,
            numbers({**marked.get("tolerances", {}), **(tolerances or {})}, "tolerances"),
            config.tolerances,
        )
        try:
            outcome = run(case, where, update=self._item.config.stash[OPTIONS].update)
        except GraphdocError as error:
            self._broken(error)
        if outcome.comparison is None:
            self._note("failed", 0)
            self._fail(["✗ no baseline yet", f"  where   {where.name}", self._accept()], "no baseline yet")
        self._note(outcome.word, len(outcome.comparison.layers), outcome.comparison, where, outcome.changes)
        if outcome.word == "differs":
            self._differs(outcome.comparison, accept=True, name=name)
        return outcome.comparison

    def compare(self, ref: Any, test: Any = None, *, ref_runner: str = "ort", **options: Any) -> Any:
        """Fail unless two models, or one model on two runners, agree layer by layer.

        ref, test: as for :meth:`check`; without ``test`` the same model. ref_runner: who runs ``ref``.
        options: those of :func:`graphdoc.compare_models` (test_runner, inputs, shapes, taps, rtol, atol, …).

        Returns the comparison.
        """
        import graphdoc
        from graphdoc.compare.tolerances import rules_of

        config = self._config()
        marked = self._marked()
        marked["test_runner"] = marked.pop("runner", config.runner)
        own = {**marked.pop("tolerances", {}), **(options.pop("tolerances", None) or {})}
        options = {"seed": config.seed, **marked, **options}
        options["inputs"] = self._located(options.get("inputs"))
        options["tolerances"] = (
            *rules_of(config.tolerances, "pyproject.toml", must_match=False),
            *rules_of(numbers(own, "tolerances"), "the test's tolerance"),
        )
        name = str(options.pop("name", ""))
        try:
            result = graphdoc.compare_models(
                self._located(ref), self._located(test), ref=ref_runner, **options
            )
        except GraphdocError as error:
            self._broken(error)
        self._note("agrees" if result else "differs", len(result.layers), result)
        if not result:
            self._differs(result, accept=False, name=name)
        return result

    def _config(self) -> Config:
        stash = self._item.config.stash
        if CONFIG not in stash:
            stash[CONFIG] = load_config(self._item.config.rootpath)
        return stash[CONFIG]

    def _located(self, thing: Any) -> Any:
        """Return a path beside the test file if there is such a file; everything else as it is."""
        if not isinstance(thing, str | Path):
            return thing
        beside = self._path.parent / thing
        return beside if beside.exists() else Path(thing)

    def _baseline(self, name: str) -> Path:
        """Return the baseline's file. Raises UsageError when two checks of a test would share it."""
        if name in self._names:
            raise UsageError(
                f"a second check of this test {f'is named {name!r} too' if name else 'has no name'}",
                where=self._item.nodeid,
                next_step="tell the checks apart:  graphdoc.check(model, name='…')",
            )
        self._names.add(name)
        module = self._path.name.removesuffix(".toml").removesuffix(".py").removesuffix(".graphdoc")
        return self._path.parent / f"{module}.baselines" / f"{self._file_name(name)}.toml"

    def _file_name(self, name: str) -> str:
        """Return the test's name, its class first, in characters that every file system takes."""
        test = ".".join(self._item.nodeid.split("::")[1:]) or self._item.name
        wanted = f"{test}.{name}" if name else test
        safe = re.sub(r"[^\w.\[\]-]+", "-", wanted).strip("-")[:120]
        return safe if safe == wanted else f"{safe}-{zlib.crc32(wanted.encode('utf-8', 'replace')):08x}"

    def _marked(self) -> dict[str, Any]:
        """Return what the markers say; that of the function goes before those of class and module."""
        found: dict[str, Any] = {}
        for marker in reversed(list(self._item.iter_markers("graphdoc"))):
            if marker.args:
                raise UsageError("the marker 'graphdoc' takes names only", where=self._item.nodeid)
            for key in marker.kwargs:
                check_key(key, list(_MARKED), self._item.nodeid)
            found.update(marker.kwargs)
        return found

    def _note(
        self,
        outcome: str,
        layers: int,
        comparison: Any = None,
        where: Path | None = None,
        changes: Sequence[str] = (),
    ) -> None:
        """Add to the test's properties, which xdist carries and JUnit shows: all as JSON; the first fault."""
        first = None if comparison is None else comparison.first_divergence
        title = "" if first is None else _title(first)
        baseline = "" if where is None else f"{where.parent.name}/{where.name}"
        result: Result = {
            "outcome": outcome,
            "layers": layers,
            "first": title,
            "baseline": baseline,
            "changes": list(changes),
        }
        self._item.user_properties.append(("graphdoc", json.dumps(result, ensure_ascii=False)))
        if title:
            self._item.user_properties.append(("graphdoc_first_divergence", title))

    def _differs(self, comparison: Any, *, accept: bool, name: str) -> NoReturn:
        from graphdoc.reports import words

        verdict = comparison.verdict
        lines = [f"{verdict.symbol} {verdict.word}   {words.opening(comparison)}"]
        lines += [f"  {label:<7} {words.visible(text)}" for label, text in words.facts(comparison)]
        lines += self._report(comparison, name)
        lines += [self._accept()] if accept else []
        first = comparison.first_divergence
        short = f"differs from {_title(first)} on" if first else words.opening(comparison)
        self._fail(lines, short)

    def _report(self, comparison: Any, name: str) -> list[str]:
        """Write the HTML page if one is wanted; return the line that says where it is."""
        config = self._item.config
        folder = config.stash[OPTIONS].report
        setting = self._config().report
        folder = folder or (config.rootpath / setting if setting else None)
        if folder is None:
            return []
        from graphdoc.reports.html import save_html

        folder.mkdir(parents=True, exist_ok=True)
        page = folder / f"{self._path.stem}.{self._file_name(name)}.html"
        save_html(comparison, page)
        shown = page.relative_to(config.rootpath) if page.is_relative_to(config.rootpath) else page
        return [f"  report  {shown.as_posix()}"]

    def _accept(self) -> str:
        return f"  accept  pytest --graphdoc-update {self._item.nodeid}"

    def _broken(self, error: GraphdocError) -> NoReturn:
        self._note("failed", 0)
        self._fail(["✗ " + error.cause, *error.lines()[1:]], error.cause)

    def _fail(self, lines: list[str], short: str) -> NoReturn:
        self._item.stash[FAILURE] = short
        pytest.fail("\n".join(lines), pytrace=False)
