"""Reading Taskonomy's files: targets, masks, mirroring, skipped images, and errors for invalid folders."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from taskonomy_small import HOLE, LISTS, view_arrays, view_file, write_taskonomy, write_view

from tagalong.cli import main
from tagalong.learn import Problem, StreamedRows, why_not_batched
from tagalong.problems import load_problem
from tagalong_paper.taskonomy import TASKONOMY_RECIPE, images, taskonomy

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


class CountingProgress:
    """Counts the views in progress updates."""

    views = 0

    def start(self, total: int, what: str, unit: str = "networks") -> None:
        assert (what, unit) == ("decoding images", "views")
        assert total, "nothing is told where nothing is decoded"

    def advance(self, n: int) -> None:
        self.views += n

    def done(self) -> None:
        pass


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
        (tmp_path / f"{part}.txt").write_text("\n".join(names))
    other = taskonomy(written, lists=tmp_path)
    assert [len(rows) for rows in other.splits.values()] == [3, 6, 3]
    torch.testing.assert_close(other.test.batch(torch.arange(3))[0], problem.train.batch(torch.arange(3))[0])


def test_lists_may_start_with_a_byte_order_mark(data: Path) -> None:
    before = taskonomy(data).fingerprint
    (data / "val_models.txt").write_text("cedar\n", encoding="utf-8-sig")
    assert taskonomy(data).fingerprint == before


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
    for domain in ("keypoints2d", "edge_texture", "segment_semantic"):
        shutil.rmtree(data / domain)
    problem = taskonomy(data, tasks=["normals"])
    assert problem.names == ("normals",)
    assert read_row(problem, 0)[1]["normals"].shape == (4, 256, 256)
    shutil.rmtree(data / "depth_zbuffer")
    with pytest.raises(ValueError, match="found no depth_zbuffer"):
        taskonomy(data, tasks=["normals"])


def test_the_fingerprint_depends_on_names_and_sizes_of_files(data: Path, written: Path) -> None:
    assert taskonomy(data).fingerprint == taskonomy(written).fingerprint
    assert taskonomy(data, pixels=64).fingerprint != taskonomy(written).fingerprint
    Image.new("RGB", (256, 256)).save(view_file(data, "dale", 2, "rgb"))
    assert taskonomy(data).fingerprint != taskonomy(written).fingerprint


def test_damaged_images_are_skipped_and_counted(data: Path) -> None:
    truncated = view_file(data, "allen", 0, "normal")
    truncated.write_bytes(truncated.read_bytes()[:-40])
    view_file(data, "allen", 1, "rgb").write_bytes(b"")
    view_file(data, "birch", 2, "keypoints2d").unlink()
    Image.new("L", (128, 100)).save(view_file(data, "cedar", 1, "segment_semantic"))
    problem = taskonomy(data)
    assert [len(rows) for rows in problem.splits.values()] == [3, 2, 3]
    assert problem.notes[0] == (
        "read from files: train 3 images of 2 buildings; val 2 images of 1 building; test 3 images of 1 building"
    )
    assert problem.notes[2:-1] == (
        "train: images skipped: 1 damaged: not a PNG file; 1 damaged: truncated; 1 without an image of every domain",
        "val: images skipped: 1 of 128×100 pixels instead of 256×256 or a multiple",
    )
    assert problem.notes[-1].startswith("only image headers were checked; other damage is counted when")


def test_notes_name_buildings_without_images_and_count_unlisted_ones(data: Path) -> None:
    for view in range(3):
        view_file(data, "birch", view, "rgb").write_bytes(b"not an image")
    write_view(data, "elm", 0, view_arrays(9))
    problem = taskonomy(data)
    assert [len(rows) for rows in problem.splits.values()] == [3, 3, 3]
    assert "train: buildings without a usable image: birch" in problem.notes
    assert "buildings in the folder that are in no list: 1" in problem.notes


def test_damage_inside_an_image_leaves_its_view_without_labels(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = damage_image_data(view_file(data, "allen", 0, "depth_zbuffer"))
    invalid = view_file(data, "allen", 1, "segment_semantic")
    Image.fromarray(np.full((256, 256), 40, np.uint8)).save(invalid)
    problem = taskonomy(data)
    inputs, targets = problem.train.batch(torch.arange(3))
    assert inputs.shape == (3, 3, 256, 256)
    for target in targets.values():
        assert target[:2].isnan().all()
        assert not target[2].isnan().all()
    problem.only(TASKS[:2]).train.batch(torch.arange(3))
    message = {record.getMessage().split(": ")[0]: record.getMessage() for record in caplog.records}
    assert set(message) == {str(broken), str(invalid)}
    assert len(caplog.records) == 2  # each image once, however often it is read
    assert "expected classes 0 to 17, found 40; this view will have no labels" in message[str(invalid)]
    assert caplog.records[-1].getMessage().endswith("(2 damaged images in 6 views so far)")
    losses = [problem.task(task).row_losses(torch.zeros(3, 18, 256, 256), targets[task]) for task in ("segmentation",)]
    assert losses[0][1].tolist() == [0, 0, 1]


def test_decoding_before_training_skips_and_counts_damaged_images(
    data: Path, written: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = damage_image_data(view_file(data, "allen", 0, "depth_zbuffer"))
    for view in range(3):
        damage_image_data(view_file(data, "birch", view, "rgb"))
    watched = CountingProgress()
    problem = load_problem("taskonomy", data=data, check="decode", progress=watched)
    assert [len(rows) for rows in problem.splits.values()] == [2, 3, 3]
    assert problem.notes[0].startswith("read from files: train 2 images of 1 building;")
    assert "train: images skipped: 4 damaged inside" in problem.notes
    assert "train: buildings without a usable image: birch" in problem.notes
    clean, rows = taskonomy(written).train, torch.arange(2)
    torch.testing.assert_close(problem.train.batch(rows), clean.batch(rows + 1), equal_nan=True)
    assert not caplog.records
    assert problem.fingerprint != taskonomy(data).fingerprint
    assert watched.views == 12
    again = load_problem("taskonomy", data=data, check="decode", progress=watched)
    assert (again.fingerprint, again.notes) == (problem.fingerprint, problem.notes)
    assert watched.views == 12 + 4  # damaged files may have been replaced
    for file in (data / "tagalong-cache").iterdir():
        file.write_text(file.read_text()[:-1])
    assert taskonomy(data, check="decode").notes == problem.notes  # decoded again
    for file in (data / "tagalong-cache").iterdir():
        file.write_text("5")  # valid JSON in another format
    assert taskonomy(data, check="decode").notes == problem.notes
    shutil.copy(written / broken.relative_to(data), broken)
    mended = taskonomy(data, check="decode")
    assert "train: images skipped: 3 damaged inside" in mended.notes
    listed = [json.loads(file.read_text())["flaws"] for file in (data / "tagalong-cache").iterdir()]
    assert sorted(name for found in listed for name in found) == [f"birch/point_7_view_{view}" for view in range(3)]


def test_interrupted_decoding_resumes(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class StoppedProgress(CountingProgress):
        def advance(self, n: int) -> None:
            super().advance(n)
            if self.views == 4:
                raise KeyboardInterrupt

    monkeypatch.setattr(images, "BATCH_SIZE", 2)
    for view in (0, 2):
        damage_image_data(view_file(data, "birch", view, "rgb"))  # one before it is stopped, one after
    with pytest.raises(KeyboardInterrupt):
        load_problem("taskonomy", data=data, check="decode", progress=StoppedProgress())
    watched = CountingProgress()
    problem = load_problem("taskonomy", data=data, check="decode", progress=watched)
    assert watched.views == 12 - 4 + 1, "the others, and the one that was damaged"
    assert "train: images skipped: 2 damaged inside" in problem.notes
    shutil.rmtree(data / "tagalong-cache")
    assert taskonomy(data, check="decode").fingerprint == problem.fingerprint


def test_decoding_changes_nothing_if_no_image_is_damaged(written: Path, tmp_path: Path) -> None:
    checked = taskonomy(written, check="decode", cache=tmp_path / "cache")
    usual = taskonomy(written)
    assert (checked.fingerprint, checked.notes) == (usual.fingerprint, usual.notes[:-1])
    assert not (written / "tagalong-cache").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="`cache` must be a writable folder"):
        taskonomy(written, check="decode", cache=tmp_path / "file")


def test_a_pickled_reader_counts_damaged_images(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = damage_image_data(view_file(data, "allen", 0, "depth_zbuffer"))
    here = taskonomy(data).train
    here.batch(torch.arange(2))
    there = pickle.loads(pickle.dumps(here))
    there.batch(torch.arange(2))
    assert isinstance(there, StreamedRows)
    assert there.reader.damaged == {str(broken)}  # type: ignore[attr-defined]
    assert len(caplog.records) == 1


def test_a_view_without_any_known_depth_has_no_depth_and_no_normals(data: Path) -> None:
    Image.fromarray(np.full((256, 256), HOLE, np.uint16)).save(view_file(data, "allen", 0, "depth_zbuffer"))
    _, targets = read_row(taskonomy(data), 0)
    assert targets["depth"].isnan().all()
    assert targets["normals"].isnan().all()
    assert targets["edges"].isfinite().all()


def without_labels(data: Path) -> None:
    shutil.rmtree(data / "normal" / "birch")
    shutil.rmtree(data / "keypoints2d" / "birch")


def missing_building(data: Path) -> None:
    (data / "val_models.txt").write_text("cedar\nfir\nginkgo\n")


def no_images(data: Path) -> None:
    for path in (data / "rgb" / "dale").iterdir():
        path.rename(path.with_suffix(".jpg"))


def wrong_size(data: Path) -> None:
    for view in range(3):
        Image.new("RGB", (300, 300)).save(view_file(data, "dale", view, "rgb"))


def all_damaged(data: Path) -> None:
    for view in range(3):
        Image.new("RGB", (256, 256)).save(view_file(data, "cedar", view, "segment_semantic"))


def eight_bits(data: Path) -> None:
    for view in range(3):
        path = view_file(data, "dale", view, "depth_zbuffer")
        Image.fromarray((np.asarray(Image.open(path)) // 256).astype(np.uint8)).save(path)


def masked_everywhere(data: Path) -> None:
    for view in range(3):
        Image.fromarray(np.full((256, 256), HOLE, np.uint16)).save(view_file(data, "cedar", view, "depth_zbuffer"))
        Image.new("L", (256, 256)).save(view_file(data, "dale", view, "segment_semantic"))
    damage_image_data(view_file(data, "cedar", 1, "rgb"))


def missing_list(data: Path) -> None:
    (data / "test_models.txt").unlink()


def building_in_two_lists(data: Path) -> None:
    (data / "val_models.txt").write_text("cedar\nallen\n")


def list_is_not_text(data: Path) -> None:
    (data / "val_models.txt").write_bytes("cedar".encode("utf-16"))


def missing_domains(data: Path) -> None:
    (data / "rgb").rename(data / "colours")


BAD = [
    (
        without_labels,
        "`data`: the building 'birch' must have the domains rgb, segment_semantic, depth_zbuffer, normal, "
        "edge_texture, keypoints2d, found no normal, keypoints2d",
    ),
    (missing_building, "`lists`: val must name buildings that are in `data`, found 'fir', 'ginkgo'"),
    (
        no_images,
        "`data`: the building 'dale' must have files named point_*_view_*_domain_*.png, found none in {data}/rgb/dale",
    ),
    (
        wrong_size,
        "`data`: test must have usable images, found none: 3 of 300×300 pixels instead of 256×256 or a multiple",
    ),
    (
        all_damaged,
        "`data`: val must have readable images, found "
        "{data}/segment_semantic/cedar/point_7_view_0_domain_segmentsemantic.png: expected one channel, found mode RGB",
    ),
    (
        eight_bits,
        "`data`: test must have readable images, found "
        "{data}/depth_zbuffer/dale/point_7_view_0_domain_depth_zbuffer.png: expected 16 bits, found mode L",
    ),
    (
        masked_everywhere,
        "several problems:\n`data`: val must have labels for every task, found no labeled pixels for depth, normals; "
        "add buildings to its list\n`data`: test must have labels for every task, found no labeled pixels for "
        "segmentation; add buildings to its list",
    ),
    (
        missing_list,
        "`lists` must be a folder with lists of buildings, one building per line, found no test_models.txt in {data}; "
        "the paper's lists are released with its code",
    ),
    (
        list_is_not_text,
        "`lists`: val must name buildings that are in `data`, found '\N{REPLACEMENT CHARACTER}"
        "\N{REPLACEMENT CHARACTER}c\\x00e\\x00d\\x00a\\x00r\\x00'",
    ),
    (building_in_two_lists, "`lists` must name each building only once, found 'allen' more than once"),
    (
        missing_domains,
        "`data` must contain rgb/BUILDING/*.png or BUILDING/rgb/*.png, with label folders next to rgb, found neither "
        "in {data}",
    ),
]


@pytest.mark.parametrize(("damage", "message"), BAD, ids=[damage.__name__ for damage, _ in BAD])
def test_the_error_for_an_invalid_folder_says_what_is_wrong(data: Path, damage, message: str) -> None:
    damage(data)
    with pytest.raises(ValueError, match="must") as caught:
        taskonomy(data)
    assert str(caught.value) == message.format(data=data)


def test_one_error_lists_all_problems_with_buildings(data: Path) -> None:
    without_labels(data)
    missing_building(data)
    no_images(data)
    with pytest.raises(ValueError, match="birch") as caught:
        taskonomy(data)
    assert all(word in str(caught.value) for word in ("'fir'", "'dale'"))


def test_only_a_few_of_many_incomplete_buildings_are_named(data: Path) -> None:
    shutil.rmtree(data / "normal")
    added = [f"elm{number}" for number in range(3)]
    for name in added:
        (data / "rgb" / name).mkdir()
    (data / "train_models.txt").write_text("\n".join(["allen", "birch", *added]))
    with pytest.raises(ValueError, match="found no normal") as caught:
        taskonomy(data)
    assert len(str(caught.value).splitlines()) == 1 + 5 + 1
    assert str(caught.value).endswith("\n`data`: there are similar problems in 2 more buildings")


def test_one_error_lists_all_invalid_options(written: Path) -> None:
    with pytest.raises(ValueError, match="`data` must be the folder") as caught:
        taskonomy(size="huge", pixels=100, channels=0, per_building=0, check="all")  # type: ignore[arg-type]
    assert str(caught.value).count("must") == 6
    assert "`check` must be 'header' or 'decode', found 'all'" in str(caught.value)
    with pytest.raises(ValueError, match="found 'depths'; did you mean 'depth'"):
        load_problem("taskonomy", data=written, tasks=["depths"])
    with pytest.raises(ValueError, match="/nowhere, which is not a folder"):
        taskonomy(written / "nowhere")
    with pytest.raises(ValueError, match="`tasks` must be a list of names, found 5"):
        taskonomy(written, tasks=5)  # type: ignore[arg-type]


def test_tasks_may_be_separated_by_commas(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for domain in ("segment_semantic", "normal", "keypoints2d"):
        shutil.rmtree(data / domain)
    assert taskonomy(data, tasks="edges, depth").names == ("depth", "edges")
    assert main(["run", "taskonomy", "--with", f"data={data}", "--with", "tasks=depth,edge"]) == 2
    assert "must contain only Taskonomy tasks, found 'edge'; did you mean 'edges'?" in capsys.readouterr().err


def test_folders_may_have_numbers_as_names(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(data.parent)
    assert main(["run", "taskonomy", "--with", "data=2018"]) == 2
    assert "found 2018, which is not a folder" in capsys.readouterr().err
    data.rename("2018")
    usual = taskonomy("2018").fingerprint
    assert load_problem("taskonomy", data=2018, lists=2018, cache=7, check="decode").fingerprint == usual
    assert Path("7").is_dir()


def test_recipe_and_size_of_the_paper_are_the_default(written: Path) -> None:
    problem = taskonomy(written)
    assert problem.recipe == TASKONOMY_RECIPE
    assert (TASKONOMY_RECIPE.optimizer, TASKONOMY_RECIPE.lr, TASKONOMY_RECIPE.batch_size) == ("sgd", 0.1, 96)
    assert (TASKONOMY_RECIPE.epochs, TASKONOMY_RECIPE.patience, TASKONOMY_RECIPE.keep) == (100, None, "best")
    assert LISTS["train"] == ("allen", "birch")
    assert why_not_batched(problem) == "rows are read from files, batch by batch"
