"""CelebA from its official files to results, on small data in the same formats."""

import io
import json
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from official_celeba import FORTY, HIGH, WIDE, file_name, jpeg, part, write_celeba
from PIL import Image
from torch.nn.functional import interpolate

from tagalong import Study
from tagalong.cli import main
from tagalong.learn import MappedTensor, Problem, count_parameters, why_not_batched
from tagalong.problems import FACE_ATTRIBUTES, PAPER_RECIPE, load_problem
from tagalong.problems.faces_drawing import draw_attributes
from tagalong_paper import load_setup
from tagalong_paper.celeba import celeba
from tagalong_paper.celeba.decode import decode

pytestmark = pytest.mark.slow

IMAGES = 300


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("celeba")
    write_celeba(folder, IMAGES)
    return folder


@pytest.fixture(scope="module")
def full(data: Path) -> Problem:
    return load_problem("celeba", data=data)


def test_the_partition_file_says_which_images_are_in_which_part(full: Problem, data: Path) -> None:
    truth, _, _ = draw_attributes(IMAGES, np.random.default_rng(0))
    for number, split in enumerate(full.splits.values()):
        rows = [row for row in range(IMAGES) if part(row) == number]
        assert len(split) == len(rows)
        for name in FACE_ATTRIBUTES:
            assert split.targets[name].tolist() == truth[name][rows].tolist()
        for place in (0, len(rows) - 1):
            content = (data / "img_align_celeba" / file_name(rows[place])).read_bytes()
            assert split.inputs[place].numpy().tobytes() == decode(content, 64)


def test_the_network_recipe_and_tasks_are_those_of_the_paper(full: Problem) -> None:
    assert full.names == FACE_ATTRIBUTES
    assert full.recipe == PAPER_RECIPE
    assert full.train.inputs.shape[1:] == (3, 64, 64)
    # 3·9·64 + two of 64·9·64, three BatchNorms of 2·64, nine heads of 14,400·2 + 2
    assert count_parameters(full, full.names) == 1728 + 2 * 36864 + 3 * 128 + 9 * 28802


def test_images_are_resized_as_the_published_code_does() -> None:
    content = jpeg(np.random.default_rng(0).integers(0, 256, (HIGH, WIDE, 3), dtype=np.uint8))
    image = torch.from_numpy(np.array(Image.open(io.BytesIO(content)))).permute(2, 0, 1).float()
    for pixels in (8, 16, 64, 178):
        ours = torch.frombuffer(bytearray(decode(content, pixels)), dtype=torch.uint8).view(3, pixels, pixels)
        expected = interpolate(image[None], (pixels, pixels), mode="bilinear", align_corners=False)[0]
        lost = expected - ours.float()
        assert lost.min() > -0.01
        assert lost.max() < 1.01


@pytest.mark.parametrize("zipped", ["", "img_align_celeba/"])
def test_archive_and_folder_give_the_same_problem(tmp_path: Path, full: Problem, zipped: str) -> None:
    write_celeba(tmp_path, IMAGES, zipped=zipped, official=True)
    archived = celeba(tmp_path)
    assert archived.fingerprint == full.fingerprint
    assert torch.equal(archived.test.inputs, full.test.inputs)


def test_a_gray_image_is_read_as_colors() -> None:
    file = io.BytesIO()
    Image.new("L", (WIDE, HIGH), 100).save(file, "JPEG")
    assert set(decode(file.getvalue(), 16)) == {100}


def test_any_attributes_can_be_learned(data: Path, full: Problem) -> None:
    assert celeba(data, attributes=["Young", "Goatee"]).names == ("Young", "Goatee")
    assert celeba(data, attributes="Young, Goatee").names == ("Young", "Goatee")
    assert celeba(data, attributes=FORTY).names == tuple(FORTY)
    assert celeba(data, attributes=["Young"]).fingerprint != full.fingerprint
    few = load_setup("celeba", options={"data": data, "attributes": "Young,Goatee"}, out=data / "setup")
    assert few.printed_dataset is None


def test_a_subset_of_rows_is_drawn_from_each_part_by_seed(data: Path, full: Problem) -> None:
    drawn = celeba(data, rows=100, pixels=16)
    assert [len(split) for split in drawn.splits.values()] == [70, 10, 20]
    assert drawn.fingerprint == celeba(data, rows=100, pixels=16).fingerprint
    assert drawn.fingerprint != celeba(data, rows=100, pixels=16, seed=1).fingerprint
    every = {image.numpy().tobytes() for image in celeba(data, pixels=16).train.inputs}
    assert {image.numpy().tobytes() for image in drawn.train.inputs} < every


