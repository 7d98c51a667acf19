"""How large the page of a run is, and how soon it can be used, in a real browser.

    python benchmarks/report_speed.py               # 40 tasks
    python benchmarks/report_speed.py --tasks 9

Times count from the start of the navigation in a browser that has just been started: until the slider, the switches
and the table answer and the plots in the window are drawn ("interactive"), and until every plot of the page would be
("everything", in a window as high as the page). The run is made up: no network is trained. Needs the packages of the
dev extra and Debian's chromium.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import sync_playwright

from tagalong.report import write_report

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "report"))
from fake_run import make_run

DRAWN = """() => [...document.querySelectorAll('.plot')]
    .filter((plot) => plot.getBoundingClientRect().top < innerHeight)
    .every((plot) => plot.querySelector('.main-svg'))"""
MOVE = """() => {
    const slider = document.getElementById('budget-slider');
    const before = document.getElementById('budget-groups').childElementCount;
    slider.value = '1';
    slider.dispatchEvent(new Event('input'));
    return before !== 1 && document.getElementById('budget-groups').childElementCount === 1;
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--steps", type=int, default=400, help="measured steps")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        names = [f"attribute_number_{i}" for i in range(asked.tasks)]
        make_run(Path(folder), names, budgets=(2, 3), steps=asked.steps)
        page = write_report(folder)
        found = {"tasks": asked.tasks, "megabytes": page.stat().st_size / 1e6, **timed(page, asked.rounds)}
    print(f"{asked.tasks} tasks: {found['megabytes']:.1f} MB, interactive after {found['interactive']:.2f} s", end=", ")
    print(f"everything drawn after {found['everything']:.2f} s (medians of {asked.rounds} cold starts)")
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


def timed(page: Path, rounds: int) -> dict[str, float]:
    """Medians over cold starts, in seconds."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("needs a browser: apt-get install chromium")
    with sync_playwright() as driver:
        seconds = {
            name: median(_seconds(driver, browser, page, height) for _ in range(rounds))
            for name, height in (("interactive", 900), ("everything", 20_000))
        }
    return seconds


def _seconds(driver: Any, browser: str, page: Path, height: int) -> float:
    started = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
    try:
        shown = started.new_page(viewport={"width": 1200, "height": height})
        shown.goto(page.as_uri())
        shown.wait_for_selector("html[data-ready]")
        shown.wait_for_function(DRAWN, polling=10)
        now = float(shown.evaluate("performance.now()"))
        assert shown.evaluate(MOVE), "the slider must answer"
        return now / 1000
    finally:
        started.close()


if __name__ == "__main__":
    main()
