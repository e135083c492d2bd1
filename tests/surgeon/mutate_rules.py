"""Disable the guards of the rewrite rules one by one, and list those that no test misses.

    python tests/surgeon/mutate_rules.py [FAMILY …]      families: the modules of surgeon/rules

A guard is a condition under which a rule refuses or is not concerned: ``if …: return Refusal(…)``, ``return
None`` or ``return False``, and the same in ``return x if … else None``. Each is made never to hold, in a
process of its own, and the tests of its family run until one fails. A guard whose loss no test notices is
printed, with the reason where it is a known one (``EXPLAINED``).
"""

import ast
import contextlib
import importlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import onnxruntime
import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = Path("tests/surgeon")
GUARDS = ("test_simplify_guards.py", "test_rule_guards.py", "test_guards.py")
FAMILIES = {
    "identity": ("test_simplify_rules.py", *GUARDS),
    "chains": ("test_simplify_rules.py", *GUARDS),
    "shapes": ("test_simplify_rules.py", *GUARDS),
    "linear": (
        "test_simplify_linear.py",
        "test_guards_linear.py",
        *GUARDS,
        "test_simplify_rules.py",
        "test_simplify_memory.py::test_how_much_is_copied",
    ),
    "parallel": ("test_simplify_parallel.py", *GUARDS),
    "control": ("test_simplify_control.py", *GUARDS),
    "fold": ("test_guards_fold.py", "test_simplify_rules.py", "test_simplify.py", *GUARDS),
    "passes": ("test_simplify.py", "test_simplify_rules.py", "test_simplify_control.py", *GUARDS),
}
"""Module of rules → files of tests that must notice when one of its guards is gone."""

TYPES = "(for the type checker: what is None here was refused before)"
EXPLAINED: dict[str, dict[str, str]] = {
    "linear": {
        "weights is None": TYPES,
        "weights is None or array is None": TYPES,
        "node.inputs[1] is not None": TYPES,
    },
    "parallel": {"value is None": TYPES},
    "passes": {
        "tensor is None": TYPES,
        "tensor is None or tensor.dtype == ir.DataType.STRING or tensor.nbytes < SMALLEST_HASHED": (
            "(saves a look at what is compared in whole anyway)"
        ),
    },
    "control": {"not readers or not _ranks_differ(node, context)": "(saves looking through the graph twice)"},
    "fold": {"row is None": TYPES, "array is None": TYPES},
}
"""Family → condition → why no test can notice that it is gone."""

NOT_INSTALLED = 99
SECONDS = 40
"""Time after which a mutant counts as noticed: it does not come to an end."""


def _gives_up(value: ast.expr | None) -> bool:
    """Whether an expression is what a rule returns that does not apply."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "Refusal"
    return value is None or (isinstance(value, ast.Constant) and any(value.value is v for v in (None, False)))


def guards(tree: ast.AST) -> Iterator[ast.If | ast.IfExp]:
    """Yield the guards in a module, in order."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and len(node.body) == 1:
            [only] = node.body
            if isinstance(only, ast.Return) and _gives_up(only.value):
                yield node
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.IfExp):
            choice = node.value
            if _gives_up(choice.body) != _gives_up(choice.orelse):
                yield choice


def mutant(source: str, number: int) -> tuple[CodeType, int, str]:
    """Return a module's code with one guard disabled, the guard's line and condition."""
    tree = ast.parse(source)
    guard = list(guards(tree))[number]
    text = ast.unparse(guard.test)
    stays = isinstance(guard, ast.IfExp) and _gives_up(guard.orelse)
    guard.test = ast.copy_location(ast.Constant(stays), guard.test)
    return compile(ast.fix_missing_locations(tree), "mutant", "exec"), guard.lineno, text


def _functions(code: CodeType) -> Iterator[CodeType]:
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield item
            yield from _functions(item)


def install(module: ModuleType, code: CodeType) -> None:
    """Give the functions of a module, and those in its rules, the mutant's code."""
    changed = {item.co_qualname: item for item in _functions(code)}
    for holder in vars(module).values():
        function: Any = getattr(holder, "function", getattr(holder, "run", holder))
        if isinstance(function, FunctionType) and function.__module__ == module.__name__:
            function.__code__ = changed[function.__qualname__]


def _broken(files: list[str], module: ModuleType, code: CodeType | None = None) -> bool:
    """Whether a test fails with a mutant's code; the tests run in a process of their own."""
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        status = NOT_INSTALLED
        with contextlib.suppress(BaseException), contextlib.redirect_stdout(io.StringIO()):
            if code is not None:
                install(module, code)
            status = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *files]))
        os._exit(status)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended == NOT_INSTALLED:
        raise RuntimeError("a mutant could not be put in place")
    return ended != 0


def check(family: str) -> tuple[int, int]:
    """Print the guards of a family that no test misses; return how many there are, and how many guards."""
    path = ROOT / "surgeon" / "rules" / f"{family}.py"
    source = path.read_text("utf-8")
    module = importlib.import_module(f"graphdoc.surgeon.rules.{family}")
    files = [str(TESTS / name) for name in FAMILIES[family]]
    explained = EXPLAINED.get(family, {})
    count, missed = len(list(guards(ast.parse(source)))), 0
    if _broken(files, module):
        raise RuntimeError(f"a test of {family} fails although nothing is changed")
    for number in range(count):
        code, line, text = mutant(source, number)
        if not _broken(files, module, code):
            missed += text not in explained
            print(f"  {family}.py:{line}  {text}  {explained.get(text, '')}", flush=True)
    print(f"{family}: {count - missed} of {count} guards are noticed or explained", flush=True)
    return missed, count


def main(names: list[str]) -> int:
    """Check families; return 1 when a guard is gone and no test fails."""
    os.chdir(ROOT)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = (
        "1"  # they would be here before their asserts are rewritten
    )
    sys.path.insert(0, str(ROOT))
    onnxruntime.set_default_logger_severity(4)
    totals = [check(name) for name in names or FAMILIES]
    missed, count = (sum(column) for column in zip(*totals, strict=True))
    print(f"in all: {count - missed} of {count} guards are noticed or explained")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
