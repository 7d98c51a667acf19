"""Tests the comparison of public APIs itself, on small made-up packages."""

from collections.abc import Callable
from pathlib import Path

import pytest
from compare import Changes, Difference, Snapshot, compare, read_changes

pytest.importorskip("griffe", reason="needs the package griffelib")

from snapshot import take_snapshot

DOORS = ("shop", "shop.fruit", "market", "market.fruit")
INIT = "from ._basket import Basket as Basket\nfrom ._pay import pay as pay\n"
BASKET = """
class Basket(list):
    colour: str

    def __init__(self, size, *, lid=True):
        self.size, self._lid = size, lid

    def add(self, what, count=1):
        self.last = what

    @property
    def weight(self):
        return 0

    def _inner(self): ...
"""
PAY = "MOST = 10\n\ndef pay(basket, /, price, *coins, tip=0, most=MOST, **notes): ...\n"
FRUIT = "from ..fruit._apple import Apple as Apple\n"
APPLE = "class Apple:\n    def eat(self, bites): ...\n"
SHOP = {
    "shop/__init__.py": INIT + "from .fruit import Apple as Apple\n",
    "shop/_basket.py": BASKET,
    "shop/_pay.py": PAY,
    "shop/fruit/__init__.py": FRUIT,
    "shop/fruit/_apple.py": APPLE,
}

Files = dict[str, str]
Take = Callable[[Files], Snapshot]


@pytest.fixture
def take(tmp_path_factory: pytest.TempPathFactory) -> Take:
    def taken(files: Files) -> Snapshot:
        folder = tmp_path_factory.mktemp("source")
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        return take_snapshot(DOORS, folder)

    return taken


@pytest.fixture
def since(take: Take) -> Callable[..., Difference]:
    """Returns a function that compares the snapshots before and after replacing some files."""

    def difference(files: Files, **listed: dict[str, str]) -> Difference:
        return compare(take(SHOP), take(SHOP | files), Changes(**listed))

    return difference


Since = Callable[..., Difference]


def edited(file: str, old: str, new: str) -> Files:
    assert old in SHOP[file]
    return {file: SHOP[file].replace(old, new)}


def moved_to_market() -> Files:
    """Moves the apples from the shop to a separate package."""
    return {
        "shop/__init__.py": INIT,
        "shop/fruit/__init__.py": "",
        "market/__init__.py": "",
        "market/fruit/__init__.py": "from ._apple import Apple as Apple\n",
        "market/fruit/_apple.py": APPLE,
    }


def test_a_snapshot_has_a_line_for_every_public_name_and_member(take: Take) -> None:
    assert take(SHOP) == {
        "shop.Apple": "same as shop.fruit.Apple",
        "shop.Basket": "class(list)",
        "shop.Basket.__init__": "def(size, *, lid=True)",
        "shop.Basket.add": "def(what, count=1)",
        "shop.Basket.colour": "attribute",
        "shop.Basket.last": "attribute",
        "shop.Basket.size": "attribute",
        "shop.Basket.weight": "property",
        "shop.fruit.Apple": "class()",
        "shop.fruit.Apple.eat": "def(bites)",
        "shop.pay": "def(basket, /, price, *coins, tip=0, most=10, **notes)",
    }


LAZY = """
from importlib import import_module
from typing import TYPE_CHECKING, Any
from ._pay import MOST
if TYPE_CHECKING:
    from ._pay import pay as pay
_HOMES = {"pay": "_pay"}
def __getattr__(name: str) -> Any: ...
"""
LISTED = "from ._pay import MOST, pay\n__all__ = ['pay']\n"


@pytest.mark.parametrize("door", [LAZY, LISTED], ids=["on demand", "__all__"])
def test_exports_are_found_and_mere_imports_are_not(door: str, take: Take) -> None:
    assert list(take({"shop/__init__.py": door, "shop/_pay.py": PAY})) == ["shop.pay"]


def test_a_submodule_does_not_hide_the_function_of_its_name(take: Take) -> None:
    """Griffe itself keeps only one of the two."""
    files = {"shop/__init__.py": "from .pay import pay as pay\n", "shop/pay.py": "def pay(price): ...\n"}
    assert take(files) == {"shop.pay": "def(price)"}


