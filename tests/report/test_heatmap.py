from typing import Any

import numpy as np
import pytest

from tagalong import Affinity
from tagalong.report import affinity_heatmap, affinity_over_training

NAN = float("nan")
UNUSUAL_NAMES = ["<script>alert(1)</script>", "<b>x</b>", "a & b", "$x$", "%{x}", "2020-01-01"]


def layers(figure: Any) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data}


def example() -> Affinity:
    matrix = [[50.0, 2.0, -0.5], [-4.0, 60.0, NAN], [0.1, 3.0, 70.0]]
    stderr = [[1.0, 0.2, 0.1], [0.5, 1.0, NAN], [0.2, 0.1, 1.0]]
    return Affinity.from_matrix(matrix, ["age", "ill", "tall"], stderr=stderr, count=np.full((3, 3), 7))


def test_rows_are_sources_and_columns_targets_from_the_top_left() -> None:
    figure = affinity_heatmap(example())
    assert (layers(figure)["sure"].z[0][1], layers(figure)["sure"].z[1][0]) == (2.0, -4.0)
    assert layers(figure)["sure"].hovertext[0][1].split("<br>") == ["age → ill", "2 ± 0.2", "values: 7"]
    assert figure.layout.xaxis.ticktext == figure.layout.yaxis.ticktext == ("age", "ill", "tall")
    assert figure.layout.yaxis.range == (2.5, -0.5)
    filled = [np.isfinite(trace.z).astype(int) for trace in figure.data]
    assert np.array_equal(sum(filled), np.ones((3, 3))), "every cell belongs to one layer"


def test_pairs_within_noise_are_paler_and_marked() -> None:
    drawn = layers(affinity_heatmap(example()))
    noisy, sure = drawn["within noise"], drawn["sure"]
    assert np.argwhere(np.isfinite(noisy.z)).tolist() == [[2, 0]]
    assert (noisy.text[2][0], sure.text[0][1]) == ("0.10~", "2.00")
    assert (noisy.opacity, sure.opacity) == (0.35, None)
    assert (noisy.zmin, noisy.zmax) == (sure.zmin, sure.zmax) == (-4.0, 4.0), "self-affinity does not count"


def test_self_affinity_and_pairs_never_measured_have_no_color() -> None:
    drawn = layers(affinity_heatmap(example()))
    own, blank = drawn["self-affinity"], drawn["never measured"]
    assert np.argwhere(np.isfinite(own.z)).tolist() == [[0, 0], [1, 1], [2, 2]]
    assert len({color for _, color in own.colorscale}) == 1
    assert np.argwhere(np.isfinite(blank.z)).tolist() == [[1, 2]]
    assert (blank.hovertext[1][2], blank.text[1][2]) == ("ill → tall<br>never measured", "")


def test_small_numbers_are_written_in_powers_of_a_thousand() -> None:
    sure = layers(affinity_heatmap(Affinity.from_matrix(example().mean * 1e-4, example().tasks)))["sure"]
    assert (sure.text[0][1], sure.zmax) == ("200.0", pytest.approx(400))
    assert "10⁻⁶" in sure.colorbar.title.text


def test_columns_can_be_centred_on_the_mean_onto_their_target() -> None:
    shifted = example().mean - np.array([100.0, 0.0, 0.0])
    figure = affinity_heatmap(Affinity.from_matrix(shifted, example().tasks), center="target")
    sure = layers(figure)["sure"]
    assert (sure.z[1][0], sure.z[2][0]) == pytest.approx((-2.05, 2.05))
    assert sure.text[1][0] == "-104.0"


def test_noise_common_to_all_sources_cancels_around_the_mean_onto_a_target() -> None:
    rng = np.random.default_rng(0)
    own = np.array([[0, 1, 1], [1, 0, -1], [-1, -1, 0]])
    history = own + rng.normal(size=(200, 1, 3)) * 50 + rng.normal(size=(200, 3, 3)) * 0.1
    affinity = Affinity.from_history(history, ["age", "ill", "tall"])
    around_zero, around_level = affinity_heatmap(affinity), affinity_heatmap(affinity, center="target")
    assert np.isfinite(layers(around_zero)["sure"].z).sum() == 0
    assert np.isfinite(layers(around_level)["sure"].z).sum() == 6


def test_two_heat_maps_that_are_compared_share_unit_and_scale() -> None:
    large, small = (Affinity.from_matrix(np.array([[9, 2], [-4, 9]]) * size, ["age", "ill"]) for size in (1e-3, 1e-6))
    figures = affinity_heatmap(large, compare_with=small), affinity_heatmap(small, compare_with=large)
    drawn = [layers(figure)["sure"] for figure in figures]
    assert [sure.zmax for sure in drawn] == pytest.approx([4, 4])
    assert [sure.z[1][0] for sure in drawn] == pytest.approx([-4, -0.004])
    assert all("10⁻³" in sure.colorbar.title.text for sure in drawn)
    with pytest.raises(TypeError, match="`compare_with`"):
        affinity_heatmap(large, compare_with=[[1]])  # type: ignore[arg-type]


def test_task_names_are_shown_literally() -> None:
    n = len(UNUSUAL_NAMES)
    figure = affinity_heatmap(Affinity.from_matrix(np.ones((n, n)), UNUSUAL_NAMES), title="<i>R&D</i>")
    assert figure.layout.xaxis.ticktext[1] == "&lt;b&gt;x&lt;/b&gt;"
    title = figure.layout.title.text.partition("<br>")[0]
    shown = [title, *figure.layout.xaxis.ticktext, *layers(figure)["sure"].hovertext[0]]
    assert not any(tag in text for text in shown for tag in ("<script", "<b>", "<i>", "$"))
    assert figure.layout.xaxis.tickvals == tuple(range(n)), "names are labels, not coordinates"


def test_numbers_are_left_out_of_many_small_cells() -> None:
    many = Affinity.from_matrix(np.ones((40, 40)))
    assert affinity_heatmap(many).data[0].text is None
    assert affinity_heatmap(many, values=True).data[0].text[0][1] == "1.00"


@pytest.mark.parametrize("matrix", [np.zeros((2, 2)), np.full((2, 2), NAN), np.array([[1.0]])])
def test_matrices_without_positive_or_negative_values_are_drawn(matrix: Any) -> None:
    assert affinity_heatmap(Affinity.from_matrix(matrix)).data[0].zmax == 1.0


def test_figures_accept_only_affinities_and_known_centres() -> None:
    with pytest.raises(ValueError, match="`center`"):
        affinity_heatmap(example(), center="mean")  # type: ignore[arg-type]
    for figure in (affinity_heatmap, affinity_over_training):
        with pytest.raises(TypeError, match=r"Affinity\.from_matrix"):
            figure(np.eye(3))  # type: ignore[arg-type]
