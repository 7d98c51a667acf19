"""Tab completion in the shell."""

import subprocess
import sys
from pathlib import Path

import pytest
from terminal import Terminal, environment

from tagalong.cli import complete_methods, complete_problems
from tagalong.cli.options import METHODS
from tagalong.problems import problem_names
from tagalong.study import method_names


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tagalong gr", ["group"]),
        ("tagalong run nh", ["nhanes"]),
        ("tagalong demo f", ["faces"]),
        ("tagalong run nhanes --methods mtl,op", ["mtl,optimal"]),
        ("tagalong run nhanes --methods tag+pc", ["tag+pcgrad"]),
        ("tagalong run nhanes --eff", ["--effort"]),
        ("tagalong group a.csv --solver se", ["search"]),
        ("tagalong paper over", ["over-time"]),
        ("tagalong paper main --size f", ["full"]),
    ],
)
def test_tab_completes(tagalong: Terminal, monkeypatch: pytest.MonkeyPatch, line: str, expected: list[str]) -> None:
    monkeypatch.setenv("_TAGALONG_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    with pytest.raises(SystemExit) as ended:
        tagalong()
    shown = tagalong.capsys.readouterr()
    assert (ended.value.code, shown.out.split(), shown.err) == (0, expected, "")


def test_completed_names_are_those_of_the_library() -> None:
    assert set(complete_problems("")) >= set(problem_names())
    assert tuple(method_names()[: len(METHODS)]) == METHODS
    assert set(complete_methods("")) >= set(method_names())


def test_the_completion_script_is_installed(tmp_path: Path) -> None:
    # The named shell, not the one that runs the tests:
    env = {**environment(), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "tagalong", "--install-completion", "bash"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_TAGALONG_COMPLETE" in path.read_text() for path in written)
