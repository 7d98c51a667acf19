"""The versions of Python, this library and the packages it uses, for bug reports."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version

from ._version import __version__


def show_versions() -> None:
    """Prints the versions of Python, this library and the packages it uses, for pasting into a bug report.

    Example:
        >>> show_versions()  # doctest: +ELLIPSIS
        Python                ...
        OS                    ...
        tagalong              ...
    """
    import torch

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    versions = {
        "Python": platform.python_version(),
        "OS": platform.platform(),
        "tagalong": __version__,
        "CUDA": ", ".join([torch.version.cuda or "torch was built without it", *gpus]),
    }
    names = {re.split(r"[^\w-]", requirement)[0] for requirement in requires("tagalong") or ()}
    for name in sorted(names - versions.keys()):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # noqa: PERF203 - of an extra
            continue
    width = max(map(len, versions))
    print("\n".join(f"{name:<{width}}  {number}" for name, number in versions.items()))
