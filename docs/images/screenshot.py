"""Takes pictures of a report: its top, for the README, or one of its sections, for the documentation.

    python docs/images/screenshot.py docs/sample_report.html docs/images/report.png
    python docs/images/screenshot.py docs/sample_report.html docs/images/time.png time

Needs the package playwright and Chromium.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

TOP = {"viewport": {"width": 1100, "height": 1760}}
SECTION = {"viewport": {"width": 780, "height": 1200}, "device_scale_factor": 1.5}
VISIBLE_PLOTS_DRAWN = """() => [...document.querySelectorAll('.plot')]
    .filter((plot) => plot.checkVisibility() && plot.getBoundingClientRect().top < innerHeight)
    .every((plot) => plot.querySelector('.main-svg'))"""


def main(page: str, picture: str, section: str | None = None) -> None:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        tab = browser.new_page(**(SECTION if section else TOP), color_scheme="light")
        tab.goto(Path(page).absolute().as_uri())
        tab.wait_for_selector("html[data-ready]")
        draw_plots(tab, section).screenshot(path=picture)
        browser.close()


def browser_path() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        raise SystemExit("needs a browser: apt-get install chromium")
    return found


def draw_plots(tab: Any, section: str | None) -> Any:
    """Returns the page, or one of its sections after unfolding it and drawing its plots."""
    if section is None:
        tab.wait_for_function(VISIBLE_PLOTS_DRAWN)
        return tab
    found = tab.locator(f"#{section}")
    found.evaluate("(part) => { part.open = true; }")
    for plot in found.locator(".plot").all():
        plot.scroll_into_view_if_needed()
        plot.locator(".main-svg").first.wait_for()
    tab.add_style_tag(content="details.section { padding: 1rem }")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
