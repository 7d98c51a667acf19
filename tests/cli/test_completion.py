"""Tab completion in the shell."""

import subprocess
import sys
from pathlib import Path

import pytest
from terminal import environment

from tagalong.cli import complete_methods, complete_problems
from tagalong.cli.options import SUGGESTED_METHODS
from tagalong.problems import problem_names
from tagalong.study import method_names


def completions(line: str, folder: Path) -> list[str]:
    """Returns what bash offers at the end of this line."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    env = {**environment(), **words, "_TAGALONG_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-m", "tagalong"], env=env, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tagalong gr", ["group"]),
        ("tagalong run nh", ["nhanes"]),
        ("tagalong run tab", ["table.csv"]),
        ("tagalong demo f", ["faces"]),
        ("tagalong run nhanes --methods mtl,op", ["mtl,optimal"]),
        ("tagalong run nhanes --methods tag+pc", ["tag+pcgrad"]),
        ("tagalong run nhanes --executor pr", ["processes"]),
        ("tagalong run nhanes --pas", ["--passes"]),
        ("tagalong run table.csv --unlabelled ta", ["table.csv"]),
        ("tagalong group a.csv --solver se", ["search"]),
        ("tagalong paper over", ["over-time"]),
        ("tagalong paper main --problem c", ["celeba"]),
        ("tagalong report runs/o", ["runs/one"]),
    ],
)
def test_tab_completes(tmp_path: Path, line: str, expected: list[str]) -> None:
    (tmp_path / "table.csv").touch()
    (tmp_path / "runs" / "one").mkdir(parents=True)
    assert completions(line, tmp_path) == expected


def test_completed_names_are_those_of_the_library() -> None:
    assert set(complete_problems("")) >= set(problem_names())
    assert tuple(method_names()[: len(SUGGESTED_METHODS)]) == SUGGESTED_METHODS
    # In a separate process: here other tests may have registered more names.
    listing = "from tagalong.study import method_names; print(*method_names(), sep=',')"
    fresh = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True).stdout
    assert set(complete_methods("")) >= set(fresh.strip().split(","))


CHOSEN = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # the named shell, not the one that runs the tests


@pytest.mark.parametrize(
    ("shell", "words"), [("bash", "complete -o default"), ("zsh", "#compdef"), ("fish", "complete --command")]
)
def test_the_completion_script_is_shown(shell: str, words: str) -> None:
    command = [sys.executable, "-m", "tagalong", "--show-completion", shell]
    done = subprocess.run(command, env={**environment(), **CHOSEN}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "_TAGALONG_COMPLETE" in done.stdout
    assert words in done.stdout


def test_the_completion_script_is_installed(tmp_path: Path) -> None:
    env = {**environment(), **CHOSEN, "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "tagalong", "--install-completion", "bash"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_TAGALONG_COMPLETE" in path.read_text() for path in written)
