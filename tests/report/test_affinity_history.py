from typing import Any

import numpy as np
import pytest

from tagalong import Affinity
from tagalong.report import affinity_over_training

NAN = float("nan")
TASKS = ["age", "ill", "tall"]


def example(steps: int = 100, tasks: list[str] = TASKS) -> Affinity:
    n = len(tasks)
    history = np.random.default_rng(0).normal(size=(steps, n, n)) + np.arange(n)[:, None]
    return Affinity.from_history(history, tasks, 10 * np.arange(steps))


def lines(figure: Any) -> list[Any]:
    return [trace for trace in figure.data if trace.mode != "none"]


def bands(figure: Any) -> list[Any]:
    return [trace for trace in figure.data if trace.mode == "none"]


def panels(figure: Any) -> list[str]:
    return [annotation.text for annotation in figure.layout.annotations]


def test_one_panel_per_target_and_one_line_per_other_task() -> None:
    figure = affinity_over_training(example())
    assert panels(figure) == ["onto age", "onto ill", "onto tall"]
    assert [(line.xaxis, line.name) for line in lines(figure)] == [
        ("x", "ill"), ("x", "tall"), ("x2", "age"), ("x2", "tall"), ("x3", "age"), ("x3", "ill"),
    ]  # fmt: skip


def test_points_are_means_of_moving_windows() -> None:
    affinity = example()
    line = lines(affinity_over_training(affinity, onto="ill", sources=["age"], smooth=20))[0]
    assert line.y[0] == pytest.approx(affinity.history[:20, 0, 1].mean())
    assert line.y[1] == pytest.approx(affinity.history[5:25, 0, 1].mean())
    assert line.y[-1] == pytest.approx(affinity.history[-20:, 0, 1].mean())
    assert line.x[0] == pytest.approx(affinity.steps[:20].mean())


def test_bands_are_plus_minus_one_standard_error() -> None:
    affinity = example()
    figure = affinity_over_training(affinity, onto="ill", sources=["age"], smooth=100)
    mean, error = affinity.mean[0, 1], affinity.stderr[0, 1]
    assert bands(figure)[0].y == pytest.approx((mean + error, mean - error))


def test_a_window_longer_than_the_history_takes_all_of_it() -> None:
    affinity = example()
    line = lines(affinity_over_training(affinity, onto="ill", smooth=1000))[0]
    assert line.y == pytest.approx((affinity.mean[0, 1],))


def test_a_source_has_one_color_and_one_legend_entry() -> None:
    drawn = lines(affinity_over_training(example()))
    colors = {name: {line.line.color for line in drawn if line.name == name} for name in TASKS}
    assert all(len(found) == 1 for found in colors.values())
    assert len(set.union(*colors.values())) == 3
    assert sorted(line.name for line in drawn if line.showlegend) == TASKS


def test_six_panels_unless_asked_for_more() -> None:
    affinity = example(20, [f"t{i}" for i in range(8)])
    assert len(panels(affinity_over_training(affinity))) == 6
    assert panels(affinity_over_training(affinity, onto=["t7", "t1"])) == ["onto t7", "onto t1"]
    assert len(panels(affinity_over_training(affinity, onto=affinity.tasks))) == 8


def test_of_many_sources_only_the_highest_are_colored() -> None:
    figure = affinity_over_training(example(20, [f"t{i}" for i in range(16)]), onto="t0")
    assert len(lines(figure)) == 15
    assert len(bands(figure)) == 10
    assert [line.name for line in lines(figure) if line.showlegend] == [f"t{i}" for i in range(6, 16)]


def test_lines_have_gaps_where_nothing_was_measured() -> None:
    history = example().history.copy()
    history[40:60, 0, 1] = NAN
    figure = affinity_over_training(Affinity.from_history(history, TASKS), onto="ill", sources=["age"], smooth=4)
    y = np.array(lines(figure)[0].y, dtype=float)
    assert np.isnan(y[40:57]).all()
    assert np.isfinite(y[:37]).all()
    assert bands(figure)[0].y.count(None) == 1


def test_a_pair_never_measured_draws_nothing() -> None:
    history = example().history.copy()
    history[:, 0] = NAN
    figure = affinity_over_training(Affinity.from_history(history, TASKS), onto="ill", sources=["age"])
    assert np.isnan(np.array(lines(figure)[0].y, dtype=float)).all()
    assert bands(figure)[0].x in ((), None)


