"""Compares results with golden files: numbers that were written once and that later changes must reproduce.

`pytest tests/golden -n 0 --write-goldens` writes the values of the selected tests instead of comparing them.
"""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-goldens", action="store_true", help="write the golden files instead of comparing")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Returns `golden(name, value, rtol, atol)`, which compares a value of JSON types with the module's golden file."""
    path = FOLDER / f"{request.module.__name__.removeprefix('test_golden_')}.json"

    def compare(name: str, value: Any, rtol: float = 1e-9, atol: float = 1e-12) -> None:
        entries = json.loads(path.read_text()) if path.exists() else {}
        if request.config.getoption("--write-goldens", default=False):
            entries[name] = value
            path.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n")
            return
        assert name in entries, f"{path.name} has no entry {name!r}; write it with --write-goldens"
        differences = list(differing(entries[name], value, rtol, atol, name))
        assert not differences, "\n".join(differences)

    return compare


def differing(expected: Any, actual: Any, rtol: float, atol: float, where: str) -> Iterator[str]:
    """Yields a line for every place where two JSON values differ by more than the tolerance."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted(expected.keys() | actual.keys()):
            if key not in expected or key not in actual:
                yield f"{where}.{key}: only in the {'golden file' if key in expected else 'result'}"
            else:
                yield from differing(expected[key], actual[key], rtol, atol, f"{where}.{key}")
    elif isinstance(expected, list) and isinstance(actual, (list, tuple)):
        if len(expected) != len(actual):
            yield f"{where}: {len(expected)} entries expected, {len(actual)} in the result"
        for index, (left, right) in enumerate(zip(expected, actual, strict=False)):
            yield from differing(left, right, rtol, atol, f"{where}[{index}]")
    elif is_number(expected) and is_number(actual):
        both_nan = math.isnan(expected) and math.isnan(actual)
        if not both_nan and not math.isclose(expected, actual, rel_tol=rtol, abs_tol=atol):
            yield f"{where}: {expected!r} expected, {actual!r} in the result"
    elif type(expected) is not type(actual) or expected != actual:
        yield f"{where}: {expected!r} expected, {actual!r} in the result"


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
