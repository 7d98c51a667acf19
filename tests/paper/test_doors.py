"""The exports of the package do not depend on what was imported before."""

import pkgutil
from importlib import import_module
from importlib.resources import files
from types import ModuleType

import pytest

import tagalong_paper
from tagalong_paper import truth


@pytest.mark.parametrize("door", [tagalong_paper, truth], ids=lambda door: door.__name__)
def test_no_exported_name_is_the_name_of_a_module(door: ModuleType) -> None:
    # Importing the module would replace the exported object.
    modules = {module.name for module in pkgutil.iter_modules(door.__path__)}
    assert not modules & set(door._HOMES)
    for name, home in door._HOMES.items():
        assert getattr(door, name) is getattr(import_module(home, door.__name__), name)


def test_the_package_is_typed() -> None:
    assert files(tagalong_paper).joinpath("py.typed").is_file()
