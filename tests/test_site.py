"""The documentation site: built without network access, complete, and without errors in a browser."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import tagalong

pytestmark = pytest.mark.slow

pytest.importorskip("mkdocs", reason="needs the packages of tagalong[docs]")

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
ROOMS = [f"tagalong.{door.parent.name}" for door in sorted((SOURCE / "tagalong").glob("*/__init__.py"))]
PAPER = ["tagalong_paper", "tagalong_paper.truth", "tagalong_paper.celeba", "tagalong_paper.taskonomy"]
PAGES = re.findall(r"^ +- .*: (\S+)\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
OFFLINE = """
import socket

def refuse(*_):
    raise OSError("the site is built without a network")

socket.socket.connect = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli

cli()
"""


def build(root: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Builds the site as `make docs` does, in a process without network access."""
    command = [sys.executable, "-c", OFFLINE, "build", "--strict", "--site-dir", str(folder)]
    without_notice = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=without_notice, capture_output=True, text=True)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    built = build(ROOT, folder)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_broken_links_stop_the_build(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in ("mkdocs.yml", "CHANGELOG.md", "CONTRIBUTING.md", "examples", "src"):
        (tmp_path / name).symlink_to(ROOT / name)
    page = tmp_path / "docs" / "start.md"
    page.write_text(page.read_text(encoding="utf-8") + "\n[a](nowhere.md) [b](faq.md#nothing)\n", encoding="utf-8")
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode == 1
    assert "nowhere.md" in built.stderr
    assert "#nothing" in built.stderr


class FetchedAddresses(HTMLParser):
    """Collects the addresses that a page makes a browser fetch; links to follow do not count."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = ("src", "srcset", "data", "poster", "href") if tag != "a" else ()
        self.addresses += [value for name, value in attrs if name in names and value]


def test_every_page_of_the_navigation_is_there(site: Path) -> None:
    assert len(PAGES) > 20
    assert [page for page in PAGES if not (site / f"{page}.html").is_file()] == []


def test_pages_in_docs_are_all_in_the_navigation() -> None:
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= set(PAGES)


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) >= len(PAGES)
    for page in pages:
        addresses = FetchedAddresses(page).addresses
        assert [one for one in addresses if re.match(r"(\w+:)?//", one)] == [], page
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style


@pytest.mark.parametrize("module", [room for room in ROOMS if room != "tagalong.integrations"] + PAPER)
def test_everything_a_door_exports_is_in_the_reference(site: Path, module: str) -> None:
    source = SOURCE.joinpath(*module.split("."), "__init__.py").read_text(encoding="utf-8")
    exported = re.findall(r"import (\w+) as \1$", source, re.MULTILINE)
    assert exported
    name_of_page = module.replace("tagalong_paper", "tagalong.paper").split(".")[-1]
    page = (site / "api" / f"{name_of_page}.html").read_text(encoding="utf-8")
    assert [name for name in exported if f'id="{module}.{name}"' not in page] == []


def test_the_exports_of_tagalong_are_on_the_front_page_of_the_reference(site: Path) -> None:
    page = (site / "api" / "index.html").read_text(encoding="utf-8")
    names = [name for name in tagalong.__all__ if not name.startswith("_")]
    assert [name for name in names if not re.search(rf'href="\w+\.html#tagalong\.\w+\.{name}"', page)] == []


def test_adapters_are_in_the_reference(site: Path) -> None:
    page = (site / "api" / "integrations.html").read_text(encoding="utf-8")
    for part in ("lightning", "sklearn", "transformers"):
        source = (SOURCE / "tagalong" / "integrations" / f"{part}.py").read_text(encoding="utf-8")
        for name in re.findall(r"^class ([A-Z]\w+)", source, re.MULTILINE):
            assert f'id="tagalong.integrations.{part}.{name}"' in page


def test_examples_of_docstrings_are_shown_as_code(site: Path) -> None:
    """A `>>>` outside of a section "Example:" would be read as a quotation."""
    assert [page.name for page in (site / "api").glob("*.html") if "<blockquote" in page.read_text("utf-8")] == []


def test_equations_need_only_the_browser(site: Path) -> None:
    equations = (ROOT / "docs" / "method.md").read_text(encoding="utf-8").count("$$") // 2
    page = (site / "method.html").read_text(encoding="utf-8")
    assert page.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">') == equations > 0
    assert not re.search(r"arithmatex|\\\(|\$\$|\\frac", page)


def test_quoted_results_are_those_of_the_benchmark() -> None:
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    rates = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    section = page.partition("## How often is the verdict right?")[2].partition("\n## ")[0]
    shares = re.findall(r"(\d+\.\d)%", section)
    assert len(shares) == 6
    assert [share for share in shares if f"| {share}% |" not in rates] == []


@pytest.fixture
def open_page(browser: Any, site: Path) -> Iterator[Any]:
    """Opens pages from the disk, on a phone; none may complain or fetch anything from elsewhere."""
    complaints: list[str] = []
    context = browser.new_context(viewport={"width": 375, "height": 800}, has_touch=True, is_mobile=True)
    shown = context.new_page()
    shown.on("console", lambda message: complaints.append(f"{shown.url}: {message.text}"))
    shown.on("pageerror", lambda error: complaints.append(f"{shown.url}: {error}"))
    shown.on("request", lambda request: complaints.append(request.url) if outside(request.url, site) else None)

    def open_in_browser(page: str) -> Any:
        shown.goto((site / f"{page}.html").as_uri())
        return shown

    yield open_in_browser
    context.close()
    assert complaints == []


def outside(address: str, site: Path) -> bool:
    return not address.startswith((site.as_uri(), "about:", "data:"))


def test_no_page_needs_sideways_scrolling_on_a_phone(open_page: Any) -> None:
    for page in PAGES:
        shown = open_page(page)
        assert shown.evaluate("document.documentElement.scrollWidth") == 375, page
        assert shown.locator("h1").count() == 1, page
        assert shown.locator("img").evaluate_all("all => all.filter((one) => !one.naturalWidth || !one.alt)") == [], (
            page
        )


def test_search_works_from_the_disk(open_page: Any) -> None:
    shown = open_page("start")
    shown.locator(".md-header__button[for=__search]").click()
    shown.locator(".md-search__input").press_sequentially("momentum")
    # Not the results shown now: those for the first letters are replaced while typing.
    shown.locator('.md-search-result__link[href*="affinity.html"]').first.wait_for()