def test_special_classes_and_methods_have_signatures(take: Take) -> None:
    source = """
from dataclasses import dataclass
from typing import NamedTuple

@dataclass
class Price:
    value: float
    currency: str = "EUR"

class Coin(NamedTuple):
    value: int
    metal: str = "copper"

class Till:
    def __call__(self, coin): ...
    @classmethod
    def load(cls, path): ...
    @staticmethod
    def count(coins): ...
    async def wait(self, *, longest=1.0): ...
"""
    found = take({"shop/__init__.py": source})
    assert found["shop.Price.__init__"] == "def(value, currency='EUR')"
    assert found["shop.Coin.__init__"] == "def(value, metal='copper')"
    assert found["shop.Till.__call__"] == "def(coin)"
    assert found["shop.Till.load"] == "classmethod(path)"
    assert found["shop.Till.count"] == "staticmethod(coins)"
    assert found["shop.Till.wait"] == "async def(*, longest=1.0)"


def test_code_that_moves_behind_its_door_changes_nothing(since: Since) -> None:
    everything = PAY.replace("MOST", "_MOST") + BASKET.replace("Basket(list)", "Basket(_Weighed)")
    weighed = everything.replace("    @property\n    def weight(self):\n        return 0\n", "")
    base = "class _Weighed(list):\n    @property\n    def weight(self): ...\n"
    files = {"shop/_all.py": base + weighed, "shop/_basket.py": "", "shop/_pay.py": ""}
    door = SHOP["shop/__init__.py"].replace("._basket", "._all").replace("._pay", "._all")
    found = since(files | {"shop/__init__.py": door})
    assert str(found) == "The public API is the same as in api_523576c.json."


BREAKING = {
    "a name": (edited("shop/__init__.py", "from ._pay import pay as pay\n", ""), "shop.pay is gone"),
    "a class": (edited("shop/__init__.py", "from ._basket import Basket as Basket\n", ""), "shop.Basket is gone"),
    "a second name": (edited("shop/__init__.py", "from .fruit import Apple as Apple\n", ""), "shop.Apple is gone"),
    "a method": (edited("shop/_basket.py", "add", "put"), "shop.Basket.add is gone"),
    "a property": (edited("shop/_basket.py", "weight", "_weight"), "shop.Basket.weight is gone"),
    "an attribute": (edited("shop/_basket.py", "self.size", "self._size"), "shop.Basket.size is gone"),
    "a parameter renamed": (edited("shop/_basket.py", "what, count", "what, number"), "shop.Basket.add is changed"),
    "one more parameter": (edited("shop/_basket.py", "what, count", "what, why, count"), "shop.Basket.add is changed"),
    "one parameter less": (edited("shop/_basket.py", ", count=1", ""), "shop.Basket.add is changed"),
    "order": (edited("shop/_basket.py", "what, count=1", "count=1, what=2"), "shop.Basket.add is changed"),
    "keyword only": (edited("shop/_basket.py", "what, count", "what, *, count"), "shop.Basket.add is changed"),
    "a default": (edited("shop/_pay.py", "tip=0", "tip=1"), "shop.pay is changed"),
    "a constant that is a default": (edited("shop/_pay.py", "MOST = 10", "MOST = 9"), "shop.pay is changed"),
    "no **notes": (edited("shop/_pay.py", ", **notes", ""), "shop.pay is changed"),
    "a base": (edited("shop/_basket.py", "Basket(list)", "Basket(dict)"), "shop.Basket is changed"),
    "a method for a property": (edited("shop/_basket.py", "    @property\n", ""), "shop.Basket.weight is changed"),
    "two objects of one": (
        {"shop/__init__.py": INIT + "class Apple:\n    def bite(self): ...\n"},
        "shop.Apple.eat is gone",
    ),
}


@pytest.mark.parametrize(("files", "message"), BREAKING.values(), ids=BREAKING.keys())
def test_a_breaking_change_fails_until_it_is_listed(files: Files, message: str, since: Since) -> None:
    found = since(files)
    assert [line.split("\n")[0] for line in found.unlisted] == [message]
    assert message in found.failure_message
    assert "list it in" in found.failure_message
    name, _, what = message.partition(" is ")
    listed = since(files, **{"removed" if what == "gone" else "changed": {name: "it was wrong"}})
    assert not listed.failure_message
    assert f"{name}: it was wrong" in str(listed)


HARMLESS = {
    "a name": ({}, "from ._pay import MOST as MOST\n", "shop: MOST"),
    "a class": ({}, "class Bag:\n    size = 1\n", "shop: Bag"),
    "a method": (edited("shop/_basket.py", "    def _inner", "    def empty"), "", "shop.Basket: empty"),
    "a parameter": (edited("shop/_basket.py", "count=1", "count=1, why=None"), "", "now def(what, count=1, why=None)"),
    "an option": (edited("shop/_basket.py", "lid=True", "lid=True, key=None"), "", "now def(size, *, lid=True, key"),
    "a base": (edited("shop/_basket.py", "Basket(list)", "Basket(Sized, list)"), "", "now class(Sized, list)"),
}


