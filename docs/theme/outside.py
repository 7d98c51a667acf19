"""Adds pages made from other files (examples, changelog, contributing guide, notebook) and rewrites links to them."""

import ast
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {
    r"\.\./CHANGELOG\.md": "changelog.md",
    r"\.\./CONTRIBUTING\.md(#[\w-]+)?": r"contributing.md\1",
    r"\.\./examples/(\w+)\.py": r"examples.md#\1py",
    r"\.\./examples": "examples.md",
    r"tour\.ipynb": "tour.md",
}


def on_files(files: Files, config: Any) -> Files:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "changelog.md", content=changes))
    files.append(File.generated(config, "contributing.md", content=contributing()))
    files.append(File.generated(config, "examples.md", content=examples()))
    files.append(File.generated(config, "tour.md", content=tour()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turns links to files, which work in the repository, into links to the pages made from them."""
    for outside, page in PAGES.items():
        markdown = re.sub(rf"\]\({outside}\)", f"]({page})", markdown)
    return markdown


def contributing() -> str:
    """Returns the contributing guide with links relative to docs/ instead of the root of the repository."""
    return (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("](docs/", "](")


def examples() -> str:
    """Returns a page with the docstring and the code of every script in examples/."""
    page = ["# Examples", "Scripts that run in seconds. The tests run them as well."]
    for script in sorted((ROOT / "examples").glob("*.py")):
        code = script.read_text(encoding="utf-8")
        description = re.sub(
            r"^(\$ .*)$", r"```console\n\1\n```", ast.get_docstring(ast.parse(code)) or "", flags=re.MULTILINE
        )
        rest = re.sub(r"^# ruff: .*\n", "", code.split('"""', 2)[2], flags=re.MULTILINE)
        page += [f"## {script.name}", description, f"```python\n{rest.strip()}\n```"]
    return "\n\n".join(page)


def tour() -> str:
    """Returns the cells of the notebook with their outputs."""
    cells = json.loads((ROOT / "docs" / "tour.ipynb").read_text(encoding="utf-8"))["cells"]
    page = []
    for cell in cells:
        source = "".join(cell["source"])
        page.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        page += [shown(output) for output in cell.get("outputs", ())]
    return "\n\n".join([*page, "[Download this page as a notebook](./tour.ipynb)."])


def shown(output: Any) -> str:
    """Returns an output of a cell as Markdown: a picture, a table, or text."""
    data = {kind: "".join(text) for kind, text in output.get("data", {}).items() if isinstance(text, str | list)}
    if "image/png" in data:
        picture = "".join(data["image/png"].split())
        return f'<img alt="{data["text/plain"]}" src="data:image/png;base64,{picture}">'
    if data.get("text/html", "").startswith("<pre>"):  # its lines matter
        return data["text/html"]
    if "text/html" in data:
        table = re.sub(r"<style.*?</style>|\s*\n\s*", "", data["text/html"], flags=re.DOTALL)
        return re.sub(r"<table[^>]*>", "<table>", table)
    return f"```text\n{''.join(output['text']).rstrip()}\n```"
