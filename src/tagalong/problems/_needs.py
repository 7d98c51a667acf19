"""Packages that only some problems need."""

from __future__ import annotations

import importlib.util


def is_installed(package: str) -> bool:
    """Whether a package could be imported; it is not."""
    return importlib.util.find_spec(package) is not None


def require(problem: str, package: str, install: str) -> None:
    """Refuses where a package is missing, with the line that brings it."""
    if not is_installed(package):
        raise ImportError(f"the problem {problem!r} needs the package {package!r}; pip install '{install}'")
