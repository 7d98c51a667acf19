"""Runs docs/tour.ipynb and stores its outputs, with a picture of every figure for viewers that run no scripts.

    python docs/images/notebook.py

Needs the packages nbclient, ipykernel and playwright, and Chromium.
"""

import base64
import tempfile
from pathlib import Path
from typing import Any

from nbclient import NotebookClient
from nbformat import read, write
from playwright.sync_api import sync_playwright
from plotly import graph_objects, io
from screenshot import browser_path

NOTEBOOK = Path(__file__).parents[1] / "tour.ipynb"
FIGURE = "application/vnd.plotly.v1+json"
SIZE = {"viewport": {"width": 760, "height": 900}, "device_scale_factor": 1.5}


def main() -> None:
    notebook = read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
        take_pictures([output.data for output in outputs if FIGURE in output.get("data", {})], Path(folder))
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times, which would change the file whenever it is run
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    write(notebook, NOTEBOOK)


def take_pictures(figures: list[Any], folder: Path) -> None:
    """Adds a picture to each output that is a figure."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        tab = browser.new_page(**SIZE, color_scheme="light")
        for data in figures:
            drawn = graph_objects.Figure({key: data[FIGURE][key] for key in ("data", "layout")})
            drawn.update_layout(width=720, height=drawn.layout.height or 480)
            page = folder / "figure.html"
            page.write_text(io.to_html(drawn, config={"displayModeBar": False}), encoding="utf-8")
            tab.goto(page.as_uri())
            tab.wait_for_selector(".main-svg")
            picture = tab.locator(".js-plotly-plot").screenshot(type="png")
            data["image/png"] = base64.b64encode(picture).decode()
            data["text/plain"] = drawn.layout.title.text.partition("<br>")[0]  # what a screen reader says
        browser.close()


if __name__ == "__main__":
    main()
