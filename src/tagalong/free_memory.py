"""How much memory is free, so that large input is refused before memory runs out."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

UNKNOWN = 2**29  # a conservative guess for systems that do not report their memory
MEMORY_INFO = Path("/proc/meminfo")
CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)  # limits of a container, in both versions of Linux's control groups


def free_memory() -> int:
    """Returns the number of bytes of memory that are free, or a conservative guess if the system does not report it."""
    free = UNKNOWN
    with suppress(OSError, ValueError, LookupError, AttributeError):  # what a system does not have
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        values = dict(line.split(":") for line in MEMORY_INFO.read_text().splitlines())
        free = int(values["MemAvailable"].split()[0]) * 1024
    for limit, used in CGROUPS:
        with suppress(OSError, ValueError):  # no such file, or no limit
            # Cached files count as used although they can be dropped.
            pages = dict(line.split() for line in Path(used).with_name("memory.stat").read_text().splitlines())
            cached = int(pages.get("inactive_file", 0)) + int(pages.get("active_file", 0))
            free = min(free, int(Path(limit).read_text()) - int(Path(used).read_text()) + cached)
    return max(0, free)