def test_round_robin_windows_are_wide_enough_for_every_source() -> None:
    turns = np.arange(90) % 3
    history = np.where((turns[:, None] == np.arange(3))[:, :, None], example(90).history, NAN)
    figure = affinity_over_training(Affinity.from_history(history, TASKS))
    assert all(np.isfinite(line.y).all() for line in lines(figure))
    assert "15 measured steps" in figure.layout.title.text


def in_blocks(affinity: Affinity, size: int) -> Affinity:
    """Returns the same history as means over blocks of steps, as a meter keeps it beyond its memory limit."""
    starts = range(0, len(affinity.steps), size)
    blocks = [affinity.history[start : start + size] for start in starts]
    counts = np.stack([np.isfinite(block).sum(axis=0) for block in blocks])
    sums = np.stack([np.nansum(block, axis=0) for block in blocks])
    return Affinity.from_history(
        np.where(counts > 0, sums / np.maximum(counts, 1), NAN),
        affinity.tasks,
        affinity.steps[::size],
        settings={"steps_per_block": size},
        block_counts=counts,
    )


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_a_history_of_blocks_gives_the_points_of_its_steps(missing: float) -> None:
    history = np.where(np.random.default_rng(1).random((100, 3, 3)) < missing, NAN, example().history)
    steps = Affinity.from_history(history, TASKS, 10 * np.arange(100))
    whole, blocks = (
        lines(affinity_over_training(affinity, onto="ill", sources=["age"], smooth=24))[0]
        for affinity in (steps, in_blocks(steps, 8))
    )
    # Blocks count by their values, of which some are missing.
    assert blocks.x[0] == pytest.approx(whole.x[0], abs=10 if missing else 1e-9)
    assert blocks.y[0] == pytest.approx(whole.y[0])
    assert blocks.x[-1] == pytest.approx(np.average(steps.steps[80:]), abs=20)  # the last block has only four steps
    assert blocks.y[-1] == pytest.approx(np.nanmean(history[80:, 0, 1]))


def test_the_title_says_that_points_are_blocks() -> None:
    figure = affinity_over_training(in_blocks(example(), 8))
    assert "each point: 2 blocks of up to 8 measured steps" in figure.layout.title.text
    figure = affinity_over_training(in_blocks(example(), 8), smooth=3)
    assert "each point: 1 block of up to 8 measured steps" in figure.layout.title.text


def test_raw_and_relative_steps_are_on_the_same_level() -> None:
    """Steps without all tasks are relative to the null step; the others hold momentum's term."""
    relative = np.arange(60) % 5 == 0
    history = np.full((60, 3, 3), 1.0) - 10.0 * ~relative[:, None, None]
    history[relative, 2] = NAN
    null = np.where(relative[:, None], -10.0, NAN) * np.ones(3)
    affinity = Affinity.from_history(history, TASKS, null=null)
    for line in lines(affinity_over_training(affinity, smooth=3)):
        assert np.allclose(line.y, 1.0)


def test_task_names_are_shown_literally() -> None:
    figure = affinity_over_training(example(20, ["<script>", "<b>x</b>", "%{x}"]))
    assert panels(figure)[0] == "onto &lt;script&gt;"
    assert {line.name for line in lines(figure)} == {"&lt;script&gt;", "&lt;b&gt;x&lt;/b&gt;", "%{x}"}
    assert all("<b>" not in note and "<script" not in note for line in lines(figure) for note in line.hovertext)
    assert all(line.hovertemplate is None for line in lines(figure))


def test_one_measured_step_draws_without_bands() -> None:
    figure = affinity_over_training(example(1))
    assert all(len(line.y) == 1 for line in lines(figure))
    assert not any(band.x for band in bands(figure))


def test_long_histories_stay_small() -> None:
    assert len(lines(affinity_over_training(example(2000), smooth=1))[0].x) <= 202


def test_an_affinity_without_history_raises_an_error() -> None:
    with pytest.raises(ValueError, match=r"`affinity` must have a history .* found none; measure it with a meter"):
        affinity_over_training(Affinity.from_matrix(np.eye(2)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"onto": "weight"}, r"`onto` must contain one or more of the tasks 'age', 'ill', 'tall', found 'weight'"),
        ({"sources": ["age", "x", "y"]}, r"`sources` must contain one or more of the tasks .* found 'x', 'y'"),
        ({"onto": []}, r"`onto` must contain one or more of the tasks .* found none"),
        ({"smooth": 0}, r"`smooth` must be a positive integer.* found 0"),
    ],
)
def test_invalid_arguments_raise_an_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        affinity_over_training(example(), **arguments)
