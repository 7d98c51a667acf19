"""Tab completion in the shell."""

import pytest
from terminal import Terminal

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
