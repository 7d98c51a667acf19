"""Pages made from files outside of docs/: examples, changes, how to contribute; and links to those files."""

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
    """Links out of docs/ are right in the repository; in the site they lead to the pages made from those files."""
    for outside, page in PAGES.items():
        markdown = re.sub(rf"\]\({outside}\)", f"]({page})", markdown)
    return markdown


def on_page_content(content: str, **_: Any) -> str:
    """Names of tests are too long for the cells of a table; they show when pointed at."""
    return re.sub(r"<td><code>([\w/]+\.py::\w+)</code></td>", r'<td><abbr title="tests/\1">yes</abbr></td>', content)


def contributing() -> str:
    """As it is, except for links, which start at the root of the repository."""
    return (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("](docs/", "](")


def examples() -> str:
    """Every script of examples/, under what it says of itself."""
    page = ["# Examples", "Scripts that run in seconds. The tests run them, too."]
    for script in sorted((ROOT / "examples").glob("*.py")):
        code = script.read_text(encoding="utf-8")
        said = re.sub(
            r"^(\$ .*)$", r"```console\n\1\n```", ast.get_docstring(ast.parse(code)) or "", flags=re.MULTILINE
        )
        rest = re.sub(r"^# ruff: .*\n", "", code.split('"""', 2)[2], flags=re.MULTILINE)
        page += [f"## {script.name}", said, f"```python\n{rest.strip()}\n```"]
    return "\n\n".join(page)
