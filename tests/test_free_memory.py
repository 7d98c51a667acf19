"""How much memory is free."""

from pathlib import Path

import pytest

from tagalong import free_memory as module
from tagalong.free_memory import UNKNOWN, free_memory


def test_the_limit_of_a_container_counts_without_cached_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < free_memory() < 2**60
    (tmp_path / "current").write_text("2000000\n")
    (tmp_path / "memory.stat").write_text("anon 1\nactive_file 100000\ninactive_file 400000\n")
    monkeypatch.setattr(module, "CGROUPS", ((str(tmp_path / "max"), str(tmp_path / "current")),))
    (tmp_path / "meminfo").write_text(f"MemTotal: 9999999 kB\nMemAvailable: {UNKNOWN // 1024} kB\n")
    monkeypatch.setattr(module, "MEMORY_INFO", tmp_path / "meminfo")
    for limit, free in (("max\n", UNKNOWN), ("3000000\n", 1_500_000)):
        (tmp_path / "max").write_text(limit)
        assert free_memory() == free
