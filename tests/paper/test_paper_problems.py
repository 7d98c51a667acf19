"""CelebA and Taskonomy pass the checks for problems, on small copies written here."""

from pathlib import Path

from official_celeba import write_celeba
from taskonomy_small import write_taskonomy

from tagalong.learn import Recipe
from tagalong.testing import check_problem

QUICK = Recipe(epochs=1, batch_size=8)


def test_celeba_passes_the_checks(tmp_path: Path) -> None:
    write_celeba(tmp_path / "data", 60)
    check_problem("celeba", data=tmp_path / "data", size="small", recipe=QUICK)


def test_taskonomy_passes_the_checks(tmp_path: Path) -> None:
    data = write_taskonomy(tmp_path, views=3)
    check_problem("taskonomy", data=data, size="small", recipe=QUICK)