def test_images_are_memory_mapped(full: Problem) -> None:
    assert all(isinstance(split.inputs, MappedTensor) for split in full.splits.values())
    assert all(isinstance(split.inputs, MappedTensor) for split in full.only(FACE_ATTRIBUTES[:2]).splits.values())
    sent = cloudpickle.dumps(full)  # as for workers, which map the file themselves
    assert len(sent) < 100_000
    assert torch.equal(cloudpickle.loads(sent).train.inputs, full.train.inputs)
    assert "210 / 30 / 60 by the official split; all of CelebA has 162,770 / 19,867 / 19,962" in full.notes[0]


def test_one_error_lists_all_invalid_options(data: Path) -> None:
    with pytest.raises(ValueError, match="`data` must be the folder with the official CelebA files") as caught:
        celeba(attributes=[], rows=3, pixels=500, channels=0, seed="x")
    assert str(caught.value).count("must be") == 5
    assert "`attributes` must name at least one" in str(caught.value)
    with pytest.raises(
        ValueError, match=r"`attributes` must be listed in list_attr_celeba\.txt, found 'Goate'.*'Goatee'"
    ):
        celeba(data, attributes=["Goate"])
    with pytest.raises(ValueError, match="`attributes` must be a list of names or a comma-separated string, found 5"):
        celeba(data, attributes=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`size` must be 'small' or 'full', found 'huge'"):
        celeba(data, size="huge")


def test_a_study_runs_from_files_to_predictions(data: Path, tmp_path: Path, one_thread: None) -> None:
    problem = celeba(data, size="small", attributes=["Black_Hair", "No_Beard", "Smiling"])
    assert why_not_batched(problem) is None
    study = Study(problem, tmp_path / "run", device="cpu")
    results = study.run(methods=["mtl", "stl", "tag"], budgets=[2], seeds=2)
    assert {record.method for record in results.records} == {"mtl", "stl", "tag"}
    best = results.best()
    predicted = best.predict(problem.test.inputs[:7].numpy())
    assert predicted["Smiling"].shape == (7, 2)
    np.testing.assert_allclose(predicted["Smiling"].sum(1), 1, atol=1e-5)
    saved = best.save(tmp_path / "saved")
    assert sum(file.stat().st_size for file in saved.rglob("example.pt")) < 20_000


def test_the_paper_s_main_experiment_runs_on_the_command_line(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], one_thread: None
) -> None:
    monkeypatch.chdir(tmp_path)
    common = ["--problem", "celeba", "--size", "small", "--with", f"data={data}", "--with", "cache=decoded"]
    expected = [*common, "--seeds", "2", "--tasks", "Black_Hair,Goatee,No_Beard", "--device", "cpu"]
    assert main(["paper", "main", *expected]) == 0
    out, err = capsys.readouterr()
    assert f"decoding images: {IMAGES} of {IMAGES} images" in err
    assert "celeba, small: 210 rows for training, 30 for validation, 60 for test" in out
    assert "a2 Black_Hair, a5 Goatee, a7 No_Beard" in out
    assert "the data differ" not in out
    assert "hold the paper's numbers at full size; results at small size are not comparable" in out
    assert main(["paper", "main", *expected, "--json"]) == 0
    again, err = capsys.readouterr()
    assert err == ""
    assert json.loads(again)["experiment"] == "main"


def test_the_command_line_shows_progress_and_one_line_errors(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], one_thread: None
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--size", "small", "--with", "attributes=Young,Smiling", "--methods", "mtl", "--seeds", "1"]
    given = ["--with", f"data={data}", "--with", f"cache={tmp_path}", "--recipe", "epochs=1", "--device", "cpu"]
    assert main(["run", "celeba", *options, *given]) == 0
    assert "decoding images: 300 of 300 images" in capsys.readouterr().err
    assert main(["run", "celeba", *options]) == 2
    assert capsys.readouterr().err.startswith(
        "tagalong: data must be the folder with the official CelebA files, found none"
    )
    assert main(["run", "celeba", "--with", "data=nowhere"]) == 2
    message = capsys.readouterr().err
    assert "data must contain list_attr_celeba.txt, found none, since nowhere is not a folder" in message
    assert main(["problems"]) == 0
    assert "celeba" in capsys.readouterr().out
