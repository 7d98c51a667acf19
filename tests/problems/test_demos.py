import pytest

from tagalong.problems import DEMOS, FACE_ATTRIBUTES, known_problems


def test_every_demo_is_a_known_problem() -> None:
    assert list(DEMOS) == ["nhanes", "molecules", "faces"]
    known = {spec.name: spec for spec in known_problems()}
    for demo in DEMOS.values():
        assert demo.problem in known
        assert demo.about
        assert len(demo.tasks) == len(set(demo.tasks)) >= 7


def test_faces_have_the_nine_attributes_of_the_paper() -> None:
    problem = DEMOS["faces"].load()
    assert set(problem.names) == set(FACE_ATTRIBUTES)
    assert len(problem.names) == 9


def test_fast_demos_have_fewer_tasks_and_train_less() -> None:
    assert DEMOS["faces"].load(fast=True).names == DEMOS["faces"].tasks[:5]
    for demo in DEMOS.values():
        fast, full = demo.amount(fast=True), demo.amount()
        assert all(fast[name] <= full[name] for name in ("seeds", "confirm", "effort"))
        assert full["confirm"] == full["seeds"] >= 3, "fewer seeds give a provisional verdict"


@pytest.mark.parametrize(("name", "install"), [("nhanes", "tagalong[demo]"), ("molecules", "tagalong[molecules]")])
def test_a_demo_without_its_data_says_what_to_install(name: str, install: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=f"run pip install '{install}'".replace("[", r"\[").replace("]", r"\]")):
        DEMOS[name].load()
