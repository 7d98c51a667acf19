"""Documents that were edited by hand: every reader either uses them or says in a sentence what is wrong."""

import copy
import csv
import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.files import DocumentError
from tagalong.group import Grouping, read_table, select_groups
from tagalong.learn import Problem
from tagalong.report import write_report
from tagalong.study import Best, ExternalStudy, Results, Study, read_run

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]
TASKS = ("age", "ill", "kind")
OVERFLOW = "@overflow@"  # written as 1e400
DELETED, EXTENDED = "@deleted@", "@extended@"
VALUES: list[Any] = [None, [], {}, [None], "x", "\x1b[31m`red`\n", "long" * 2000, -1, 0, 7, 2.5, True, 10**400]
EDITS = [*VALUES, OVERFLOW, DELETED, EXTENDED]
Reader = Callable[[Path], object]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a finished run of a small table, which lies next to it."""
    folder = tmp_path_factory.mktemp("run")
    rng = np.random.default_rng(0)
    with open(folder / "table.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "color", *TASKS])
        for number, (a, b) in enumerate(rng.normal(size=(150, 2)).round(3).tolist()):
            writer.writerow([a, b, "rg"[number % 2], a + b, int(a > b), "xyz"[number % 3]])
    problem = Problem.from_table(folder / "table.csv", TASKS, categorical=["color"])
    problem = replace(problem, recipe=replace(problem.recipe, epochs=1))
    Study(problem, folder / "run", device="cpu").run(["mtl", "tag", "auto"], [2], seeds=2, effort=7)
    return folder / "run"


@pytest.fixture(scope="module")
def external(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a finished study of networks trained elsewhere."""
    folder = tmp_path_factory.mktemp("external")
    study = ExternalStudy(TASKS, folder)
    study.plan(Affinity.from_matrix(np.arange(9.0).reshape(3, 3), TASKS), methods=["stl", "tag"], seeds=2)
    while (network := study.ask()) is not None:
        losses = {task: 1.0 + 0.1 * len(network[0]) for task in network[0]}
        rows = {task: [1.0, 2.0] for task in network[0]}
        study.tell(*network, val=losses, test=losses, rows=rows, val_rows=rows, steps=2, seconds=0.5, parameters=3)
    study.results()
    return folder


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the place of every entry of a document, at any depth."""
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def edited(document: dict[str, Any], place: tuple[Any, ...], edit: Any) -> str:
    """Returns the JSON text of a document in which one entry was changed, deleted, or given a neighbor."""
    changed = copy.deepcopy(document)
    inside: Any = changed
    for key in place[:-1]:
        inside = inside[key]
    if edit == DELETED:
        del inside[place[-1]]
    elif edit == EXTENDED:
        inside |= {"extra": 1}
    else:
        inside[place[-1]] = edit
    return json.dumps(changed).replace(f'"{OVERFLOW}"', "1e400")


def sampled(document: dict[str, Any], count: int) -> Iterator[str]:
    """Yields the texts of a seeded sample of edits, in which every kind of entry occurs if it is large enough."""
    draw, kinds = random.Random(0), {}
    for place in places(document):
        kinds.setdefault(tuple("*" if isinstance(key, int) or key in TASKS else key for key in place), []).append(place)
    # Every kind of entry first, then any entries.
    chosen = [draw.choice(some) for some in draw.sample(list(kinds.values()), k=len(kinds))]
    chosen += draw.choices(list(places(document)), k=max(0, count - len(chosen)))
    for place in chosen[:count]:
        inside: Any = document
        for key in place[:-1]:
            inside = inside[key]
        edits = EDITS if isinstance(inside, dict) else EDITS[:-1]
        yield edited(document, place, draw.choice(edits))


def rejects(read: Callable[[Any], object], given: Any) -> bool:
    """Whether a reader rejects its input with a sentence; any other exception fails the test."""
    message = ""
    try:
        read(given)
    except InvalidInput as error:
        message = str(error)
    assert len(message) < 1500
    assert "\x1b" not in message
    return bool(message)


def try_edits(folder: Path, file: str, tmp_path: Path, readers: list[Reader], count: int) -> None:
    """Runs every reader on edited copies of a document; anything but an InvalidInput fails the test."""
    work = shutil.copytree(folder, tmp_path / "work")
    document = json.loads((work / file).read_text())
    document.pop("checksum")
    rejected = 0
    for text in sampled(document, count):
        (work / file).write_text(text)
        rejected += sum(rejects(reader, work) for reader in readers)
    assert rejected


def show_results(folder: Path) -> None:
    results = Results.load(folder)
    text = str(results)
    assert "inf%" not in text
    assert "nan%" not in text
    results._repr_html_()
    json.dumps(results.to_document(), allow_nan=False)


def use_affinity(folder: Path) -> None:
    affinity = Affinity.load(folder / "affinity.json")
    str(affinity)
    affinity.spread()
    select_groups(read_table(folder / "affinity.json").scores, 2, resamples=0)


def finish_external(folder: Path) -> None:
    ExternalStudy(TASKS, folder).results()


def draw_report(folder: Path) -> None:
    write_report(read_run(folder), folder / "again.html")


def continue_run(folder: Path) -> None:
    problem = Problem.from_table(folder.parent.parent / "table.csv", TASKS, categorical=["color"])
    Study(problem, folder, device="cpu").check(["mtl"])


def test_edited_results_are_used_or_rejected(run: Path, tmp_path: Path) -> None:
    try_edits(run, "results.json", tmp_path, [show_results], 250)


def test_edited_networks_are_used_or_rejected(run: Path, tmp_path: Path) -> None:
    rows = run.parent / "table.csv"
    try_edits(run, "networks/networks.json", tmp_path, [lambda folder: Best.load(folder).predict(rows)], 200)


def test_edited_affinities_are_used_or_rejected(run: Path, tmp_path: Path) -> None:
    try_edits(run, "affinity.json", tmp_path, [use_affinity], 60)


def test_edited_groupings_are_used_or_rejected(run: Path, tmp_path: Path) -> None:
    try_edits(run, "groupings.json", tmp_path, [read_run], 120)


def test_reports_of_edited_runs_are_drawn_or_rejected(run: Path, tmp_path: Path) -> None:
    try_edits(run, "results.json", tmp_path, [draw_report], 6)


def test_edited_settings_are_used_or_rejected(run: Path, tmp_path: Path) -> None:
    shutil.copy(run.parent / "table.csv", tmp_path.parent / "table.csv")
    try_edits(run, "settings.json", tmp_path, [continue_run], 20)


@pytest.mark.parametrize("file", ["told.json", "told/affinity-tag.json"])
def test_edited_external_studies_are_used_or_rejected(external: Path, tmp_path: Path, file: str) -> None:
    try_edits(external, file, tmp_path, [finish_external], 60)


@pytest.mark.parametrize("read", [Grouping.from_json, Grouping.from_yaml])
def test_edited_groupings_in_files_are_used_or_rejected(read: Callable[[str], Grouping]) -> None:
    affinity = Affinity.from_history(np.random.default_rng(0).normal(size=(9, 3, 3)), TASKS)
    document = json.loads(select_groups(affinity, 2).to_json())
    document.pop("checksum")

    def use(text: str) -> None:
        grouping = read(text)
        assert str(grouping)
        assert grouping._repr_html_()
        assert [grouping.explain(task) for task in grouping.tasks]
        assert Grouping.from_json(grouping.to_json()) == grouping

    assert sum(rejects(use, text) for text in sampled(document, 150)) > 50


@pytest.mark.parametrize(
    ("file", "place", "edit", "named"),
    [
        ("results.json", ("problem", "errors"), None, "problem.errors must be an object"),
        ("results.json", ("problem", "kinds"), None, "problem.kinds must be an object"),
        ("results.json", ("problem", "tasks"), [], "problem.tasks must not be empty"),
        ("results.json", ("records",), [], "records must not be empty"),
        ("results.json", ("records", 1, "seed"), -1, r"records\[1\].seed must be at least 0"),
        ("results.json", ("records", 0, "test", "age", "loss"), OVERFLOW, "test.age.loss must be a finite number"),
        ("results.json", ("records", 0, "val", "age"), DELETED, "does not for: 'age'"),
        ("results.json", ("records", 2, "groups", 0, "trains"), ["fit"], "must be the name of a task"),
        ("networks/networks.json", ("groups",), [], "groups must not be empty"),
        ("networks/networks.json", ("tasks", 0, "scale"), [1.0], "scale must be a mean and a positive"),
        ("networks/networks.json", ("tasks", 0, "kind"), "ordinal", "kind must be 'binary' or"),
        ("networks/networks.json", ("tasks", 0, "name"), "x", "must be the name of a task|groups must"),
        ("networks/networks.json", ("table", "columns"), [], "table.columns must not be empty"),
        ("networks/networks.json", ("table", "columns", 0, "deviation"), 0, "deviation must be positive"),
        ("networks/networks.json", ("table", "columns", 0), DELETED, "table must make inputs of the shape"),
        ("networks/networks.json", ("networks", 0, "weights"), "../run.sqlite", "must be the name of a file"),
        ("groupings.json", ("groupings", 1, "grouping", "value"), None, "value must be a finite number"),
    ],
)
def test_the_file_and_the_entry_are_named(
    run: Path, tmp_path: Path, file: str, place: tuple[Any, ...], edit: Any, named: str
) -> None:
    work = shutil.copytree(run, tmp_path / "work")
    document = json.loads((work / file).read_text())
    (work / file).write_text(edited(document, place, edit))
    with pytest.raises(DocumentError, match=named) as caught:
        Best.load(work) if "networks" in file else read_run(work)
    assert str(work / file) in str(caught.value)


def test_a_plan_without_valid_tasks_is_rejected(external: Path, tmp_path: Path) -> None:
    work = shutil.copytree(external, tmp_path / "work")
    document = json.loads((work / "told.json").read_text())
    (work / "told.json").write_text(edited(document, ("plan", "tasks"), [None]))
    with pytest.raises(InvalidInput, match=r"told\.json is damaged: plan\.tasks\[0\] must be a non-empty string"):
        ExternalStudy(TASKS, work).pending()


def test_settings_of_a_newer_version_are_not_called_something_else(run: Path, tmp_path: Path) -> None:
    work = shutil.copytree(run, tmp_path / "a" / "work")
    shutil.copy(run.parent / "table.csv", tmp_path / "table.csv")
    document = json.loads((work / "settings.json").read_text())
    (work / "settings.json").write_text(edited(document, ("version",), 99))
    with pytest.raises(InvalidInput, match=r"settings\.json must have version 1, found 99; update tagalong"):
        continue_run(work)
