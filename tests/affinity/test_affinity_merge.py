import numpy as np
import pytest

from tagalong.affinity import Affinity


def measured(tasks: str, steps: list[int], seed: int = 0, **settings: object) -> Affinity:
    n = len(tasks)
    history = np.random.default_rng(seed).standard_normal((len(steps), n, n))
    null = np.arange(len(steps) * n, dtype=float).reshape(len(steps), n)
    return Affinity.from_history(
        history, list(tasks), steps, null=null, skipped={"missing": np.ones((n, n))}, settings=settings
    )


def test_tasks_are_joined_and_unmeasured_pairs_are_nan() -> None:
    merged = measured("ab", [0, 10]).merge(measured("cb", [0, 10, 20], seed=1))
    assert merged.tasks == ("a", "b", "c")
    assert merged.count.tolist() == [[2, 2, 0], [2, 5, 3], [0, 3, 3]]
    assert np.isnan(merged.mean[0, 2])
    assert np.isnan(merged.mean[2, 0])


def test_histories_follow_each_other_and_means_are_of_both() -> None:
    first, second = measured("ab", [0, 10]), measured("cb", [0, 10, 20], seed=1)
    merged = first.merge(second)
    assert merged.steps.tolist() == [0, 10, 11, 21, 31]
    np.testing.assert_array_equal(merged.history[:2, :2, :2], first.history)
    np.testing.assert_array_equal(merged.history[2:, 2, 1], second.history[:, 0, 1])
    np.testing.assert_array_equal(merged.null[2:, 2], second.null[:, 0])
    assert np.isnan(merged.null[:2, 2]).all()
    both = np.concatenate([first.history[:, 1, 1], second.history[:, 1, 1]])
    assert merged.mean[1, 1] == pytest.approx(both.mean())
    assert merged.skipped["missing"].tolist() == [[1, 1, 0], [1, 2, 1], [0, 1, 1]]


def test_consecutive_steps_keep_their_numbers() -> None:
    whole = measured("ab", [0, 10, 20, 30])
    again = whole.between(0, 15).merge(whole.between(15, 40))
    np.testing.assert_array_equal(again.steps, whole.steps)
    np.testing.assert_array_equal(again.history, whole.history)
    np.testing.assert_array_equal(again.mean, whole.mean)
    np.testing.assert_array_equal(again.stderr, whole.stderr)


@pytest.mark.parametrize("setting", ["estimator", "update", "held_out", "per_lr"])
def test_different_quantities_do_not_merge(setting: str) -> None:
    one, other = measured("ab", [0], **{setting: "x"}), measured("ab", [0], **{setting: "y"})
    with pytest.raises(
        ValueError, match=rf"`other` must have been measured with the same settings.*{setting} \('x' and 'y'\)"
    ):
        one.merge(other)


def test_the_error_names_every_difference() -> None:
    one, other = (
        measured("ab", [0, 1], update="sgd"),
        measured("ab", [0, 1], update="optimizer").averaged("median"),
    )
    with pytest.raises(ValueError, match=r"update.*average"):
        one.merge(other)


def test_other_settings_may_differ_and_are_kept_where_they_agree() -> None:
    merged = measured("ab", [0], lr=0.1, seed_=1, net="x").merge(measured("ab", [0], lr=0.2, seed_=1, data="d"))
    assert merged.settings == {"seed_": 1, "net": "x", "data": "d", "average": "mean"}


def test_the_average_is_kept() -> None:
    one, other = (measured("ab", list(range(30)), seed=s).averaged("trimmed", 0.2) for s in (0, 1))
    merged = one.merge(other)
    assert merged.settings == {"average": "trimmed", "trim": 0.2}
    np.testing.assert_array_equal(merged.mean, merged.averaged("trimmed", 0.2).mean)


def test_without_histories_means_are_weighted_by_count() -> None:
    first = Affinity.from_matrix([[1.0, 2.0], [3.0, np.nan]], ["a", "b"], count=[[3, 3], [3, 0]])
    second = Affinity.from_matrix([[5.0, 6.0], [7.0, 8.0]], ["b", "a"], stderr=np.ones((2, 2)))
    merged = first.merge(second)
    assert merged.mean.tolist() == [[(3 + 8) / 4, (6 + 7) / 4], [(9 + 6) / 4, 5.0]]
    assert merged.count.tolist() == [[4, 4], [4, 1]]
    assert merged.stderr[1, 1] == 1
    assert np.isnan(merged.stderr[0]).all()


def test_errors_of_independent_means_add_in_squares() -> None:
    first, second = (
        Affinity.from_matrix([[0.0]], stderr=[[error]], count=[[count]]) for error, count in ((3.0, 1), (4.0, 1))
    )
    assert first.merge(second).stderr.item() == pytest.approx(2.5)


def test_a_history_and_a_table_give_means_without_a_history() -> None:
    first, second = measured("ab", [0, 10, 20]), Affinity.from_matrix([[9.0]], ["b"])
    for merged in (first.merge(second), second.merge(first)):
        assert len(merged.steps) == 0
        at = merged.tasks.index("b")
        assert merged.mean[at, at] == pytest.approx((first.history[:, 1, 1].sum() + 9) / 4)
    assert second.merge(first).tasks == ("b", "a")
