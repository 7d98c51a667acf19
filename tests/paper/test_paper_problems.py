"""CelebA and Taskonomy are sound problems, on small copies written here."""

from pathlib import Path

from official_celeba import write_celeba
from taskonomy_small import write_taskonomy

from problem_contract import assert_problem_is_sound
from tagalong.learn import Recipe

QUICK = Recipe(epochs=1, batch_size=8)


def test_celeba_is_a_sound_problem(tmp_path: Path) -> None:
    write_celeba(tmp_path / "data", 60)
    assert_problem_is_sound("celeba", data=tmp_path / "data", size="small", recipe=QUICK)


def test_taskonomy_is_a_sound_problem(tmp_path: Path) -> None:
    data = write_taskonomy(tmp_path, views=3)
    assert_problem_is_sound("taskonomy", data=data, size="small", recipe=QUICK)
