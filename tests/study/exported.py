"""Loads exported networks in this process; golden tests do it in one without tagalong."""

import importlib.util
from pathlib import Path
from typing import Any


def load_exported(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("exported_loader", folder / "load.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load()
