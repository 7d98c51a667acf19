"""CelebA from its official files to results, on small data in the same formats."""

import shutil
from dataclasses import replace
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from official_celeba import HIGH, WIDE, file_name, part, write_celeba
from PIL import Image
from torch.nn.functional import interpolate

from tagalong.learn import Problem, Recipe, count_parameters
from tagalong.problems import FACE_ATTRIBUTES, PAPER_RECIPE, load_problem
from tagalong.problems.faces_drawing import draw_attributes
from tagalong_paper import EXPERIMENTS, Value, load_setup, run_experiment
from tagalong_paper.celeba import celeba, decode_image
from tagalong_paper.mapped_tensor import MappedTensor

IMAGES = 200
ATTRIBUTES, PARTITION = "list_attr_celeba.txt", "list_eval_partition.txt"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_celeba(tmp_path_factory.mktemp("celeba"), IMAGES)


@pytest.fixture(scope="module")
def full(whole: Path) -> Problem:
    return load_problem("celeba", data=whole)


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    """A copy of the data, which the test may change."""
    return shutil.copytree(whole, tmp_path / "data", ignore=shutil.ignore_patterns("tagalong-cache"))


def test_the_partition_file_says_which_images_are_in_which_part(full: Problem, whole: Path) -> None:
    truth, _, _ = draw_attributes(IMAGES, np.random.default_rng(0))
    for number, split in enumerate(full.splits.values()):
        rows = [row for row in range(IMAGES) if part(row) == number]
        assert len(split) == len(rows)
        for name in FACE_ATTRIBUTES:
            assert split.targets[name].tolist() == truth[name][rows].tolist()
        for place in (0, len(rows) - 1):
            image = whole / "img_align_celeba" / file_name(rows[place])
            assert split.inputs[place].numpy().tobytes() == decode_image(image, 64)


def test_the_network_recipe_and_tasks_are_those_of_the_paper(full: Problem) -> None:
    assert full.names == FACE_ATTRIBUTES
    assert full.recipe == PAPER_RECIPE
    assert full.train.inputs.shape[1:] == (3, 64, 64)
    # 3·9·64 + two of 64·9·64, three BatchNorms of 2·64, nine heads of 14,400·2 + 2
    assert count_parameters(full, full.names) == 1728 + 2 * 36864 + 3 * 128 + 9 * 28802


def test_images_are_resized_as_the_published_code_does(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (HIGH, WIDE, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.jpg")
    image = torch.from_numpy(np.array(Image.open(tmp_path / "noise.jpg"))).permute(2, 0, 1).float()
    for pixels in (8, 16, 64, 178):
        decoded = decode_image(tmp_path / "noise.jpg", pixels)
        ours = torch.frombuffer(bytearray(decoded), dtype=torch.uint8).view(3, pixels, pixels)
        expected = interpolate(image[None], (pixels, pixels), mode="bilinear", align_corners=False)[0]
        lost = expected - ours.float()  # values are rounded down
        assert lost.min() > -0.01
        assert lost.max() < 1.01
    Image.new("L", (WIDE, HIGH), 100).save(tmp_path / "gray.jpg")
    assert set(decode_image(tmp_path / "gray.jpg", 16)) == {100}


def test_the_official_folders_give_the_same_problem(tmp_path: Path, full: Problem) -> None:
    other = celeba(write_celeba(tmp_path, IMAGES, official=True), seed=5)
    assert other.fingerprint == full.fingerprint
    for name in (tmp_path / "Anno" / ATTRIBUTES, tmp_path / "Eval" / PARTITION):
        name.write_bytes(b"\xef\xbb\xbf" + name.read_bytes())  # some editors write a byte order mark
    assert celeba(tmp_path).fingerprint == full.fingerprint


def test_a_subset_of_rows_is_drawn_from_each_part_by_seed(whole: Path) -> None:
    drawn = celeba(whole, rows=100, pixels=16)
    assert [len(split) for split in drawn.splits.values()] == [70, 10, 20]
    assert drawn.fingerprint == celeba(whole, rows=100, pixels=16).fingerprint
    assert drawn.fingerprint != celeba(whole, rows=100, pixels=16, seed=1).fingerprint
    every = {image.numpy().tobytes() for image in celeba(whole, pixels=16).train.inputs}
    assert {image.numpy().tobytes() for image in drawn.train.inputs} < every


def test_images_are_memory_mapped(full: Problem) -> None:
    assert all(isinstance(split.inputs, MappedTensor) for split in full.only(FACE_ATTRIBUTES[:2]).splits.values())
    sent = cloudpickle.dumps(full)  # as for workers, which map the file themselves
    assert len(sent) < 100_000
    assert torch.equal(cloudpickle.loads(sent).train.inputs, full.train.inputs)


def test_images_are_decoded_once_unless_a_file_changes(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = celeba(data, pixels=16)
    monkeypatch.setattr("tagalong_paper.celeba.decode_images", None)
    assert celeba(data, pixels=16).fingerprint == first.fingerprint
    monkeypatch.undo()
    other = data / "img_align_celeba" / file_name(7)
    Image.fromarray(255 - np.asarray(Image.open(other))).save(other)
    changed = celeba(data, pixels=16)
    assert changed.fingerprint != first.fingerprint
    assert (changed.val.inputs[0] != first.val.inputs[0]).any()
    assert (changed.val.inputs[1:] == first.val.inputs[1:]).all()


@pytest.mark.parametrize("content", [b"", b"no picture at all", None])
def test_a_broken_image_is_named_and_leaves_no_cache(data: Path, content: bytes | None) -> None:
    broken = data / "img_align_celeba" / file_name(120)
    broken.write_bytes(broken.read_bytes()[:2000] if content is None else content)
    with pytest.raises(ValueError, match=r"`data` .* found 000121\.jpg: "):
        celeba(data, pixels=16)
    assert not list((data / "tagalong-cache").glob("*.npy"))


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"attributes": []}, "attributes"),
        ({"attributes": ["Goate"]}, "attributes"),
        ({"data": None}, "data"),
        ({"data": "nowhere"}, "data"),
        ({"rows": 3}, "rows"),
        ({"pixels": 500}, "pixels"),
        ({"size": "huge"}, "size"),
    ],
)
def test_an_invalid_option_is_named(whole: Path, options: dict, argument: str) -> None:
    with pytest.raises(ValueError, match=f"`{argument}`"):
        celeba(**{"data": whole, **options})


