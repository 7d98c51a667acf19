"""Adds pages for files outside docs/ (examples, changelog, contributing guide) and rewrites links to these files."""

import ast
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
}


def on_files(files: Files, config: Any) -> Files:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "changelog.md", content=changes))
    files.append(File.generated(config, "contributing.md", content=contributing()))
    files.append(File.generated(config, "examples.md", content=examples()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turns links to files outside docs/, which work in the repository, into links to the pages made from them."""
    for outside, page in PAGES.items():
        markdown = re.sub(rf"\]\({outside}\)", f"]({page})", markdown)
    return markdown


def on_page_content(content: str, **_: Any) -> str:
    """Shows "yes" instead of the name of a test, which is too long for a table; a tooltip shows the name."""
    return re.sub(r"<td><code>([\w/]+\.py::\w+)</code></td>", r'<td><abbr title="tests/\1">yes</abbr></td>', content)


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
