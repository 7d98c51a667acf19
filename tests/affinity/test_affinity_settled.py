import numpy as np
import pytest

from tagalong.affinity import Affinity, Settled

PAIRS = np.array([[9, 2, 0, 0], [2, 9, 0, 0], [0, 0, 9, 2], [0, 0, 2, 9]], dtype=float)
CROSSED = PAIRS[:, [2, 1, 0, 3]][[2, 1, 0, 3]]  # a with d, b with c


def history_with_change(early: int, late: int) -> Affinity:
    history = np.concatenate([np.repeat(CROSSED[None], early, axis=0), np.repeat(PAIRS[None], late, axis=0)])
    return Affinity.from_history(history, ["a", "b", "c", "d"], steps=np.arange(len(history)) * 10)


def test_unchanging_groups_are_settled_since_the_first_fraction() -> None:
    result = history_with_change(0, 100).settled(2)
    assert result
    assert result.since == 490
    assert set(result.groups.values()) == {(("a", "b"), ("c", "d"))}
    assert list(result.groups) == [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


def test_groups_that_changed_long_ago_are_settled_since_then() -> None:
    result = history_with_change(33, 67).settled(2)
    assert isinstance(result, Settled)
    assert result.settled
    assert result.groups[0.6] == (("a", "d"), ("b", "c"))
    assert result.groups[0.7] == (("a", "b"), ("c", "d"))
    assert result.since == 690


def test_groups_that_changed_recently_are_not_settled() -> None:
    result = history_with_change(47, 53).settled(2)
    assert not result
    assert result.since is None
    assert "still changing" in str(result)


def test_the_text_lists_the_groups_of_every_prefix() -> None:
    lines = str(history_with_change(33, 67).settled(2)).splitlines()
    assert lines[0] == "groups unchanged since step 690"
    assert lines[1] == "  50%  {a, d}  {b, c}"
    assert lines[-1] == " 100%  {a, b}  {c, d}"


def test_fractions_can_be_chosen_and_are_checked() -> None:
    assert list(history_with_change(0, 10).settled(2, fractions=[1.0, 0.25]).groups) == [0.25, 1.0]
    for wrong in ([], [1.0], [0.0, 1.0], [0.5, 1.5]):
        with pytest.raises(ValueError, match="`fractions` must contain at least two distinct fractions"):
            history_with_change(0, 10).settled(2, fractions=wrong)


def test_the_average_of_the_affinity_is_used() -> None:
    affinity = history_with_change(0, 100)
    history = affinity.history.copy()
    history[:3] = 1000 * CROSSED
    spoilt = Affinity.from_history(history, affinity.tasks)
    assert spoilt.settled(2).groups[1.0] == (("a", "d"), ("b", "c"))
    assert spoilt.averaged("trimmed", 0.1).settled(2).groups[1.0] == (("a", "b"), ("c", "d"))


def test_short_histories_are_never_settled() -> None:
    assert not history_with_change(0, 1).settled(2)
    assert not history_with_change(0, 5).settled(2)


def test_prefixes_with_an_unmeasured_pair_have_no_groups() -> None:
    history = np.repeat(PAIRS[None], 100, axis=0)
    history[:65, 0, 1] = np.nan
    result = Affinity.from_history(history, ["a", "b", "c", "d"], null=np.zeros((100, 4))).settled(2)
    assert result.groups[0.5] == result.groups[0.6] == ()
    assert result
    assert result.since == 69


def test_on_held_out_losses_a_task_may_settle_alone() -> None:
    alone = PAIRS + np.diag([-9.0, -9.0, 9.0, 9.0])
    history = np.repeat(alone[None], 20, axis=0)
    for held_out, groups in ((True, (("a", "b"), ("c",), ("d",))), (False, (("a", "b"), ("c", "d")))):
        affinity = Affinity.from_history(history, ["a", "b", "c", "d"], settings={"held_out": held_out})
        assert affinity.settled(3).groups[1.0] == groups
