"""How much memory is free, so that large input is refused before memory runs out."""

from __future__ import annotations

import os
from pathlib import Path

UNKNOWN = 2**29  # a conservative guess for systems that do not report their memory
CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)  # limits of a container, in both versions of Linux's control groups


def free_memory() -> int:
    """Returns the number of bytes of memory that are free, or a conservative guess if the system does not report it."""
    return max(0, min([_system_memory(), *_container_memory()]))


def _system_memory() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    except (OSError, ValueError, AttributeError):
        return UNKNOWN


def _container_memory() -> list[int]:
    found = []
    for limit, used in CGROUPS:
        try:
            found.append(int(Path(limit).read_text()) - int(Path(used).read_text()) + _file_cache(Path(used).parent))
        except (OSError, ValueError):  # noqa: PERF203 - no such file, or no limit
            continue
    return found


def _file_cache(folder: Path) -> int:
    """Returns the bytes of cached files, which count as used although they can be dropped."""
    lines = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return int(lines.get("inactive_file", 0)) + int(lines.get("active_file", 0))
