import pickle

import numpy as np
import pytest
import torch

from tagalong.learn import Job, count_parameters, train
from tagalong.problems import FACE_ATTRIBUTES, PAPER_RECIPE, CelebANet, faces
from tagalong.problems.faces_drawing import HAIR_ATTRIBUTES, add_label_noise, draw_attributes, draw_faces


@pytest.fixture(scope="module")
def small():
    return faces(rows=1500, pixels=16, seed=3)


def test_the_seed_determines_the_faces() -> None:
    assert faces(rows=300, pixels=8).fingerprint == faces(rows=300, pixels=8).fingerprint
    assert faces(rows=300, pixels=8, seed=1).fingerprint != faces(rows=300, pixels=8).fingerprint


@pytest.mark.parametrize("pixels", [8, 13, 32])
def test_faces_of_any_size_can_be_drawn_and_encoded(pixels) -> None:
    problem = faces(rows=200, pixels=pixels, noise=0)
    assert problem.train.inputs.shape == (140, 3, pixels, pixels)
    assert -1 <= problem.train.inputs.min() < -0.2 < 0.2 < problem.train.inputs.max() <= 1
    narrow, wide = (problem.make_encoder(width)(problem.val.inputs) for width in (1.0, 2.0))
    assert wide.shape[1] == 2 * narrow.shape[1]


def test_uint8_and_float32_are_the_same_faces() -> None:
    integers, floats = faces(rows=200, pixels=8, dtype="uint8"), faces(rows=200, pixels=8)
    assert integers.train.inputs.dtype == torch.uint8
    torch.testing.assert_close(integers.make_encoder()[0](integers.train.inputs), floats.train.inputs)


def test_encoders_can_be_sent_to_workers(small) -> None:
    again = pickle.loads(pickle.dumps(small.encoder))
    assert repr(again) == repr(small.encoder) == "SmallCNN(16, channels=8, uint8=False)"


def test_attributes_depend_on_each_other_as_in_photographs() -> None:
    has, man, _ = draw_attributes(20_000, np.random.default_rng(0))
    assert tuple(has) == FACE_ATTRIBUTES
    assert (sum(has[name].astype(int) for name in HAIR_ATTRIBUTES) <= 1).all()
    assert not (has["No_Beard"] & (has["Goatee"] | has["Mustache"])).any()
    assert not (has["Goatee"] & ~man).any()
    correlation = np.corrcoef([has[name] for name in FACE_ATTRIBUTES])
    place = {name: number for number, name in enumerate(FACE_ATTRIBUTES)}
    assert correlation[place["Goatee"], place["Mustache"]] > 0.3
    assert correlation[place["Goatee"], place["No_Beard"]] < -0.5
    assert correlation[place["Rosy_Cheeks"], place["No_Beard"]] > 0.05
    assert correlation[place["Black_Hair"], place["Blond_Hair"]] < -0.2
    assert all(0.05 < has[name].mean() < 0.9 for name in FACE_ATTRIBUTES)


def test_label_noise_keeps_the_share_of_positives() -> None:
    random = np.random.default_rng(0)
    has, _, _ = draw_attributes(50_000, random)
    labels = add_label_noise(has, 0.05, random)
    for name in FACE_ATTRIBUTES:
        share = has[name].mean()
        assert labels[name].mean() == pytest.approx(share, abs=0.01)
        assert (labels[name] != has[name]).mean() == pytest.approx(4 * 0.05 * share * (1 - share), abs=0.005)
    assert all((add_label_noise(has, 0, random)[name] == has[name]).all() for name in FACE_ATTRIBUTES)


def test_an_attribute_changes_the_picture_where_it_should() -> None:
    rows, pixels = 200, 32
    none = {name: np.zeros(rows, dtype=bool) for name in FACE_ATTRIBUTES} | {"No_Beard": np.ones(rows, dtype=bool)}
    man, skin = np.ones(rows, dtype=bool), np.full(rows, 0.2)

    def mean_face(**changed) -> np.ndarray:
        return draw_faces(none | changed, man, skin, pixels, np.random.default_rng(0)).mean((0, 1))

    plain, all_rows = mean_face(), np.ones(rows, dtype=bool)
    for name, rows_changed in (("Wearing_Hat", slice(4, 13)), ("Goatee", slice(22, 28)), ("Mustache", slice(19, 23))):
        change = np.abs(mean_face(**{name: all_rows}) - plain)
        assert change[rows_changed, 10:22].mean() > 3 * change[28:].mean()
        assert change.max() > 15


def test_a_linear_probe_learns_black_hair_and_a_network_learns_hats(small) -> None:
    flat = [
        torch.cat([split.inputs.flatten(1), torch.ones(len(split), 1)], 1).double()
        for split in (small.train, small.test)
    ]
    target = small.train.targets["Black_Hair"].double() * 2 - 1
    ridge = flat[0].T @ flat[0] + 30 * torch.eye(flat[0].shape[1], dtype=torch.float64)
    guess = (flat[1] @ torch.linalg.solve(ridge, flat[0].T @ target)) > 0
    truth = small.test.targets["Black_Hair"] > 0.5
    assert (guess != truth).double().mean() < 0.8 * min(truth.double().mean(), (~truth).double().mean())
    error = train(small, Job(("Black_Hair", "Wearing_Hat"))).test["Wearing_Hat"].error
    assert error < 0.6 * float(small.test.targets["Wearing_Hat"].mean())


def test_invalid_options_are_named() -> None:
    for option in ({"rows": 3}, {"pixels": 4}, {"noise": 0.9}, {"noise": "x"}, {"dtype": "int8"}, {"size": "huge"}):
        with pytest.raises(ValueError, match=f"`{next(iter(option))}` must be"):
            faces(**option)


def test_the_full_size_has_the_network_and_recipe_of_the_paper() -> None:
    full = faces(rows=100, size="full")
    assert full.train.inputs.shape[1:] == (3, 64, 64)
    assert full.recipe == PAPER_RECIPE
    assert (full.recipe.rate(14), full.recipe.rate(15)) == (5e-4, 2.5e-4)
    # 3·9·64 + two of 64·9·64, three BatchNorms of 2·64, nine heads of 14,400·2 + 2
    assert count_parameters(full, full.names) == 1728 + 2 * 36864 + 3 * 128 + 9 * 28802
    assert count_parameters(full, ()) == count_parameters(full, full.names) - 9 * 28802


def test_channels_last_changes_no_result() -> None:
    images = torch.rand(5, 3, 16, 16, generator=torch.manual_seed(0))
    made = []
    for last in (False, True):
        torch.manual_seed(1)
        made.append(CelebANet(4, channels_last=last)())
    torch.testing.assert_close(made[1](images), made[0](images))
    assert made[1][0].weight.is_contiguous(memory_format=torch.channels_last)


def test_batchnorm_of_faces_adapts_within_the_first_epoch() -> None:
    assert faces(rows=100, size="full").make_encoder()[2].momentum == 0.1
    assert CelebANet()()[1].momentum == 0.01
