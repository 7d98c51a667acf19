"""No public name is lost by accident: compares this tree with the API of 523576c."""

from importlib import import_module

import pytest
from compare import STORED, Snapshot, compare, read_changes, read_snapshot

pytest.importorskip("griffe", reason="needs the package griffelib")

from snapshot import DOORS, take_snapshot


@pytest.fixture(scope="module")
def present() -> Snapshot:
    return take_snapshot()


def test_every_removed_renamed_or_changed_public_name_is_listed(present: Snapshot) -> None:
    difference = compare(read_snapshot(), present, read_changes())
    print(difference)  # shown by pytest -rP and on failure
    if difference.failure_message:
        pytest.fail(difference.failure_message, pytrace=False)


@pytest.mark.parametrize("door", DOORS)
def test_what_a_door_exports_can_be_imported(door: str, present: Snapshot) -> None:
    """Names that are imported on demand are listed twice: for type checkers, and for `__getattr__`."""
    names = [name.removeprefix(f"{door}.") for name in present if name.rpartition(".")[0] == door]
    if "integrations" in door:
        pytest.importorskip(door.rpartition(".")[2])
    missing = [name for name in names if not hasattr(import_module(door), name)] if names else []
    assert not missing, f"{door} exports {', '.join(missing)} only to type checkers"


def test_every_door_exports_something_now_or_did_before(present: Snapshot) -> None:
    known = {name.rpartition(".")[0] for name in (*present, *read_snapshot())}
    assert set(DOORS) <= known, f"DOORS or {STORED.name}: misspelt?"
