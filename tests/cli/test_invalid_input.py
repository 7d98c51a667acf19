"""Invalid paths, options and documents on the command line: one sentence, which names what to change."""

from pathlib import Path

import pytest
from terminal import Terminal

from tagalong.affinity import Affinity
from tagalong.study import ExternalStudy

TABLE = "source,a,b,c\na,0,1,2\nb,1,0,3\nc,2,1,0\n"
LOSSES = "network,seed,task,val_loss,test_loss\n" + "".join(
    f"{network},{seed},{task},{0.5 + 0.1 * len(network)},1\n"
    for network in ("a+b+c", "a+b", "a", "b", "c")
    for seed in (0, 1)
    for task in network.split("+")
)


@pytest.fixture
def files(tagalong: Terminal) -> Terminal:
    """Returns the terminal, in a folder with a square table and a table of losses."""
    Path("square.csv").write_text(TABLE)
    Path("losses.csv").write_text(LOSSES)
    Path("numbers.csv").write_text("x,y\n" + "".join(f"{n % 7},{n % 5 + n / 9}\n" for n in range(40)))
    Path("empty").mkdir()
    return tagalong


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "verdict nope",
            "nope does not exist; pass a filled-in plan, or a finished run's folder or results.json",
        ),
        ("report nope", "nope is not the folder of a finished run: it does not exist"),
        ("report square.csv", "square.csv is not the folder of a finished run: it contains no results.json"),
        ("predict nope x.csv", "nope must be the folder of a finished run"),
        ("predict square.csv square.csv", "square.csv must be the folder of a finished run"),
        (
            "group nope --budget 2",
            "nope does not exist; pass a file with scores: a table, or an affinity saved by tagalong",
        ),
        ("plan nope", "nope does not exist; pass an affinity: saved by tagalong, or a square table"),
        ("plan square.csv --out plan.json", "--out must end in .csv, found 'plan.json'"),
        ("plan square.csv --methods ,", "--methods must name at least one method, found none; pass --methods mtl,tag"),
        ("run numbers.csv --targets y --methods ,", "pass --methods mtl,tag"),
        ("run numbers.csv --targets y --recipe lr=-1", "--recipe lr must be a positive number, found -1"),
        ("run numbers.csv --targets y --errors y=x", "--errors must be one of"),
        ("run numbers.csv --targets y --seeds 0", "--seeds must be a positive integer, found 0"),
        ("run faces --with rows=1", "--with rows must be an integer"),
        ("run faces --with nope=1", "--with nope is not an option of 'faces'"),
        ("group square.csv --budget 2 --cost -1", "--cost must be a positive number, found '-1'"),
        ("group square.csv --budget 2 --resamples 9", "--resamples requires a saved affinity with its history"),
        ("verdict losses.csv --budgets 9", "--budgets must be between 1 and the number of tasks, 3, found 9"),
    ],
)
def test_one_sentence_names_what_to_change(files: Terminal, line: str, expected: str) -> None:
    message = files.error_of(*line.split())
    assert expected in " ".join(message.split())
    assert "mapping" not in message
    assert "['" not in message


def test_budgets_are_refused_where_they_are_given(files: Terminal) -> None:
    files("plan", "square.csv", "--out", "plan.csv", "--seeds", "1")
    rows = Path("plan.csv").read_text().splitlines()
    Path("plan.csv").write_text("\n".join([rows[0], *(f"{row[:-3]}1,1,," for row in rows[1:])]) + "\n")
    assert "--budgets cannot be used with a plan" in files.error_of("verdict", "plan.csv", "--budgets", "2")
    files("verdict", "plan.csv", "--out", "run")
    assert "--budgets can only be used with a table of losses" in files.error_of("verdict", "run", "--budgets", "2")


def test_a_plan_reads_the_direction_of_a_table(files: Terminal) -> None:
    Affinity.from_csv("square.csv").save("affinity.json")
    matrix = Affinity.from_csv("square.csv").mean.T
    Affinity.from_matrix(matrix, ["a", "b", "c"]).to_csv("transposed.csv")
    Path("transposed.csv").write_text(Path("transposed.csv").read_text().replace("source", "target"))
    files("plan", "affinity.json", "--out", "one.csv")
    files("plan", "transposed.csv", "--axis", "target", "--out", "two.csv")
    assert Path("one.csv").read_text() == Path("two.csv").read_text()


def test_a_verdict_does_not_replace_an_external_study(files: Terminal) -> None:
    ExternalStudy(["a", "b"], "external").plan(methods=["stl"])
    assert "--out must not be the folder of a run" in files.error_of("verdict", "losses.csv", "--out", "external")


@pytest.mark.parametrize("command", [("group", "--budget", "2"), ("verdict",), ("plan",)])
def test_garbage_is_quoted_in_part_and_without_escape_sequences(files: Terminal, command: tuple[str, ...]) -> None:
    Path("garbage.json").write_text('{"format": "' + "\\u001b[31mred" * 2000 + '", "x": [}')
    Path("named.json").write_text('{"format": "' + "\\u001b[31mred" * 2000 + '", "x": [1]}')
    for file in ("garbage.json", "named.json"):
        message = files.error_of(command[0], file, *command[1:])
        assert len(message) < 800
        assert "\x1b" not in message
