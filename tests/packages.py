"""Installs packages of other authors, as an installer would leave them on the path."""

import textwrap
from pathlib import Path


def install(folder: Path, name: str, entry_points: str, **modules: str) -> Path:
    """Writes a distribution with these entry points and modules into a folder, and returns the folder."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(textwrap.dedent(entry_points))
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(textwrap.dedent(source))
    return folder
