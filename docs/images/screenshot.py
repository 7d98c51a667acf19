"""A picture of the top of a report, and of its heat map, for the README.

    python docs/images/screenshot.py docs/sample_report.html docs/images/report.png

Needs the package playwright and a Chromium.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

SIZE = {"width": 1100, "height": 1760}


def main(page: str, picture: str) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("needs a browser: apt-get install chromium")
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        shown = started.new_page(viewport=SIZE, color_scheme="light")
        shown.goto(Path(page).absolute().as_uri())
        shown.wait_for_selector("#heatmap .main-svg")
        shown.screenshot(path=picture)
        started.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