EDITS = {
    "truncated": (ATTRIBUTES, lambda lines: lines[:20]),
    "an HTML page": (ATTRIBUTES, lambda lines: ["<!DOCTYPE html><html>", "<title>Too many downloads</title>"]),
    "a wrong value": (ATTRIBUTES, lambda lines: [*lines[:5], lines[5].replace("-1", " 0", 1), *lines[6:]]),
    "a value too few": (ATTRIBUTES, lambda lines: [*lines[:5], lines[5].rsplit(maxsplit=1)[0], *lines[6:]]),
    "an image twice": (ATTRIBUTES, lambda lines: [*lines[:5], lines[4], *lines[6:]]),
    "no part for an image": (PARTITION, lambda lines: lines[1:]),
    "an unknown part": (PARTITION, lambda lines: [lines[0].replace(" 0", " 3"), *lines[1:]]),
    "a part without images": (PARTITION, lambda lines: [line.replace("jpg 1", "jpg 0") for line in lines]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_invalid_list_is_an_error_before_anything_is_decoded(data: Path, edit: str) -> None:
    name, change = EDITS[edit]
    (data / name).write_text("\n".join(change((data / name).read_text().splitlines())) + "\n")
    with pytest.raises(ValueError, match=r"."):
        celeba(data)
    assert not (data / "tagalong-cache").exists()


def test_missing_images_are_named(data: Path) -> None:
    (data / "img_align_celeba" / file_name(2)).unlink()
    with pytest.raises(ValueError, match=r"1 missing of 200, such as 000003\.jpg"):
        celeba(data)


@pytest.mark.slow
def test_every_experiment_runs_on_written_files(whole: Path, tmp_path: Path) -> None:
    options = {"data": whole, "recipe": Recipe(lr=0.02, batch_size=40, epochs=1)}
    nine = load_setup("celeba", "small", out=tmp_path, options=options, seeds=1, device="cpu")
    five = replace(nine, tasks=[FACE_ATTRIBUTES[place] for place in (0, 1, 2, 4, 6)])
    for experiment in EXPERIMENTS:
        if experiment.trains:
            report = run_experiment(experiment.name, nine if experiment.name == "task-sets" else five)
            cells = [cell for table in report.tables for row in table.rows for cell in row if isinstance(cell, Value)]
            assert np.isfinite([cell.mean for cell in cells]).all(), experiment.name
            assert all(file.is_file() for file in report.save(tmp_path))