@pytest.mark.parametrize(("files", "more", "message"), HARMLESS.values(), ids=HARMLESS.keys())
def test_additions_are_shown_and_do_not_fail(files: Files, more: str, message: str, since: Since) -> None:
    found = since(files | {"shop/__init__.py": SHOP["shop/__init__.py"] + more})
    assert not found.failure_message
    assert message in str(found)


STALE = {
    "never was": ({}, {"removed": {"shop.melon": "rotten"}}, "does not contain this name"),
    "still there": ({}, {"removed": {"shop.pay": "free now"}}, "shop.pay is still there"),
    "a member still there": ({}, {"removed": {"shop.fruit": "moved"}}, "shop.fruit.Apple is still there"),
    "not renamed": ({}, {"renamed": {"shop.pay": "shop.buy"}}, "shop.pay is still there"),
    "renamed from nothing": ({}, {"renamed": {"shop.melon": "shop.pay"}}, "does not contain this name"),
    "changed nothing": ({}, {"changed": {"shop.pay": "dearer"}}, "existing calls still work"),
    "changed what never was": ({}, {"changed": {"shop.melon": "dearer"}}, "does not contain this name"),
    "renamed to nothing": (BREAKING["a name"][0], {"renamed": {"shop.pay": "shop.buy"}}, "exports shop.buy"),
    "removed and renamed": (
        BREAKING["a method"][0],
        {"renamed": {"shop.Basket.add": "shop.Basket.put"}, "removed": {"shop.Basket.add": "unused"}},
        "it is listed under renamed too",
    ),
}


@pytest.mark.parametrize(("files", "listed", "message"), STALE.values(), ids=STALE.keys())
def test_an_entry_that_is_not_true_fails(
    files: Files, listed: dict[str, dict[str, str]], message: str, since: Since
) -> None:
    found = since(files, **listed)
    assert len(found.stale) == 1
    assert message in found.failure_message
    assert "correct or delete" in found.failure_message


def test_one_entry_moves_a_package_with_its_content(since: Since) -> None:
    removed = {"shop.Apple": "apples are not the shop's any more"}
    found = since(moved_to_market(), renamed={"shop.fruit": "market.fruit"}, removed=removed)
    assert not found.failure_message
    assert not found.added
    assert "shop.fruit -> market.fruit" in str(found)


def test_an_unlisted_move_is_reported_with_the_new_place(since: Since) -> None:
    assert "did it become market.fruit.Apple? Then list it under `renamed`" in since(moved_to_market()).failure_message


def test_names_missing_from_a_moved_package_must_be_listed(since: Since) -> None:
    files = moved_to_market() | {"market/fruit/_apple.py": "class Apple:\n    def bite(self): ...\n"}
    renamed, second = {"shop.fruit": "market.fruit"}, {"shop.Apple": "not the shop's any more"}
    lost = since(files, renamed=renamed, removed=second)
    assert "its new name in changes.yaml, market.fruit.Apple.eat, does not exist" in lost.failure_message
    assert not since(files, renamed=renamed, removed=second | {"shop.fruit.Apple.eat": "never called"}).failure_message
    member = renamed | {"shop.fruit.Apple.eat": "market.fruit.Apple.bite"}
    changed = {"shop.fruit.Apple.eat": "it takes the whole apple"}
    assert not since(files, renamed=member, removed=second, changed=changed).failure_message


def test_renaming_a_base_does_not_count_as_a_change_of_the_class(take: Take) -> None:
    old, new = ({"shop/__init__.py": f"class {name}: ...\nclass Pear({name}): ...\n"} for name in ("Fruit", "Produce"))
    changes = Changes(renamed={"shop.Fruit": "shop.Produce"})
    assert not compare(take(old), take(new), changes).failure_message


def test_an_object_with_two_names_is_compared_once(since: Since) -> None:
    found = since({"shop/fruit/_apple.py": APPLE.replace("bites", "bites, *, slowly")})
    assert [line.split("\n")[0] for line in found.unlisted] == ["shop.fruit.Apple.eat is changed"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("removed:\n  shop.pay:\n", "`removed: shop.pay` needs a reason"),
        ("renamed:\n  shop.pay: 3\n", "`renamed: shop.pay` needs the new name"),
        ("added:\n  shop.buy: why\n", "may contain renamed, removed and changed, found added"),
    ],
)
def test_an_invalid_list_of_changes_is_rejected(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "changes.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_changes(file)
