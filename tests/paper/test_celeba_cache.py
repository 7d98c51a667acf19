"""The decoded images are complete or absent, whatever happens while they are decoded."""

import importlib
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import BrokenExecutor
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from official_celeba import file_name, jpeg, write_celeba
from PIL import Image

from kill_at import FileOperations
from tagalong.cli import main
from tagalong_paper.celeba import cache as celeba_cache
from tagalong_paper.celeba import celeba
from tagalong_paper.celeba import decode as celeba_decode

IMAGES, PIXELS, PIECE = 600, 16, 128
PIECES = -(-IMAGES // PIECE)


class Counting:
    """Records progress updates."""

    def __init__(self) -> None:
        self.updates: list[object] = []

    def start(self, total: int, what: str, unit: str = "networks") -> None:
        self.updates.append((total, what, unit))

    def advance(self, n: int) -> None:
        self.updates.append(n)

    def done(self) -> None:
        self.updates.append("done")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, decoded without interruption."""
    folder = tmp_path_factory.mktemp("celeba") / "data"
    write_celeba(folder, IMAGES)
    celeba(folder, pixels=PIXELS)
    return folder


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(celeba_cache, "IMAGES_AT_ONCE", PIECE)


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "data", ignore=shutil.ignore_patterns("tagalong-cache"))


def only(folder: Path, suffix: str = ".npy") -> Path:
    (found,) = folder.glob(f"*{suffix}")
    return found


def decode(data: Path, cache: Path, nth: int | None = None, total: Any = None) -> None:
    """Decodes, killed before its n-th file operation; without one, `total` becomes how many there were."""
    celeba_cache.IMAGES_AT_ONCE = PIECE
    operations = FileOperations(cache, nth)

    class Recorded(Counting):
        def advance(self, n: int) -> None:
            operations.count()  # a line was added to a file that is open already

    celeba(data, cache=cache, pixels=PIXELS, progress=Recorded())
    if total is not None:
        total.value = operations.number


def decode_three_pieces(data: Path, cache: Path) -> None:
    class Dying(Counting):
        def advance(self, n: int) -> None:
            super().advance(n)
            if len(self.updates) == 5:  # the start, what was there, and three pieces
                os.kill(os.getpid(), signal.SIGKILL)

    celeba_cache.IMAGES_AT_ONCE = PIECE
    celeba(data, cache=cache, pixels=PIXELS, progress=Dying())


def decode_with_a_halt(data: Path, cache: Path, said: Any, go: Any) -> None:
    """Decodes, and halts after the first piece until it may go on."""

    class Halting(Counting):
        def advance(self, n: int) -> None:
            super().advance(n)
            if n:
                said.put("decodes")
                go.wait()

    celeba_cache.IMAGES_AT_ONCE = PIECE
    watched = Halting()
    said.put("begins")
    problem = celeba(data, cache=cache, pixels=PIXELS, progress=watched)
    said.put((sum(n for n in watched.updates if isinstance(n, int)), problem.fingerprint))


def exit_status(processes: ForkServerContext, work: Any, *arguments: Any) -> int | None:
    process = processes.Process(target=work, args=arguments)
    process.start()
    process.join(timeout=100)
    return process.exitcode


def pixels_of(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path))


def test_killed_at_any_file_operation_it_goes_on_to_the_same_bytes(
    whole: Path, tmp_path: Path, processes: ForkServerContext
) -> None:
    total = processes.Value("i")
    assert exit_status(processes, decode, whole, tmp_path / "clean", None, total) == 0
    draw, parts = random.Random(0), np.array_split(np.arange(1, total.value + 1), 5)
    points = [draw.choice(part.tolist()) for part in parts]
    kept = [pieces_kept_by_a_kill(processes, whole, tmp_path / str(nth), nth) for nth in points]
    assert any(0 < pieces < PIECES for pieces in kept), "one fell half-way"


def pieces_kept_by_a_kill(processes: ForkServerContext, whole: Path, cache: Path, nth: int) -> int:
    assert exit_status(processes, decode, whole, cache, nth) == -signal.SIGKILL
    finished = list(cache.glob("*.npy"))
    recorded = sum(len(record.read_text().splitlines()) for record in cache.glob("celeba*.done"))
    watched = Counting()
    celeba(whole, cache=cache, pixels=PIXELS, progress=watched)
    assert only(cache).read_bytes() == only(whole / "tagalong-cache").read_bytes()
    left = {file.suffix for file in cache.iterdir()} - {".tmp"}  # from a kill while the record was replaced
    if finished:  # all but tidying up was done, and nobody looks at what was left
        assert (watched.updates, left) == ([], {".npy", ".lock", ".done"})
        return recorded
    assert left == {".npy", ".lock"}
    (start, found, *others, done) = watched.updates
    assert start == (IMAGES, "decoding images", "images")
    assert found >= PIECE * (recorded - 1)  # the last piece is shorter
    assert found + sum(others) == IMAGES
    assert len(others) == PIECES - recorded
    assert done == "done"
    return recorded


def test_stopped_half_way_it_says_what_is_kept(whole: Path, tmp_path: Path) -> None:
    class Stopped(Counting):
        def advance(self, n: int) -> None:
            super().advance(n)
            if n:
                raise KeyboardInterrupt

    cache = tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt, match=r"decoded images are kept in .*cache, run the same command"):
        celeba(whole, cache=cache, pixels=PIXELS, progress=Stopped())
    assert only(cache, ".done").read_text()
    celeba(whole, cache=cache, pixels=PIXELS)
    assert only(cache).read_bytes() == only(whole / "tagalong-cache").read_bytes()


def test_of_two_processes_one_decodes_and_the_other_waits(
    whole: Path, tmp_path: Path, processes: ForkServerContext
) -> None:
    go, said = processes.Event(), [processes.Queue(), processes.Queue()]
    both = [processes.Process(target=decode_with_a_halt, args=(whole, tmp_path, one, go)) for one in said]
    both[0].start()
    assert [said[0].get(timeout=60), said[0].get(timeout=60)] == ["begins", "decodes"]
    both[1].start()
    assert said[1].get(timeout=60) == "begins"
    go.set()
    for process in both:
        process.join(timeout=60)
    assert [process.exitcode for process in both] == [0, 0]
    others = PIECES - 1
    *decoding, (images, fingerprint) = (said[0].get(timeout=60) for _ in range(others + 1))
    assert (decoding, images) == (["decodes"] * others, IMAGES)
    assert said[1].get(timeout=60) == (0, fingerprint)
    assert only(tmp_path).read_bytes() == only(whole / "tagalong-cache").read_bytes()


def test_what_is_recorded_is_checked(whole: Path, tmp_path: Path, processes: ForkServerContext) -> None:
    """As after a power cut: a record whose bytes never reached the disk, and half a line."""
    cache = tmp_path / "cache"
    assert exit_status(processes, decode_three_pieces, whole, cache) == -signal.SIGKILL
    record, part = only(cache, ".done"), only(cache, ".part")
    offset = int(record.read_text().split()[0])
    with part.open("r+b") as file:
        file.seek(offset)
        file.write(bytes(100))
    record.write_text(record.read_text() + "12")
    celeba(whole, cache=cache, pixels=PIXELS)
    assert only(cache).read_bytes() == only(whole / "tagalong-cache").read_bytes()


@pytest.mark.parametrize("left", [b"", b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', "])
def test_a_start_that_was_killed_at_once_is_begun_again(whole: Path, tmp_path: Path, left: bytes) -> None:
    name = only(whole / "tagalong-cache").stem
    (tmp_path / f"{name}.part").write_bytes(left)
    (tmp_path / f"{name}.done").write_bytes(b"")
    celeba(whole, cache=tmp_path, pixels=PIXELS)
    assert only(tmp_path).read_bytes() == only(whole / "tagalong-cache").read_bytes()


def test_a_changed_folder_is_noticed_and_an_unchanged_one_is_not_decoded_again(data: Path) -> None:
    first, watched = celeba(data, pixels=PIXELS), Counting()
    again = celeba(data, pixels=PIXELS, progress=watched)
    assert again.fingerprint == first.fingerprint
    assert watched.updates == []
    other = data / "img_align_celeba" / file_name(7)
    other.write_bytes(jpeg(255 - pixels_of(other)))
    changed = celeba(data, pixels=PIXELS, progress=watched)
    assert changed.fingerprint != first.fingerprint
    assert (changed.val.inputs[0] != first.val.inputs[0]).any()
    assert (changed.val.inputs[1:] == first.val.inputs[1:]).all()


def test_damaged_images_are_named_all_at_once(data: Path) -> None:
    folder = data / "img_align_celeba"
    content = (folder / file_name(0)).read_bytes()
    (folder / file_name(0)).write_bytes(content[:2000])
    (folder / file_name(200)).write_bytes(b"")
    (folder / file_name(201)).write_bytes(b"no picture at all")
    (folder / file_name(599)).write_bytes(jpeg(pixels_of(folder / file_name(599))[:100]))
    with pytest.raises(ValueError, match="`data` must hold intact JPEG files of aligned images, found 4 of") as caught:
        celeba(data, pixels=PIXELS)
    message = str(caught.value)
    assert "000001.jpg (image file is truncated" in message
    assert (
        "000201.jpg (not a JPEG file), 000202.jpg (not a JPEG file), 000600.jpg (178×100 pixels, not 178×218)"
        in message
    )
    assert {file.suffix for file in (data / "tagalong-cache").iterdir()} == {".lock"}


def test_a_damaged_file_in_an_archive_is_named(tmp_path: Path) -> None:
    write_celeba(tmp_path, 30, zipped="")
    archive = tmp_path / "img_align_celeba.zip"
    content = bytearray(archive.read_bytes())
    content[4000:4010] = bytes(10)
    archive.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"found 1 of .*img_align_celeba\.zip damaged: 000001\.jpg \("):
        celeba(tmp_path, pixels=PIXELS)


def test_without_pillow_the_line_that_installs_it_is_given(
    data: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"'celeba' needs the package 'PIL'; pip install 'tagalong\[images\]'"):
        celeba(data, pixels=PIXELS)
    assert len(celeba(whole, pixels=PIXELS).train) == 420  # what is decoded needs none


def test_a_folder_that_cannot_be_written_to_asks_for_another(
    data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"`cache` must be a folder that can be written to, found .*Not a directory"):
        celeba(data, pixels=PIXELS, cache=tmp_path / "file" / "cache")

    def refuse(**given: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(ValueError, match=r"found .*tagalong-cache \(Permission denied\); choose another"):
        celeba(data, pixels=PIXELS)
    assert len(celeba(whole, pixels=PIXELS).train) == 420  # what is decoded is only read


@pytest.mark.parametrize("left", [b"", b"SQLite format 3\0" * 100])
def test_a_lock_file_that_was_left_is_used(whole: Path, tmp_path: Path, left: bytes) -> None:
    """By a process that was killed, or by an earlier tagalong, whose locks were SQLite's."""
    lock = tmp_path / only(whole / "tagalong-cache").with_suffix(".lock").name
    lock.write_bytes(left)
    celeba(whole, cache=tmp_path, pixels=PIXELS)
    assert only(tmp_path).read_bytes() == only(whole / "tagalong-cache").read_bytes()


def test_a_lock_that_cannot_be_held_is_named(data: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    celeba(data, pixels=PIXELS, cache=tmp_path / "other")
    lock = cache / only(tmp_path / "other").with_suffix(".lock").name
    lock.mkdir(parents=True)
    with pytest.raises(ValueError, match="can be locked") as caught:
        celeba(data, pixels=PIXELS, cache=cache)
    assert str(caught.value).startswith(f"`cache` must be a folder where {lock} can be locked, found ")
    assert str(caught.value).endswith("; delete that file or choose another folder")
    lock.rmdir()
    assert len(celeba(data, pixels=PIXELS, cache=cache).train) == 420


def test_a_full_disk_is_noticed_before(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: shutil._ntuple_diskusage(10, 10, 400_000))
    with pytest.raises(ValueError, match=r"`cache` must have room for 0\.0 GB, found 0\.0 GB free in"):
        celeba(data, pixels=PIXELS)


def test_a_decoder_that_dies_is_reported(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = r"decoded images are kept in .*tagalong-cache, run the same command to continue"
    lines = ["import os, signal", "def decode_piece(*arguments):", "    os.kill(os.getpid(), signal.SIGKILL)"]
    (tmp_path / "dying_decoder.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(celeba_decode, "decode_piece", importlib.import_module("dying_decoder").decode_piece)
    with pytest.raises(BrokenExecutor, match=f"a process that decodes images died; {kept}"):
        celeba(data, pixels=PIXELS)
    assert main(["run", "celeba", "--with", f"data={data}", "--out", str(tmp_path / "run")]) == 1
    assert "tagalong: a process that decodes images died; decoded images are kept in" in capsys.readouterr().err
    monkeypatch.undo()
    assert len(celeba(data, pixels=PIXELS).train) == 420


def test_after_a_decoder_dies_half_way_the_next_start_goes_on(whole: Path, tmp_path: Path) -> None:
    class Killing(Counting):
        def advance(self, n: int) -> None:
            super().advance(n)
            if n:
                for worker in multiprocessing.active_children():
                    worker.kill()

    with pytest.raises(BrokenExecutor, match="a process that decodes images died"):
        celeba(whole, cache=tmp_path, pixels=PIXELS, progress=Killing())
    watched = Counting()
    celeba(whole, cache=tmp_path, pixels=PIXELS, progress=watched)
    assert watched.updates[1] >= PIECE  # what was there
    assert only(tmp_path).read_bytes() == only(whole / "tagalong-cache").read_bytes()


def test_a_script_without_a_guard_is_not_run_again_by_the_decoders(whole: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    lines = ["print('started')", "from tagalong_paper.celeba import celeba", f"celeba({str(whole)!r}, cache='decoded')"]
    script.write_text("\n".join(lines))
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("started\n", "")
    assert only(tmp_path / "decoded")


def test_decoders_import_no_torch() -> None:
    script = "import sys, tagalong_paper.celeba.decode; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("kept", [-1, 5, 0])
def test_a_file_that_was_cut_off_later_is_named(data: Path, kept: int) -> None:
    celeba(data, pixels=PIXELS)
    file = only(data / "tagalong-cache")
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ValueError, match="found a part") as caught:
        celeba(data, pixels=PIXELS)
    todo = "delete it or name another `cache`"
    assert str(caught.value) == f"{file} must be a complete npy file, found a part of one; {todo}"
    file.unlink()
    assert len(celeba(data, pixels=PIXELS).train) == 420
