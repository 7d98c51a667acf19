"""Takes pictures of figures that `tagalong paper` wrote, for the documentation.

    python docs/images/figures.py runs/paper-faces-full docs/images/paper main-deciding partner …

Needs the package playwright and Chromium.
"""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright
from screenshot import browser_path

SIZE = {"viewport": {"width": 960, "height": 560}}


def main(folder: str, pictures: str, *names: str) -> None:
    Path(pictures).mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        tab = browser.new_page(**SIZE, color_scheme="light")
        for name in names:
            tab.goto((Path(folder) / f"{name}.html").absolute().as_uri())
            tab.wait_for_selector(".main-svg")
            tab.locator(".js-plotly-plot").screenshot(path=str(Path(pictures) / f"{name}.png"))
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
