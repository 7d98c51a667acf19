"""Typical mistakes on the command line and in Python: how they end, and which argument, name or file is named.

A command must end with status 2 and a message on stderr, print nothing else, and train nothing. In Python, the built-in
class of the exception is kept. Every mistake comes with the words that its message must contain; the sentence around
them may change.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from tagalong import Affinity, AffinityMeter, Problem, Results, Study, Task, select_groups
from tagalong.cli import main
from tagalong.learn import Recipe
from tagalong.study import ExternalStudy

pytestmark = pytest.mark.usefixtures("one_thread", "no_cuda")
Golden = Callable[..., None]
ROWS = 60
TARGETS = ("--targets", "age,smokes", "--ignore", "town")
QUICK = ("--methods", "mtl", "--seeds", "1", "--recipe", "epochs=1", "--device", "cpu", "--quiet")
SQUARE = [[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 1.0, 0.0]]

# The command line, without the options that every run shares, and the words that the message must contain.
COMMANDS: dict[str, tuple[str, list[str]]] = {
    "target that is no column": ("run table.csv --targets age,height --ignore town", ["--targets", "height"]),
    "target twice": ("run table.csv --targets age,age --ignore town", ["age"]),
    "no targets": ("run table.csv", ["--targets"]),
    "feature that is no column": ("run table.csv --targets age --features waist,hips", ["--features", "hips"]),
    "missing file": ("run missing.csv --targets age", ["missing.csv"]),
    "wrong separator": ("run spaces.csv --targets age --ignore town", ["--targets", "age"]),
    "two columns of one name": ("run duplicate.csv --targets age --ignore town", ["duplicate.csv", "waist"]),
    "text in a numeric target": ("run words.csv --targets age --ignore town --kinds age=regression", ["age"]),
    "constant target": ("run constant.csv --targets age,smokes --ignore town", ["smokes"]),
    "unknown problem": ("run nhanez", ["nhanez", "nhanes"]),
    "unknown problem option": ("run faces --with color=1", ["color"]),
    "unknown task": ("run faces --tasks Nose", ["Nose"]),
    "unknown method": ("run table.csv --methods tagg", ["--methods", "tagg"]),
    "unknown method option": ("run table.csv --methods tag --set tag.evry=1", ["--set", "evry"]),
    "unknown recipe setting": ("run table.csv --recipe speed=3", ["--recipe", "speed"]),
    "negative learning rate": ("run table.csv --recipe lr=-1", ["lr"]),
    "no seeds": ("run table.csv --seeds 0", ["--seeds"]),
    "more networks than tasks": ("run table.csv --budgets 9 --methods tag", ["--budgets"]),
    "no CUDA": ("run table.csv --device cuda", ["--device"]),
    "unknown executor": ("run table.csv --executor cloud", ["--executor", "cloud"]),
    "file as a folder": ("run table.csv --out table.csv", ["--out"]),
    "budget above the number of tasks": ("group square.csv --budget 9", ["--budget"]),
    "negative cost": ("group square.csv --budget 2 --cost -1", ["--cost"]),
    "unknown solver": ("group square.csv --budget 2 --solver magic", ["--solver"]),
    "unknown objective": ("group square.csv --budget 2 --objective best", ["--objective"]),
    "linked and not linked": (
        "group square.csv --budget 3 --must-link red,blue --cannot-link red,blue",
        ["--must-link"],
    ),
    "weight of an unknown task": ("group square.csv --budget 2 --weights pink=2", ["--weights", "pink"]),
    "matrix that is not square": ("group wide.csv --budget 2", ["wide.csv"]),
    "infinite score": ("group infinite.csv --budget 2", ["infinite.csv"]),
    "task twice in a matrix": ("group twice.csv --budget 2", ["twice.csv", "red"]),
    "misspelled option": ("group square.csv --bugdet 2", ["--bugdet"]),
    "plan without runs": ("plan square.csv --runs 0", ["--runs"]),
    "plan without losses": ("verdict plan.csv", ["plan.csv"]),
    "folder without a run": ("report empty", ["empty"]),
    "unknown experiment": ("paper everything", ["everything"]),
    "unknown size": ("paper main --size huge", ["--size"]),
    "unknown truth table": ("leaderboard --tables nhanse", ["--tables", "nhanse"]),
}
# Mistakes with the folder of a finished run, named "earlier".
RUN_COMMANDS: dict[str, tuple[str, list[str]]] = {
    "other data in the folder": (
        "run constant.csv --targets age --ignore smokes,town --out earlier",
        ["--out", "earlier"],
    ),
    "missing column in new rows": ("predict earlier square.csv", ["square.csv", "waist"]),
    "no new rows": ("predict earlier missing.csv", ["missing.csv"]),
    "damaged results": ("report earlier", ["results.json"]),
    "damaged networks": ("predict earlier table.csv", ["earlier"]),
}


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def table() -> pd.DataFrame:
    random = np.random.default_rng(0)
    waist, pulse = random.normal(size=(2, ROWS)).round(3)
    town = ["Ulm", "Bonn"] * (ROWS // 2)
    return pd.DataFrame({"waist": waist, "pulse": pulse, "town": town, "age": waist + pulse, "smokes": (waist > 0) * 1})


@pytest.fixture
def message_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[int, str]]:
    """Returns a function that runs a command in a folder with files, and returns its status and its message."""
    monkeypatch.chdir(tmp_path)
    frame = table()
    frame.to_csv("table.csv", index=False)
    frame.to_csv("spaces.csv", index=False, sep=" ")
    frame.assign(smokes=1).to_csv("constant.csv", index=False)
    frame.rename(columns={"pulse": "waist"}).to_csv("duplicate.csv", index=False)
    frame.assign(age=frame.age.astype(str).where(frame.index != 7, "old")).to_csv("words.csv", index=False)
    Path("square.csv").write_text("source,red,blue,gray\nred,0,1,2\nblue,1,0,3\ngray,2,1,0\n")
    Path("wide.csv").write_text("source,red,blue,gray\nred,0,1,2\nblue,1,0,3\n")
    Path("infinite.csv").write_text("source,red,blue\nred,0,inf\nblue,1,0\n")
    Path("twice.csv").write_text("source,red,red\nred,0,1\nred,1,0\n")
    Path("plan.csv").write_text(
        "network,seed,task,method,val_loss,test_loss\nred+blue,0,red,mtl,,\nred+blue,0,blue,mtl,,\n"
    )
    Path("empty").mkdir()

    def run(line: str) -> tuple[int, str]:
        command = line.split()
        if line.startswith("run table.csv ") and "--targets" not in command:
            command += TARGETS
        capsys.readouterr()
        status = main(command)
        out, err = capsys.readouterr()
        assert not out
        assert "Traceback" not in err
        return status, err

    return run


def outcome(end: int | str, message: str, words: list[str]) -> list[Any]:
    """Returns how a mistake ended, and those of the words that the message contains."""
    return [end, *(word for word in words if re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", message))]


@pytest.mark.parametrize("mistake", COMMANDS)
def test_mistakes_on_the_command_line(
    mistake: str, message_of: Callable[[str], tuple[int, str]], golden: Golden
) -> None:
    line, words = COMMANDS[mistake]
    status, message = message_of(line)
    golden(f"command: {mistake}", outcome(status, message, words))
    assert not Path("runs").exists()


def test_mistakes_with_a_finished_run(message_of: Callable[[str], tuple[int, str]], golden: Golden) -> None:
    assert main(["run", "table.csv", *TARGETS, *QUICK, "--out", "earlier"]) == 0
    for mistake, (line, words) in RUN_COMMANDS.items():
        for path in Path("earlier").rglob("*") if mistake.startswith("damaged") else ():
            if path.is_file():
                path.write_bytes(path.read_bytes()[:100])
        golden(f"command: {mistake}", outcome(*message_of(line), words))


class Loop:
    """A training loop with two tasks."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.encoder, self.heads = nn.Linear(4, 3), nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD([*self.encoder.parameters(), *self.heads.parameters()], lr=0.1)
        self.inputs = torch.randn(8, 4)

    def losses(self) -> dict[str, torch.Tensor]:
        outputs = self.heads(self.encoder(self.inputs))
        return {"red": outputs[:, 0].square().mean(), "blue": outputs[:, 1].square().mean()}

    def meter(self, **settings: Any) -> AffinityMeter:
        return AffinityMeter(**{"shared": self.encoder, "optimizer": self.optimizer, "every": 1, **settings})

    def other_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.heads.parameters(), lr=0.1)


