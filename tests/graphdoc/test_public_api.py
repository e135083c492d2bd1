"""The names that ``graphdoc`` offers."""

import importlib
import inspect

import pytest

import graphdoc
from tests import sources

NAMES = sorted(set(graphdoc.__all__) - {"__version__"})


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_resolves_and_is_documented(name: str) -> None:
    """Every name in ``__all__`` can be fetched and says what it is."""
    thing = getattr(graphdoc, name)

    assert inspect.getdoc(thing)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_callable_is_typed(name: str) -> None:
    """Every parameter of a public function or class has a type, and so has a function's result."""
    thing = getattr(graphdoc, name)
    if inspect.isclass(thing) and issubclass(thing, Exception):
        thing = thing.__init__
    signature = inspect.signature(thing)

    assert inspect.isclass(thing) or signature.return_annotation is not inspect.Signature.empty
    parameters = [p for n, p in signature.parameters.items() if n != "self"]
    assert all(p.annotation is not inspect.Parameter.empty for p in parameters)


def test_no_public_name_is_a_package() -> None:
    """A function named like a sub-package would change its meaning once the package is imported."""
    assert set(graphdoc.__all__) & {*sources.FOLDERS, "commands"} == set()


def test_public_names_survive_the_import_of_every_package() -> None:
    """The same, seen from the other side: importing a package does not replace a public name."""
    for folder in sources.FOLDERS[1:]:
        importlib.import_module(f"graphdoc.{folder}")

    assert not [name for name in NAMES if inspect.ismodule(getattr(graphdoc, name))]


def test_dir_lists_the_public_names() -> None:
    """``dir(graphdoc)`` shows what can be used, before it is loaded."""
    assert set(graphdoc.__all__) <= set(dir(graphdoc))


def test_an_unknown_name_is_an_attribute_error() -> None:
    """hasattr works, and the message names what is missing."""
    with pytest.raises(AttributeError, match="'nonsense'"):
        _ = graphdoc.nonsense  # type: ignore[attr-defined]
