"""How large the report of a run is, and how soon it can be used in a real browser.

    python benchmarks/report_speed.py               # 40 tasks
    python benchmarks/report_speed.py --tasks 9

Times are measured from the start of navigation in a freshly started Chromium browser. "Interactive" means that the
tables respond, and the plots in the window are drawn. "Everything" means that all unfolded plots are drawn, in a window
as tall as the page. The run is synthetic: no network is trained. Needs the packages of the dev
extra and Chromium.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import sync_playwright

from harness import make_parser, save_json, table
from tagalong.report import write_report

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "report"))
from fake_run import make_run

HEIGHTS = {"interactive, s": 900, "everything, s": 20_000}  # of the window
PLOTS_DRAWN = """() => [...document.querySelectorAll('.plot')]
    .filter((plot) => plot.checkVisibility() && plot.getBoundingClientRect().top < innerHeight)
    .every((plot) => plot.querySelector('.main-svg'))"""
SORT = """() => {
    const heading = [...document.querySelectorAll('#methods th')].find((cell) => cell.textContent === 'total loss');
    heading.querySelector('button').click();
    return heading.getAttribute('aria-sort') === 'ascending';
}"""


def main() -> None:
    parser = make_parser(__doc__, device=False)
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--steps", type=int, default=400, help="number of measured steps")
    parser.add_argument("--rounds", type=int, default=5, help="cold starts; the table shows medians")
    options = parser.parse_args()
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("needs a browser: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        names = [f"attribute_number_{number}" for number in range(options.tasks)]
        make_run(Path(folder), names, budgets=(2, 3), steps=options.steps)
        page = write_report(folder)
        row = {"tasks": options.tasks, "MB": page.stat().st_size / 1e6}
        for name, height in HEIGHTS.items():
            row[name] = median(open_page(driver, browser, page, height) for _ in range(options.rounds))
    print(table([row], {"MB": ".1f", **dict.fromkeys(HEIGHTS, ".2f")}))
    save_json(options.json, row)


def open_page(driver: Any, browser: str, page: Path, height: int) -> float:
    """Returns the seconds until the page responds."""
    chromium = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
    try:
        tab = chromium.new_page(viewport={"width": 1200, "height": height})
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready]")
        tab.wait_for_function(PLOTS_DRAWN, polling=10)
        seconds = float(tab.evaluate("performance.now()")) / 1000
        assert tab.evaluate(SORT), "the table must respond"
        return seconds
    finally:
        chromium.close()


if __name__ == "__main__":
    main()
