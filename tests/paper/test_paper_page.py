"""The page on the paper's experiments quotes the output at full size word for word."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PRINTED = {path.name: path.read_text(encoding="utf-8") for path in sorted((DOCS / "paper-full").glob("*.txt"))}


def _section() -> str:
    page = (DOCS / "paper.md").read_text(encoding="utf-8")
    return page[page.index("## At full size") : page.index("## Where we differ")]


def test_every_table_is_in_the_printed_text() -> None:
    shown = re.findall(r"^```text\n(.*?)^```$", _section(), re.MULTILINE | re.DOTALL)
    assert shown
    for table in shown:
        assert any(table in text for text in PRINTED.values()), table


def test_every_answer_is_the_printed_one_and_none_is_left_out() -> None:
    rows = re.findall(r"^\| `(\S+)` \| (.*) \| (.*) \|$", _section(), re.MULTILINE)
    answers = {(f"{name}.txt", claim): answer for name, claim, answer in rows}
    printed = {
        (name, claim): answer
        for name, text in PRINTED.items()
        for answer, claim in re.findall(r"^\* (yes|no|within noise|not tested): (.*?)\. ", text, re.MULTILINE)
    }
    assert answers == printed


def test_every_printed_text_is_linked_and_every_picture_is_there() -> None:
    section = _section()
    assert set(re.findall(r"\(paper-full/(.*?)\)", section)) == set(PRINTED)
    pictures = re.findall(r"\((images/paper/.*?)\)", section)
    assert pictures
    assert all((DOCS / picture).is_file() for picture in pictures)
