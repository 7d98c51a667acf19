"""The documentation site: built without network access, complete, and without errors in a browser."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import tagalong

pytestmark = pytest.mark.slow

pytest.importorskip("mkdocs", reason="needs the packages of tagalong[docs]")

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
ROOMS = [f"tagalong.{door.parent.name}" for door in sorted((SOURCE / "tagalong").glob("*/__init__.py"))]
PAPER = ["tagalong_paper", "tagalong_paper.truth", "tagalong_paper.taskonomy"]
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
