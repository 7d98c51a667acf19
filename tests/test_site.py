"""The documentation site: built without network access, without broken links, and fetching nothing from elsewhere."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("mkdocs", reason="needs the packages of tagalong[docs]")

ROOT = Path(__file__).parent.parent
OFFLINE = """
import socket

def refuse(*_):
    raise OSError("the site is built without a network")

socket.socket.connect = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli

cli()
"""


class FetchedAddresses(HTMLParser):
    """Collects the addresses that a page makes a browser fetch; links to follow do not count."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = ("src", "srcset", "data", "poster", "href") if tag != "a" else ()
        self.addresses += [value for name, value in attrs if name in names and value]


def test_the_site_is_built_without_a_network_and_fetches_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OFFLINE, "build", "--strict", "--site-dir", str(tmp_path)]
    without_notice = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=without_notice, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        assert [url for url in FetchedAddresses(page).addresses if re.match(r"(\w+:)?//", url)] == [], page
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style
