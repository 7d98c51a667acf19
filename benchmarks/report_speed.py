"""How large the report of a run is, and how soon it can be used in a real browser.

    python benchmarks/report_speed.py               # 40 tasks
    python benchmarks/report_speed.py --tasks 9

Times are measured from the start of navigation in a freshly started Chromium browser. "Interactive" means that the
slider, the switches and the table respond, and the plots in the window are drawn. "Everything" means that all plots
are drawn, in a window as tall as the page. The run is synthetic: no network is trained. Needs the packages of the dev
extra and Chromium.
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

PLOTS_DRAWN = """() => [...document.querySelectorAll('.plot')]
    .filter((plot) => plot.getBoundingClientRect().top < innerHeight)
    .every((plot) => plot.querySelector('.main-svg'))"""
MOVE_SLIDER = """() => {
    const slider = document.getElementById('budget-slider');
    const before = document.getElementById('budget-groups').childElementCount;
    slider.value = '1';
    slider.dispatchEvent(new Event('input'));
    return before !== 1 && document.getElementById('budget-groups').childElementCount === 1;
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--steps", type=int, default=400, help="number of measured steps")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        names = [f"attribute_number_{i}" for i in range(options.tasks)]
        make_run(Path(folder), names, budgets=(2, 3), steps=options.steps)
        page = write_report(folder)
        found = {"tasks": options.tasks, "megabytes": page.stat().st_size / 1e6, **measure_times(page, options.rounds)}
    print(
        f"{options.tasks} tasks: {found['megabytes']:.1f} MB, interactive after {found['interactive']:.2f} s", end=", "
    )
    print(f"everything drawn after {found['everything']:.2f} s (medians of {options.rounds} cold starts)")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def measure_times(page: Path, rounds: int) -> dict[str, float]:
    """Returns medians over cold starts, in seconds."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("needs a browser: apt-get install chromium")
    with sync_playwright() as driver:
        seconds = {
            name: median(_time_once(driver, browser, page, height) for _ in range(rounds))
            for name, height in (("interactive", 900), ("everything", 20_000))
        }
    return seconds


def _time_once(driver: Any, browser: str, page: Path, height: int) -> float:
    chromium = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
    try:
        tab = chromium.new_page(viewport={"width": 1200, "height": height})
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready]")
        tab.wait_for_function(PLOTS_DRAWN, polling=10)
        now = float(tab.evaluate("performance.now()"))
        assert tab.evaluate(MOVE_SLIDER), "the slider must respond"
        return now / 1000
    finally:
        chromium.close()


if __name__ == "__main__":
    main()
