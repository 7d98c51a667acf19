"""Whether a study that is killed again and again ends with the results and weights of an undisturbed one.

    python benchmarks/kill.py                                    # 100 kills of a study in one process
    python benchmarks/kill.py --executor processes:2 --kills 20

A study is killed (SIGKILL) just before a random file operation, continued, killed again, and so on, ten times; then it
is finished and compared with an undisturbed study. In every other series, all kills are near the end of the study,
where its results are written. Takes a few minutes. The exit status is 1 if anything differs or is left over.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "study"))
from killed_study import exit_status, exported_files, stored_rows

from forkserver import forkserver
from kill_at import records_without_times
from tagalong.study import Results

KILLS_IN_SERIES = 10
CHECKS = ("continued", "identical results", "identical weights", "leftovers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--executor", default="serial", help="serial or processes")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = kill_studies(Path(folder), options.kills, options.executor, random.Random(options.seed))
    series = found["series"]
    print("| executor | series | kills | continued | identical results | identical weights | leftovers |")
    print("|---|---|---|---|---|---|---|")
    counts = " | ".join(f"{found[check]}" for check in CHECKS)
    print(f"| {options.executor} | {series} | {found['kills']} | {counts} |")
    sys.exit(any(found[check] != series for check in CHECKS[:-1]) or found["leftovers"] > 0)


def kill_studies(folder: Path, kills: int, executor: str, draw: random.Random) -> Counter[str]:
    """Kills studies and returns the counts: of series, of kills, and of series by what was found in the end."""
    context = forkserver()
    total, idle = context.Value("i"), context.Value("i")
    clean = folder / "clean" / "run"
    statuses = [exit_status(context, clean, None, number, executor) for number in (total, idle)]
    assert statuses == [0, 0], "the undisturbed study must end"
    found: Counter[str] = Counter()
    while found["kills"] < kills:
        out, wanted = folder / str(found["series"]) / "run", min(KILLS_IN_SERIES, kills - found["kills"])
        late = found["series"] % 2 == 1
        points = late_points(total.value, idle.value, draw) if late else spread_points(total.value, wanted, draw)
        for _, point in zip(range(wanted), points, strict=False):
            found["kills"] += exit_status(context, out, point, None, executor) == -signal.SIGKILL
        finished = exit_status(context, out, None, None, executor) == 0
        found.update(series=1, continued=finished)
        if finished:
            found.update(compare(out, clean))
        print(f"{found['kills']} kills", file=sys.stderr)
    return found


def spread_points(total: int, times: int, draw: random.Random) -> Iterator[int]:
    """Yields points spread over the whole study, each counted from the start of the process to kill."""
    for before, point in pairwise([0, *sorted(draw.sample(range(1, total + 1), times))]):
        yield point - before


def late_points(total: int, idle: int, draw: random.Random) -> Iterator[int]:
    """Yields points in the last operations of a study, which a continuation that trains nothing repeats."""
    yield draw.randint(total - idle + 1, total)
    while True:
        yield draw.randint(1, idle)


def compare(out: Path, clean: Path) -> dict[str, Any]:
    """Compares a study that was killed with the undisturbed one."""
    records = [records_without_times(Results.load(folder)) for folder in (out, clean)]
    return {
        "identical results": records[0] == records[1],
        "identical weights": (stored_rows(out), exported_files(out)) == (stored_rows(clean), exported_files(clean)),
        "leftovers": len(files_of(out) - files_of(clean)),
    }


def files_of(out: Path) -> set[Path]:
    """Returns the files and folders of a study, including those in its temporary folder."""
    return {path.relative_to(out.parent) for path in out.parent.rglob("*")}


if __name__ == "__main__":
    main()
