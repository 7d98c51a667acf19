"""Invalid data folders: one clear error each, before anything is decoded."""

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from official_celeba import write_celeba

from tagalong.cli import main
from tagalong_paper.celeba import celeba

IMAGES = 40
ATTRIBUTES, PARTITION = "list_attr_celeba.txt", "list_eval_partition.txt"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("celeba") / "whole"
    write_celeba(folder, IMAGES)
    write_celeba(folder / "archived", IMAGES, zipped="")
    return folder


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "data")


def edit_line(file: Path, line: int, edit: Callable[[str], str | None]) -> None:
    """Edits a line, counted from 1; None removes it."""
    lines = file.read_text().splitlines()
    edited = edit(lines.pop(line - 1))
    if edited is not None:
        lines.insert(line - 1, edited)
    file.write_text("\n".join(lines) + "\n")


def error_of(data: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Returns the library's error message, after checking that the command line gives the same one."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the caller checks the message
        celeba(data)
    assert main(["run", "celeba", "--with", f"data={data}"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    first = str(caught.value).splitlines()[0].replace("`data`", "--with data")
    assert err.startswith(f"tagalong: {first}")
    assert "Traceback" not in err
    assert not (data / "tagalong-cache").exists()
    return str(caught.value)


def test_a_folder_without_images_is_an_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(data / "img_align_celeba")
    message = error_of(data, capsys)
    assert message.startswith(
        "`data` must contain the aligned images (img_align_celeba/ or img_align_celeba.zip), found none in"
    )
    (data / "img_align_celeba").mkdir()
    assert error_of(data, capsys) == message


def test_one_error_names_everything_that_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = error_of(tmp_path, capsys)
    assert message.startswith("several problems:\n")
    for name in (ATTRIBUTES, PARTITION, "img_align_celeba/"):
        assert name in message


def test_missing_images_are_counted_and_named(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3, 11):
        (data / "img_align_celeba" / f"{number:06d}.jpg").unlink()
    message = error_of(data, capsys)
    assert f"`data` must contain every image in {ATTRIBUTES}, found 8 missing" in message
    assert message.endswith("000003.jpg, 000004.jpg, 000005.jpg, 000006.jpg, 000007.jpg and 3 more")


def test_images_with_other_names_are_an_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (data / "img_align_celeba").iterdir():
        file.rename(file.with_suffix(".png"))
    message = error_of(data, capsys)
    assert "found 40 missing" in message
    assert "there are other images: 000001.png, 000002.png" in message


def test_a_truncated_list_is_an_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (data / ATTRIBUTES).read_text().splitlines()
    (data / ATTRIBUTES).write_text("\n".join(lines[:20]) + "\n")
    assert "must list 40 images, as stated in its first line, found 18; is it truncated?" in error_of(data, capsys)


def test_lines_with_invalid_values_are_an_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_line(data / ATTRIBUTES, 3, lambda line: line.replace("-1", " 0", 1))
    edit_line(data / ATTRIBUTES, 9, lambda line: line.replace("-1", "yes", 1))
    edit_line(data / ATTRIBUTES, 5, lambda line: line.rsplit(maxsplit=1)[0])
    message = error_of(data, capsys)
    assert "line 3 must have only values 1 and -1, found 0 (and 1 more line like this)" in message
    assert "line 5 must have a name and 40 values, found 39 values" in message


def test_an_image_listed_twice_is_an_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_line(data / ATTRIBUTES, 4, lambda line: line.replace("000002", "000001"))
    assert "must list each image only once, found 000001.jpg more than once" in error_of(data, capsys)


def test_an_image_in_two_parts_is_an_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_line(data / PARTITION, 4, lambda line: f"{line}\n000001.jpg 2")
    assert f"{PARTITION} must list each image only once, found 000001.jpg more than once" in error_of(data, capsys)


def test_missing_or_repeated_attribute_names_are_an_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_line(data / ATTRIBUTES, 2, lambda line: line.replace("Attractive", "Goatee"))
    assert f"{ATTRIBUTES} must list each attribute only once, found Goatee more than once" in error_of(data, capsys)
    (data / ATTRIBUTES).write_text("0\n")
    message = error_of(data, capsys)
    assert message.endswith(
        f"{ATTRIBUTES} must have the attribute names in its second line, found none; is it truncated?"
    )
    assert "\n" not in message


def test_an_empty_list_is_an_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = (data / ATTRIBUTES).read_text().splitlines()[1]
    (data / ATTRIBUTES).write_text(f"0\n{header}\n")
    assert error_of(data, capsys).endswith(f"{ATTRIBUTES} must list at least one image, found none")


def test_lists_may_start_with_a_byte_order_mark(data: Path) -> None:
    wanted = ["Smiling", "Young"]
    before = celeba(data, wanted, size="small").fingerprint
    for name in (ATTRIBUTES, PARTITION):
        (data / name).write_bytes(b"\xef\xbb\xbf" + (data / name).read_bytes())
    assert celeba(data, wanted, size="small").fingerprint == before


def test_an_html_page_instead_of_a_list_is_an_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / ATTRIBUTES).write_text("<!DOCTYPE html><html>\n<title>Too many downloads</title>\n")
    assert "must start with the number of images, found '<!DOCTYPE html><html>'" in error_of(data, capsys)


def test_an_attribute_list_that_lacks_images_of_the_partition_is_an_error(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (data / ATTRIBUTES).read_text().splitlines()
    (data / ATTRIBUTES).write_text("\n".join([str(IMAGES - 3), *lines[1:-3]]) + "\n")
    message = error_of(data, capsys)
    assert f"{ATTRIBUTES} must have a line for every image in" in message
    assert "found none for 000038.jpg, 000039.jpg, 000040.jpg; is it truncated?" in message


def test_missing_or_invalid_partition_lines_are_an_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_line(data / PARTITION, 2, lambda line: None)
    (data / "img_align_celeba" / "000007.jpg").unlink()
    message = error_of(data, capsys)
    assert f"{PARTITION} must have a line for every image, found none for 000002.jpg" in message
    assert "found 1 missing" in message
    edit_line(data / PARTITION, 5, lambda line: line.replace(" 0", " 3"))
    assert "line 5 must have a name and 0, 1 or 2, found 3" in error_of(data, capsys)


def test_a_part_without_images_is_an_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / PARTITION).write_text((data / PARTITION).read_text().replace("jpg 1", "jpg 0"))
    assert "must have images of every split, found none for validation" in error_of(data, capsys)


@pytest.mark.parametrize("kept", [0.5, 0.999])
def test_a_truncated_archive_is_an_error(data: Path, capsys: pytest.CaptureFixture[str], kept: float) -> None:
    archive = data / "archived" / "img_align_celeba.zip"
    content = archive.read_bytes()
    archive.write_bytes(content[: int(kept * len(content))])
    message = error_of(data / "archived", capsys)
    assert "`data` must contain an intact archive, found" in message
    assert "img_align_celeba.zip" in message


def test_an_archive_with_images_in_another_folder_or_none_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_celeba(tmp_path, 7, zipped="photos/")
    archive = tmp_path / "img_align_celeba.zip"
    start = f"`data`: {archive} must have images at the top level or in img_align_celeba/, found "
    listed = ", ".join(f"photos/00000{number}.jpg" for number in range(1, 6))
    assert error_of(tmp_path, capsys) == f"{start}{listed} and 2 more"
    with zipfile.ZipFile(archive, "w"):
        pass
    assert error_of(tmp_path, capsys) == f"{start}none"


def test_an_attribute_that_does_not_vary_is_an_error(data: Path) -> None:
    lines = (data / ATTRIBUTES).read_text().splitlines()
    fixed = [line.rsplit(maxsplit=1)[0] + " -1" for line in lines[2:]]
    (data / ATTRIBUTES).write_text("\n".join([*lines[:2], *fixed]) + "\n")
    with pytest.raises(ValueError, match="`train`: 'Young' must have at least two distinct labels, found only 0"):
        celeba(data, attributes=["Young", "Male"], pixels=8)
