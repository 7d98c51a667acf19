"""Takes pictures of figures that `tagalong paper` wrote, for the documentation.

    python docs/images/figures.py runs/paper-faces-full docs/images/paper main-deciding partner …

Needs the package playwright and Chromium.
"""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright
from screenshot import browser_path

SHOWN = {"viewport": {"width": 960, "height": 560}}


def main(folder: str, pictures: str, *names: str) -> None:
    Path(pictures).mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        shown = started.new_page(**SHOWN, color_scheme="light")
        for name in names:
            shown.goto((Path(folder) / f"{name}.html").absolute().as_uri())
            shown.wait_for_selector(".main-svg")
            shown.locator(".js-plotly-plot").screenshot(path=str(Path(pictures) / f"{name}.png"))
        started.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