def arrays(**changed: Any) -> Problem:
    frame = table()
    arguments: dict[str, Any] = {
        "inputs": frame[["waist", "pulse"]].to_numpy(),
        "targets": frame[["age", "smokes"]].to_numpy(),
        "tasks": ["age", "smokes"],
    }
    return Problem.from_arrays(**{**arguments, **changed})


def study(**settings: Any) -> Study:
    return Study(arrays(), settings.pop("out", "out"), **{"device": "cpu", **settings})


MISTAKES: dict[str, tuple[Callable[[Loop], object], list[str]]] = {
    "closure that returns one loss": (lambda loop: loop.meter()(lambda: loop.losses()["red"]), ["closure"]),
    "losses instead of a closure": (lambda loop: loop.meter()(loop.losses()), ["closure"]),
    "loss without a graph": (
        lambda loop: loop.meter()(lambda: {**loop.losses(), "blue": loop.losses()["blue"].detach()}),
        ["blue"],
    ),
    "loss per row": (lambda loop: loop.meter()(lambda: {**loop.losses(), "blue": loop.inputs[:, 0]}), ["blue"]),
    "shared parameters that are not optimized": (
        lambda loop: loop.meter(optimizer=loop.other_optimizer()),
        ["optimizer"],
    ),
    "nothing shared": (lambda loop: loop.meter(shared=nn.ReLU()), ["shared"]),
    "unknown estimator": (lambda loop: loop.meter(estimator="lookahed"), ["estimator", "lookahed"]),
    "unknown update": (lambda loop: loop.meter(update="adam"), ["update", "adam"]),
    "never measured": (lambda loop: loop.meter(every=0), ["every"]),
    "affinity before any step": (lambda loop: loop.meter().affinity(), []),
    "weight of one task only": (lambda loop: loop.meter(weights={"red": 1.0})(loop.losses), ["weights", "blue"]),
    "budget above the number of tasks": (lambda loop: select_groups(np.array(SQUARE), 9), ["budget"]),
    "budget of zero": (lambda loop: select_groups(np.array(SQUARE), 0), ["budget"]),
    "matrix that is not square": (lambda loop: select_groups(np.array(SQUARE)[:2], 2), ["scores"]),
    "infinite score": (lambda loop: select_groups(np.array(SQUARE) + np.inf, 2), ["scores"]),
    "negative cost": (lambda loop: select_groups(np.array(SQUARE), 2, cost=-1.0), ["cost"]),
    "unknown solver": (lambda loop: select_groups(np.array(SQUARE), 2, solver="magic"), ["solver", "magic"]),
    "link to an unknown task": (
        lambda loop: select_groups(np.array(SQUARE), 2, must_link=[("0", "pink")]),
        ["must_link", "pink"],
    ),
    "one task twice in a matrix": (lambda loop: Affinity.from_matrix(SQUARE, ["red", "blue", "red"]), ["tasks", "red"]),
    "unknown kind of task": (lambda loop: Task("age", "number"), ["kind", "number"]),
    "task twice": (lambda loop: arrays(tasks=["age", "age"]), ["age"]),
    "rows that do not match": (lambda loop: arrays(inputs=np.zeros((ROWS - 1, 2))), ["inputs"]),
    "infinite input": (lambda loop: arrays(inputs=np.full((ROWS, 2), np.inf)), ["inputs"]),
    "class that is not 0 or 1": (
        lambda loop: arrays(tasks=["age", Task("smokes", "binary")], targets=np.arange(120).reshape(60, 2)),
        ["smokes"],
    ),
    "unknown encoder": (lambda loop: arrays(encoder="mpl"), ["encoder", "mpl"]),
    "target that is no column": (
        lambda loop: Problem.from_table(table(), ["height"], ignore=["town"]),
        ["targets", "height"],
    ),
    "unknown optimizer": (lambda loop: Recipe(optimizer="sdg"), ["optimizer", "sdg"]),
    "negative learning rate": (lambda loop: Recipe(lr=-1.0), ["lr"]),
    "unknown method": (lambda loop: study().run(["tagg"]), ["methods", "tagg"]),
    "more networks than tasks": (lambda loop: study().run(["tag"], budgets=[9]), ["budgets"]),
    "no seeds": (lambda loop: study().run(["mtl"], seeds=0), ["seeds"]),
    "no CUDA": (lambda loop: study(device="cuda").run(["mtl"]), ["device"]),
    "results of no run": (lambda loop: Results.load("nowhere"), ["nowhere"]),
    "loss of an unknown task": (
        lambda loop: ExternalStudy(["red", "blue"], "own").tell(["red"], 0, val={"pink": 1.0}, test={"pink": 1.0}),
        ["pink"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_python(mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.chdir(tmp_path)
    call, words = MISTAKES[mistake]
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the golden file holds the class
        call(Loop())
    classes = (base.__name__ for base in type(caught.value).__mro__ if base.__module__ == "builtins")
    golden(f"Python: {mistake}", outcome(next(classes), str(caught.value), words))
