"""Streamed rows give the same results as rows in memory, and only a few batches are held."""

import pickle
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from learn_small import TASKS, RowReader, encoder, same, small_problem, stream, stream_rows

from tagalong.errors import InvalidInput
from tagalong.learn import (
    Job,
    Recipe,
    Rows,
    Split,
    Task,
    check_data,
    label_summary,
    train,
    train_many,
    why_not_batched,
)
from tagalong.learn.rows import PREFETCHED_BATCHES


def reader_of(rows: Rows) -> RowReader:
    return rows.reader


@pytest.mark.parametrize("rule", ["plain", "gradnorm"])
@pytest.mark.parametrize("meter", [None, {"every": 3}, {"every": 2, "held_out": True}])
def test_networks_equal_those_trained_in_memory(rule: str, meter: dict[str, object] | None) -> None:
    held = small_problem(make=encoder(dropout=0.3, norm=True))
    job = Job(TASKS[:2], seed=3, rule=rule)
    streamed = stream(held)
    expected, found = (train(problem, job, meter=meter) for problem in (held, streamed))
    assert same(dict(expected.state or {}), dict(found.state or {}))
    np.testing.assert_allclose(found.curve, expected.curve, rtol=1e-12)
    for part in ("val", "test"):
        for task in job.tasks:
            mine, other = getattr(found, part)[task], getattr(expected, part)[task]
            assert (mine.loss, mine.error) == pytest.approx((other.loss, other.error), rel=1e-12)
            np.testing.assert_allclose(mine.rows, other.rows, rtol=1e-6)
    if expected.affinity is not None:
        np.testing.assert_allclose(found.affinity.history, expected.affinity.history, rtol=1e-9)
    for rows in streamed.splits.values():  # of other tasks, only one row is read, which shows the shape of its labels
        others = [tasks for _, tasks, _ in reader_of(rows).asked if tasks not in {(), job.tasks}]
        assert others in ([], [("ill",)])


def draws(job: Job) -> dict[str, list[int | None]]:
    """The draw of every row that is read; threads ask in any order."""
    problem = stream(small_problem(Recipe(batch_size=8, epochs=2)))
    train(problem, job)
    return {
        part: sorted((draw for _, _, draw in reader_of(rows).asked), key=str) for part, rows in problem.splits.items()
    }


def test_augmentation_depends_only_on_seed_epoch_and_row() -> None:
    one, other, again = draws(Job(("age",), 1)), draws(Job(TASKS, 1)), draws(Job(("age",), 2))
    assert one == other
    drawn = {draw for draw in one["train"] if draw is not None}
    assert len(drawn) == 2 * 41, "another one for each row and epoch"
    assert not drawn & set(again["train"])
    assert set(one["val"]) == set(one["test"]) == {None}


def test_few_batches_are_prefetched_and_none_without_a_consumer() -> None:
    rows = stream_rows(small_problem().train)
    batches = rows.batches(torch.arange(40).split(4), (0, 0))
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert len(reader_of(rows).asked) <= 4 * (PREFETCHED_BATCHES + 1)


class Kept:
    """A loss that counts how many outputs are alive at once."""

    def __init__(self) -> None:
        self.alive: list[weakref.ref[torch.Tensor]] = []
        self.most = 0

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        whole = outputs if outputs._base is None else outputs._base
        self.alive = [ref for ref in self.alive if ref() is not None] + [weakref.ref(whole)]
        self.most = max(self.most, len(self.alive))
        return (outputs.squeeze(1) - targets).abs()


@pytest.mark.parametrize(("error", "held"), [("loss", False), ("mae", True)])
def test_outputs_are_kept_only_for_errors_that_need_them(error: str, held: bool) -> None:
    loss = Kept()
    problem = stream(small_problem().only(["age"]))
    problem = replace(problem, tasks=(Task("age", "regression", loss=loss, error=error),))
    train(problem, Job(("age",)))
    assert (loss.most > 3) == held  # 24 rows in fives; the last outputs live until the next come


def test_the_fingerprint_depends_on_the_contents() -> None:
    problem = small_problem()
    assert stream(problem).fingerprint == stream(problem).fingerprint
    assert stream(small_problem(count=40)).fingerprint != stream(problem).fingerprint
    assert stream(problem).only(["age"]).fingerprint != stream(problem).fingerprint


def test_streamed_rows_are_pickled_checked_summarized_and_not_batched() -> None:
    problem = stream(small_problem())
    again = pickle.loads(pickle.dumps(problem.train))
    torch.testing.assert_close(again.batch(torch.arange(4)), problem.train.batch(torch.arange(4)), equal_nan=True)
    check_data(problem)
    empty = stream_rows(Split(torch.zeros(0, 4), {t: torch.zeros(0) for t in TASKS}))
    with pytest.raises(InvalidInput, match="`val`"):
        check_data(replace(problem, val=empty))
    summary = label_summary(problem.only(["age", "weight"]))
    assert summary.labels["age"] == {"train": 41, "val": 24, "test": 24}
    assert why_not_batched(problem) is not None
    for trained in train_many(problem, [Job(("age",)), Job(("age", "ill"))]):
        np.testing.assert_array_equal(trained.curve, train(problem, trained.job).curve)
