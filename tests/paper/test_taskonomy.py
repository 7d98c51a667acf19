"""Reading Taskonomy's files: targets, masks, mirroring, broken images, and errors for invalid folders."""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from taskonomy_small import HOLE, view_arrays, view_file, write_taskonomy, write_view

from tagalong.learn import Problem, StreamedRows, why_not_batched
from tagalong.problems import load_problem
from tagalong_paper.taskonomy import TASKONOMY_RECIPE, taskonomy

TASKS = ("segmentation", "depth", "normals", "edges", "keypoints")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_taskonomy(tmp_path_factory.mktemp("taskonomy"), views=3)


@pytest.fixture
def data(written: Path, tmp_path: Path) -> Path:
    """Returns a copy of the data, which the test may damage."""
    return Path(shutil.copytree(written, tmp_path / "data"))


def read_row(problem: Problem, row: int, draw: int | None = None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    assert isinstance(problem.train, StreamedRows)
    return problem.train.reader.read(row, problem.names, draw)


def damage_image_data(path: Path) -> Path:
    """Damages an image but leaves its first and last bytes intact."""
    content = bytearray(path.read_bytes())
    content[60:200] = bytes(140)
    path.write_bytes(content)
    return path


def test_a_view_has_the_values_of_its_files(written: Path) -> None:
    problem = taskonomy(written)
    arrays = view_arrays(1)  # the second view of the first building
    inputs, targets = read_row(problem, 1)
    assert tuple(targets) == problem.names == TASKS
    np.testing.assert_array_equal(inputs, arrays["rgb"].transpose(2, 0, 1))
    classes = targets["segmentation"].numpy()
    np.testing.assert_array_equal(np.isnan(classes), arrays["segment_semantic"] == 0)
    np.testing.assert_array_equal(np.nan_to_num(classes), arrays["segment_semantic"])
    known = arrays["depth_zbuffer"] != HOLE
    assert 0 < known.mean() < 1
    for task in ("depth", "normals"):
        np.testing.assert_array_equal(targets[task][-1], known)
    depth = (arrays["depth_zbuffer"].astype(float) - 1500) / 1000
    np.testing.assert_allclose(targets["depth"][0], depth * known, atol=1e-5)
    towards = arrays["normal"].transpose(2, 0, 1) / 255 * 2 - 1
    np.testing.assert_allclose(targets["normals"][:3], towards * known, atol=1e-5)
    np.testing.assert_allclose(targets["edges"][0], (arrays["edge_texture"].astype(float) - 718) / 1070, atol=1e-5)
    np.testing.assert_allclose(targets["keypoints"][0], (arrays["keypoints2d"].astype(float) - 50) / 100, atol=1e-5)


def test_training_views_are_mirrored_at_random_with_their_normals(written: Path, tmp_path: Path) -> None:
    arrays = {domain: np.flip(array, 1) for domain, array in view_arrays(0).items()}
    across = arrays["normal"].astype(int)
    across[..., 0] = 255 - across[..., 0]
    shutil.copytree(written, tmp_path / "mirrored")
    write_view(tmp_path / "mirrored", "allen", 0, {**arrays, "normal": across.astype(np.uint8)})
    plain, other = taskonomy(written), taskonomy(tmp_path / "mirrored")
    for draw in (None, 4):
        torch.testing.assert_close(read_row(plain, 0, draw), read_row(plain, 0), equal_nan=True)
    torch.testing.assert_close(read_row(plain, 0, 5), read_row(other, 0), equal_nan=True)
    parts = [torch.arange(6)]
    epochs = [next(plain.train.batches(parts, (0, epoch)))[0] for epoch in range(6)]
    flipped = torch.stack([(epoch != plain.train.batch(parts[0])[0]).flatten(1).any(1) for epoch in epochs])
    assert 0.2 < flipped.float().mean() < 0.8
    torch.testing.assert_close(next(plain.train.batches(parts, (0, 3)))[0], epochs[3])
    torch.testing.assert_close(next(plain.val.chunks())[0], plain.val.batch(torch.arange(3))[0])


@pytest.mark.parametrize("layout", ["{building}/{domain}", "{domain}/taskonomy/{building}"])
def test_every_layout_gives_the_same_rows(written: Path, tmp_path: Path, layout: str) -> None:
    other = write_taskonomy(tmp_path, views=3, layout=layout)
    rows = torch.arange(6)
    mine, theirs = taskonomy(written), taskonomy(other)
    torch.testing.assert_close(mine.train.batch(rows), theirs.train.batch(rows), equal_nan=True)
    assert mine.fingerprint == theirs.fingerprint


def test_larger_images_are_reduced_and_classes_never_mixed(written: Path, tmp_path: Path) -> None:
    problem = taskonomy(write_taskonomy(tmp_path, views=1, pixels=512))
    inputs, targets = read_row(problem, 0)
    assert inputs.shape == (3, 256, 256)
    assert [target.shape[-1] for target in targets.values()] == [256] * 5
    found = targets["segmentation"][targets["segmentation"].isfinite()]
    assert set(found.tolist()) <= set(np.unique(view_arrays(0, 512)["segment_semantic"]).tolist())
    _, usual = read_row(taskonomy(written), 0)  # the same scene, drawn with fewer pixels
    for task in ("depth", "normals", "edges", "keypoints"):
        assert (targets[task] - usual[task]).abs().mean() < 0.1


def test_rows_are_sorted_by_building_and_lists_may_be_elsewhere(written: Path, tmp_path: Path) -> None:
    problem = taskonomy(written)
    assert problem.train.groups is not None
    assert problem.train.groups.tolist() == [0, 0, 0, 1, 1, 1]
    for part, names in zip(("train", "val", "test"), (["dale"], ["birch", "cedar"], ["allen"]), strict=True):
        (tmp_path / f"{part}_models.txt").write_text("\n".join(names))
    other = taskonomy(written, lists=tmp_path)
    assert [len(rows) for rows in other.splits.values()] == [3, 6, 3]
    torch.testing.assert_close(other.test.batch(torch.arange(3))[0], problem.train.batch(torch.arange(3))[0])


def test_validation_and_test_use_only_the_first_images_of_a_building(data: Path) -> None:
    for view in (0, 1):
        for domain in view_arrays(0):
            shutil.copy(view_file(data, "cedar", view, domain), view_file(data, "cedar", view, domain, point=12))
    problem = taskonomy(data, per_building=2)
    assert [len(rows) for rows in problem.splits.values()] == [6, 2, 2]
    assert "for validation and test, only the first 2 images of each building" in problem.notes
    everything = taskonomy(data, per_building=None)
    assert len(everything.val) == 5
    # By name: point_12_… comes before point_7_…
    torch.testing.assert_close(problem.val.batch(torch.arange(2))[0], everything.val.batch(torch.tensor([0, 1]))[0])


def test_only_the_domains_of_the_chosen_tasks_are_needed(data: Path) -> None:
    for domain in ("keypoints2d", "segment_semantic"):
        shutil.rmtree(data / domain)
    problem = taskonomy(data, tasks=["normals"])
    assert problem.names == ("normals",)
    assert read_row(problem, 0)[1]["normals"].shape == (4, 256, 256)
    shutil.rmtree(data / "depth_zbuffer")
    with pytest.raises(FileNotFoundError, match="depth_zbuffer"):
        taskonomy(data, tasks=["normals"])
    assert taskonomy(data, tasks="edges").names == ("edges",)


def test_the_fingerprint_depends_on_names_and_sizes_of_files(data: Path, written: Path) -> None:
    assert taskonomy(data).fingerprint == taskonomy(written).fingerprint
    assert taskonomy(data, pixels=64).fingerprint != taskonomy(written).fingerprint
    Image.new("RGB", (256, 256)).save(view_file(data, "dale", 2, "rgb"))
    assert taskonomy(data).fingerprint != taskonomy(written).fingerprint


def test_views_without_an_image_in_every_domain_are_left_out_and_counted(data: Path) -> None:
    view_file(data, "birch", 2, "keypoints2d").unlink()
    problem = taskonomy(data)
    assert [len(rows) for rows in problem.splits.values()] == [5, 3, 3]
    assert problem.notes[0].startswith("read from files: train 5 images of 2 buildings; val 3 images of 1 building")
    assert "train: images skipped: 1 without an image of every domain" in problem.notes


def test_the_views_of_broken_images_have_no_labels(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = damage_image_data(view_file(data, "allen", 0, "depth_zbuffer"))
    invalid = view_file(data, "allen", 1, "segment_semantic")
    Image.fromarray(np.full((256, 256), 40, np.uint8)).save(invalid)
    problem = taskonomy(data)
    inputs, targets = problem.train.batch(torch.arange(3))
    assert inputs.shape == (3, 3, 256, 256)
    for target in targets.values():
        assert target[:2].isnan().all()
        assert not target[2].isnan().all()
    _, counts = problem.task("segmentation").row_losses(torch.zeros(3, 18, 256, 256), targets["segmentation"])
    assert counts.tolist() == [0, 0, 1]
    there = pickle.loads(pickle.dumps(problem.train))
    there.batch(torch.arange(2))
    assert [record.getMessage().split(": ")[0] for record in caplog.records] == [str(broken), str(invalid)]


def test_a_view_without_any_known_depth_has_no_depth_and_no_normals(data: Path) -> None:
    Image.fromarray(np.full((256, 256), HOLE, np.uint16)).save(view_file(data, "allen", 0, "depth_zbuffer"))
    _, targets = read_row(taskonomy(data), 0)
    assert targets["depth"].isnan().all()
    assert targets["normals"].isnan().all()
    assert targets["edges"].isfinite().all()


def replace_views(data: Path, building: str, domain: str, image: Image.Image) -> None:
    for view in range(3):
        image.save(view_file(data, building, view, domain))


INVALID: dict[str, Callable[[Path], object]] = {
    "no folder of a domain": lambda data: shutil.rmtree(data / "normal" / "birch"),
    "an unknown building": lambda data: (data / "val_models.txt").write_text("cedar\nfir\n"),
    "a building in two lists": lambda data: (data / "val_models.txt").write_text("cedar\nallen\n"),
    "no list": lambda data: (data / "test_models.txt").unlink(),
    "an empty list": lambda data: (data / "test_models.txt").write_text("# none\n"),
    "no color images": lambda data: (data / "rgb").rename(data / "colours"),
    "images that are not square": lambda data: replace_views(data, "dale", "rgb", Image.new("RGB", (300, 200))),
    "colors as classes": lambda data: replace_views(data, "cedar", "segment_semantic", Image.new("RGB", (256, 256))),
    "depth of 8 bits": lambda data: replace_views(data, "dale", "depth_zbuffer", Image.new("L", (256, 256))),
    "no known class": lambda data: replace_views(data, "dale", "segment_semantic", Image.new("L", (256, 256))),
}


@pytest.mark.parametrize("change", INVALID)
def test_an_invalid_folder_is_an_error_before_training(data: Path, change: str) -> None:
    INVALID[change](data)
    with pytest.raises((ValueError, FileNotFoundError)):
        taskonomy(data)


@pytest.mark.parametrize(
    ("options", "argument"),
    [({"data": None}, "data"), ({"size": "huge"}, "size"), ({"pixels": 100}, "pixels"), ({"tasks": "depths"}, "tasks")],
)
def test_an_invalid_option_is_named(written: Path, options: dict, argument: str) -> None:
    with pytest.raises(ValueError, match=f"`{argument}`"):
        load_problem("taskonomy", **{"data": written, **options})


def test_recipe_and_size_of_the_paper_are_the_default(written: Path) -> None:
    problem = taskonomy(written)
    assert problem.recipe == TASKONOMY_RECIPE
    assert (TASKONOMY_RECIPE.optimizer, TASKONOMY_RECIPE.lr, TASKONOMY_RECIPE.batch_size) == ("sgd", 0.1, 96)
    assert (TASKONOMY_RECIPE.epochs, TASKONOMY_RECIPE.patience, TASKONOMY_RECIPE.keep) == (100, None, "best")
    assert why_not_batched(problem) is not None
