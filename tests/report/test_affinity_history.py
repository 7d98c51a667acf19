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


def test_one_panel_per_target_and_one_line_color_and_legend_entry_per_source() -> None:
    figure = affinity_over_training(example())
    assert panels(figure) == ["onto age", "onto ill", "onto tall"]
    assert [(line.xaxis, line.name) for line in lines(figure)] == [
        ("x", "ill"), ("x", "tall"), ("x2", "age"), ("x2", "tall"), ("x3", "age"), ("x3", "ill"),
    ]  # fmt: skip
    assert sorted({(line.name, line.line.color) for line in lines(figure)}) == sorted(
        (line.name, line.line.color) for line in lines(figure) if line.showlegend
    )
    assert len({line.line.color for line in lines(figure)}) == 3


def test_points_are_means_of_moving_windows_with_bands_of_one_standard_error() -> None:
    affinity = example()
    line = lines(affinity_over_training(affinity, onto="ill", sources=["age"], smooth=20))[0]
    history = affinity.history[:, 0, 1]
    assert (line.y[0], line.y[1]) == pytest.approx((history[:20].mean(), history[5:25].mean()))
    assert (line.x[0], line.y[-1]) == pytest.approx((affinity.steps[:20].mean(), history[-20:].mean()))
    figure = affinity_over_training(affinity, onto="ill", sources=["age"], smooth=1000)  # all of the history
    mean, error = affinity.mean[0, 1], affinity.stderr[0, 1]
    assert lines(figure)[0].y == pytest.approx((mean,))
    assert bands(figure)[0].y == pytest.approx((mean + error, mean - error))


def test_only_some_of_many_panels_and_sources_are_drawn() -> None:
    affinity = example(20, [f"t{i}" for i in range(16)])
    assert len(panels(affinity_over_training(affinity))) == 6
    assert panels(affinity_over_training(affinity, onto=["t7", "t1"])) == ["onto t7", "onto t1"]
    figure = affinity_over_training(affinity, onto="t0")
    assert (len(lines(figure)), len(bands(figure))) == (15, 10)
    assert [line.name for line in lines(figure) if line.showlegend] == [f"t{i}" for i in range(6, 16)]
    assert len(lines(affinity_over_training(example(2000), smooth=1))[0].x) <= 202
    single = affinity_over_training(example(1))
    assert [len(line.y) for line in lines(single)] == [1] * 6
    assert not any(band.x for band in bands(single))


def test_lines_have_gaps_where_nothing_was_measured() -> None:
    history = example().history.copy()
    history[40:60, 0, 1] = history[:, 2, 1] = NAN
    figure = affinity_over_training(Affinity.from_history(history, TASKS), onto="ill", smooth=4)
    y = np.array(lines(figure)[0].y, dtype=float)
    assert np.isnan(y[40:57]).all()
    assert np.isfinite(y[:37]).all()
    assert np.isnan(np.array(lines(figure)[1].y, dtype=float)).all()
    assert [band.y.count(None) for band in bands(figure)] == [1, 0]


def test_round_robin_windows_are_wide_enough_for_every_source() -> None:
    turns = np.arange(90) % 3
    history = np.where((turns[:, None] == np.arange(3))[:, :, None], example(90).history, NAN)
    figure = affinity_over_training(Affinity.from_history(history, TASKS))
    assert all(np.isfinite(line.y).all() for line in lines(figure))
    assert "15 measured steps" in figure.layout.title.text


def test_raw_and_relative_steps_are_on_the_same_level() -> None:
    """Steps without all tasks are relative to the null step; the others hold momentum's term."""
    relative = np.arange(60) % 5 == 0
    history = np.full((60, 3, 3), 1.0) - 10.0 * ~relative[:, None, None]
    history[relative, 2] = NAN
    null = np.where(relative[:, None], -10.0, NAN) * np.ones(3)
    affinity = Affinity.from_history(history, TASKS, null=null)
    for line in lines(affinity_over_training(affinity, smooth=3)):
        assert np.allclose(line.y, 1.0)


@pytest.mark.parametrize(
    "arguments",
    [
        {"onto": "weight"},
        {"sources": ["age", "x", "y"]},
        {"onto": []},
        {"smooth": 0},
        {"affinity": Affinity.from_matrix(np.eye(2))},  # has no history
    ],
)
def test_invalid_arguments_raise_an_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(arguments))}` must"):
        affinity_over_training(**{"affinity": example(), **arguments})
