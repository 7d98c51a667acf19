"""Files about the project itself: how to cite it, and the forms for reporting issues."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import tagalong

ROOT = Path(__file__).parent.parent
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*_*.yml"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def project() -> dict[str, Any]:
    tomllib = pytest.importorskip("tomllib")
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_citation_is_of_this_version_and_licence() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == tagalong.__version__
    assert citation["license"] == project()["license"]
    assert citation["authors"] == project()["authors"]
    assert citation["keywords"] == project()["keywords"]


def test_the_citation_names_all_authors_of_the_paper_in_order() -> None:
    (paper,) = read(ROOT / "CITATION.cff")["references"]
    names = [f"{author['given-names']} {author['family-names']}" for author in paper["authors"]]
    acknowledged = " ".join((ROOT / "docs" / "index.md").read_text(encoding="utf-8").split())
    assert f"{', '.join(names[:-1])} and {names[-1]} in *{paper['title']}*" in acknowledged


def test_every_extra_is_described() -> None:
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8").partition("| extra |")[2].partition("\n\n")[0]
    assert sorted(name for name in project()["optional-dependencies"] if f"`{name}`" not in page) == []


def test_there_is_a_form_for_bugs_and_one_for_questions() -> None:
    assert [form.stem for form in FORMS] == ["bug_report", "question_or_idea"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_forms_ask_for_the_version_and_a_small_example(form: Path) -> None:
    found = read(form)
    assert {"name", "description", "body"} <= found.keys()
    fields = {part["id"]: part for part in found["body"] if part["type"] != "markdown"}
    assert len(fields) == sum(part["type"] != "markdown" for part in found["body"])
    assert "tagalong --version" in fields["version"]["attributes"]["label"]
    assert fields["version"]["attributes"]["placeholder"] == f"tagalong {tagalong.__version__}"
    assert "The smallest loop or table that shows it" in [field["attributes"]["label"] for field in fields.values()]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_pages_that_forms_mention_exist(form: Path) -> None:
    pages = re.findall(r"`(docs/[\w.]+)`", form.read_text(encoding="utf-8"))
    assert pages
    assert [page for page in pages if not (ROOT / page).is_file()] == []
