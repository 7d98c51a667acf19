"""The cache of decoded images is complete or absent, whatever happens during decoding."""

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

pytestmark = pytest.mark.slow

IMAGES, PIXELS, CHUNK = 600, 16, 128
CHUNKS = -(-IMAGES // CHUNK)


class RecordingProgress:
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
def decoded_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder, decoded without interruption."""
    folder = tmp_path_factory.mktemp("celeba") / "data"
    write_celeba(folder, IMAGES)
    celeba(folder, pixels=PIXELS)
    return folder


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(celeba_cache, "CHUNK_SIZE", CHUNK)


@pytest.fixture
def data(decoded_data: Path, tmp_path: Path) -> Path:
    return shutil.copytree(decoded_data, tmp_path / "data", ignore=shutil.ignore_patterns("tagalong-cache"))


def only_file(folder: Path, suffix: str = ".npy") -> Path:
    (found,) = folder.glob(f"*{suffix}")
    return found


def decode(data: Path, cache: Path, nth: int | None = None, total: Any = None) -> None:
    """Decodes, killed before its n-th file operation; otherwise sets `total` to their number."""
    celeba_cache.CHUNK_SIZE = CHUNK
    operations = FileOperations(cache, nth)

    class CountedProgress(RecordingProgress):
        def advance(self, n: int) -> None:
            operations.count()  # a line was appended to a file that is already open

    celeba(data, cache=cache, pixels=PIXELS, progress=CountedProgress())
    if total is not None:
        total.value = operations.number


def decode_three_chunks(data: Path, cache: Path) -> None:
    class KilledAfterThreePieces(RecordingProgress):
        def advance(self, n: int) -> None:
            super().advance(n)
            if len(self.updates) == 5:  # the start, the chunks found, and three new chunks
                os.kill(os.getpid(), signal.SIGKILL)

    celeba_cache.CHUNK_SIZE = CHUNK
    celeba(data, cache=cache, pixels=PIXELS, progress=KilledAfterThreePieces())


def decode_with_a_pause(data: Path, cache: Path, queue: Any, go: Any) -> None:
    """Decodes, pausing after the first chunk until `go` is set."""

    class PausingProgress(RecordingProgress):
        def advance(self, n: int) -> None:
            super().advance(n)
            if n:
                queue.put("decodes")
                go.wait()

    celeba_cache.CHUNK_SIZE = CHUNK
    progress = PausingProgress()
    queue.put("begins")
    problem = celeba(data, cache=cache, pixels=PIXELS, progress=progress)
    queue.put((sum(n for n in progress.updates if isinstance(n, int)), problem.fingerprint))


def exit_status(processes: ForkServerContext, work: Any, *arguments: Any) -> int | None:
    process = processes.Process(target=work, args=arguments)
    process.start()
    process.join(timeout=100)
    return process.exitcode


def pixels_of(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path))


def test_decoding_killed_at_any_file_operation_resumes_to_the_same_bytes(
    decoded_data: Path, tmp_path: Path, processes: ForkServerContext
) -> None:
    total = processes.Value("i")
    assert exit_status(processes, decode, decoded_data, tmp_path / "clean", None, total) == 0
    draw, parts = random.Random(0), np.array_split(np.arange(1, total.value + 1), 5)
    points = [draw.choice(part.tolist()) for part in parts]
    kept = [chunks_kept_by_a_kill(processes, decoded_data, tmp_path / str(nth), nth) for nth in points]
    assert any(0 < chunks < CHUNKS for chunks in kept), "one fell half-way"


def chunks_kept_by_a_kill(processes: ForkServerContext, decoded_data: Path, cache: Path, nth: int) -> int:
    assert exit_status(processes, decode, decoded_data, cache, nth) == -signal.SIGKILL
    finished = list(cache.glob("*.npy"))
    recorded = sum(len(record.read_text().splitlines()) for record in cache.glob("celeba*.done"))
    progress = RecordingProgress()
    celeba(decoded_data, cache=cache, pixels=PIXELS, progress=progress)
    assert only_file(cache).read_bytes() == only_file(decoded_data / "tagalong-cache").read_bytes()
    left = {file.suffix for file in cache.iterdir()} - {".tmp"}  # left by a kill while the record was replaced
    if finished:  # everything but tidying up was done, and leftovers are ignored
        assert (progress.updates, left) == ([], {".npy", ".lock", ".done"})
        return recorded
    assert left == {".npy", ".lock"}
    (start, found, *others, done) = progress.updates
    assert start == (IMAGES, "decoding images", "images")
    assert found >= CHUNK * (recorded - 1)  # the last chunk is shorter
    assert found + sum(others) == IMAGES
    assert len(others) == CHUNKS - recorded
    assert done == "done"
    return recorded


def test_the_message_of_an_interrupted_decoding_says_what_is_kept(decoded_data: Path, tmp_path: Path) -> None:
    class StoppedProgress(RecordingProgress):
        def advance(self, n: int) -> None:
            super().advance(n)
            if n:
                raise KeyboardInterrupt

    cache = tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt, match=r"decoded images are kept in .*cache, run the same command"):
        celeba(decoded_data, cache=cache, pixels=PIXELS, progress=StoppedProgress())
    assert only_file(cache, ".done").read_text()
    celeba(decoded_data, cache=cache, pixels=PIXELS)
    assert only_file(cache).read_bytes() == only_file(decoded_data / "tagalong-cache").read_bytes()


def test_of_two_processes_one_decodes_and_the_other_waits(
    decoded_data: Path, tmp_path: Path, processes: ForkServerContext
) -> None:
    go, queues = processes.Event(), [processes.Queue(), processes.Queue()]
    both = [processes.Process(target=decode_with_a_pause, args=(decoded_data, tmp_path, one, go)) for one in queues]
    both[0].start()
    assert [queues[0].get(timeout=60), queues[0].get(timeout=60)] == ["begins", "decodes"]
    both[1].start()
    assert queues[1].get(timeout=60) == "begins"
    go.set()
    for process in both:
        process.join(timeout=60)
    assert [process.exitcode for process in both] == [0, 0]
    others = CHUNKS - 1
    *decoding, (images, fingerprint) = (queues[0].get(timeout=60) for _ in range(others + 1))
    assert (decoding, images) == (["decodes"] * others, IMAGES)
    assert queues[1].get(timeout=60) == (0, fingerprint)
    assert only_file(tmp_path).read_bytes() == only_file(decoded_data / "tagalong-cache").read_bytes()


def test_recorded_chunks_are_verified(decoded_data: Path, tmp_path: Path, processes: ForkServerContext) -> None:
    """Simulates a power cut: a record whose bytes never reached the disk, and half a line."""
    cache = tmp_path / "cache"
    assert exit_status(processes, decode_three_chunks, decoded_data, cache) == -signal.SIGKILL
    record, part = only_file(cache, ".done"), only_file(cache, ".part")
    offset = int(record.read_text().split()[0])
    with part.open("r+b") as file:
        file.seek(offset)
        file.write(bytes(100))
    record.write_text(record.read_text() + "12")
    celeba(decoded_data, cache=cache, pixels=PIXELS)
    assert only_file(cache).read_bytes() == only_file(decoded_data / "tagalong-cache").read_bytes()


@pytest.mark.parametrize("left", [b"", b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', "])
def test_decoding_killed_at_its_start_begins_again(decoded_data: Path, tmp_path: Path, left: bytes) -> None:
    name = only_file(decoded_data / "tagalong-cache").stem
    (tmp_path / f"{name}.part").write_bytes(left)
    (tmp_path / f"{name}.done").write_bytes(b"")
    celeba(decoded_data, cache=tmp_path, pixels=PIXELS)
    assert only_file(tmp_path).read_bytes() == only_file(decoded_data / "tagalong-cache").read_bytes()


def test_only_a_changed_folder_is_decoded_again(data: Path) -> None:
    first, progress = celeba(data, pixels=PIXELS), RecordingProgress()
    again = celeba(data, pixels=PIXELS, progress=progress)
    assert again.fingerprint == first.fingerprint
    assert progress.updates == []
    other = data / "img_align_celeba" / file_name(7)
    other.write_bytes(jpeg(255 - pixels_of(other)))
    changed = celeba(data, pixels=PIXELS, progress=progress)
    assert changed.fingerprint != first.fingerprint
    assert (changed.val.inputs[0] != first.val.inputs[0]).any()
    assert (changed.val.inputs[1:] == first.val.inputs[1:]).all()


def test_one_error_names_all_damaged_images(data: Path) -> None:
    folder = data / "img_align_celeba"
    content = (folder / file_name(0)).read_bytes()
    (folder / file_name(0)).write_bytes(content[:2000])
    (folder / file_name(200)).write_bytes(b"")
    (folder / file_name(201)).write_bytes(b"no picture at all")
    (folder / file_name(599)).write_bytes(jpeg(pixels_of(folder / file_name(599))[:100]))
    with pytest.raises(
        ValueError, match="`data` must contain intact JPEG files of aligned images, found 4 damaged in"
    ) as caught:
        celeba(data, pixels=PIXELS)
    message = str(caught.value)
    assert "000001.jpg (image file is truncated" in message
    assert (
        "000201.jpg (not a JPEG file), 000202.jpg (not a JPEG file), "
        "000600.jpg (expected 178×218 pixels, found 178×100)" in message
    )
    assert {file.suffix for file in (data / "tagalong-cache").iterdir()} == {".lock"}


def test_the_error_names_a_damaged_file_in_an_archive(tmp_path: Path) -> None:
    write_celeba(tmp_path, 30, zipped="")
    archive = tmp_path / "img_align_celeba.zip"
    content = bytearray(archive.read_bytes())
    content[4000:4010] = bytes(10)
    archive.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"found 1 damaged in .*img_align_celeba\.zip: 000001\.jpg \("):
        celeba(tmp_path, pixels=PIXELS)


def test_the_error_without_pillow_says_how_to_install_it(
    data: Path, decoded_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"'celeba' requires the package 'PIL'; run pip install 'tagalong\[images\]'"):
        celeba(data, pixels=PIXELS)
    assert len(celeba(decoded_data, pixels=PIXELS).train) == 420  # decoded images do not need it


def test_the_error_for_a_read_only_folder_suggests_another(
    data: Path, decoded_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"`cache` must be a writable folder, found .*Not a directory"):
        celeba(data, pixels=PIXELS, cache=tmp_path / "file" / "cache")

    def fail(**given: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    with pytest.raises(ValueError, match=r"found .*tagalong-cache \(Permission denied\); choose another"):
        celeba(data, pixels=PIXELS)
    assert len(celeba(decoded_data, pixels=PIXELS).train) == 420  # decoded images are only read


@pytest.mark.parametrize("left", [b"", b"SQLite format 3\0" * 100])
def test_a_leftover_lock_file_is_reused(decoded_data: Path, tmp_path: Path, left: bytes) -> None:
    """It was left by a killed process, or by an earlier tagalong, whose locks were SQLite databases."""
    lock = tmp_path / only_file(decoded_data / "tagalong-cache").with_suffix(".lock").name
    lock.write_bytes(left)
    celeba(decoded_data, cache=tmp_path, pixels=PIXELS)
    assert only_file(tmp_path).read_bytes() == only_file(decoded_data / "tagalong-cache").read_bytes()


def test_the_error_names_a_lock_file_that_cannot_be_used(data: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    celeba(data, pixels=PIXELS, cache=tmp_path / "other")
    lock = cache / only_file(tmp_path / "other").with_suffix(".lock").name
    lock.mkdir(parents=True)
    with pytest.raises(ValueError, match="could not be locked") as caught:
        celeba(data, pixels=PIXELS, cache=cache)
    assert str(caught.value).startswith(f"`cache` cannot be used, because {lock} could not be locked (")
    assert str(caught.value).endswith("; delete that file, or choose another folder")
    lock.rmdir()
    assert len(celeba(data, pixels=PIXELS, cache=cache).train) == 420


def test_a_full_disk_is_noticed_before_decoding(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: shutil._ntuple_diskusage(10, 10, 400_000))
    with pytest.raises(ValueError, match=r"`cache` must have room for 0\.0 GB, found 0\.0 GB free in"):
        celeba(data, pixels=PIXELS)


def test_a_decoder_that_dies_is_reported(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = r"decoded images are kept in .*tagalong-cache, run the same command to continue"
    lines = ["import os, signal", "def decode_chunk(*arguments):", "    os.kill(os.getpid(), signal.SIGKILL)"]
    (tmp_path / "dying_decoder.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(celeba_decode, "decode_chunk", importlib.import_module("dying_decoder").decode_chunk)
    with pytest.raises(BrokenExecutor, match=f"a process that was decoding images died; {kept}"):
        celeba(data, pixels=PIXELS)
    assert main(["run", "celeba", "--with", f"data={data}", "--out", str(tmp_path / "run")]) == 1
    assert "tagalong: a process that was decoding images died; decoded images are kept in" in capsys.readouterr().err
    monkeypatch.undo()
    assert len(celeba(data, pixels=PIXELS).train) == 420


def test_decoding_resumes_after_a_decoder_died_half_way(decoded_data: Path, tmp_path: Path) -> None:
    class KillsADecoder(RecordingProgress):
        def advance(self, n: int) -> None:
            super().advance(n)
            if n:
                for worker in multiprocessing.active_children():
                    worker.kill()

    with pytest.raises(BrokenExecutor, match="a process that was decoding images died"):
        celeba(decoded_data, cache=tmp_path, pixels=PIXELS, progress=KillsADecoder())
    progress = RecordingProgress()
    celeba(decoded_data, cache=tmp_path, pixels=PIXELS, progress=progress)
    assert progress.updates[1] >= CHUNK  # what was there
    assert only_file(tmp_path).read_bytes() == only_file(decoded_data / "tagalong-cache").read_bytes()


def test_a_script_without_a_guard_is_not_run_again_by_the_decoders(decoded_data: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    lines = [
        "print('started')",
        "from tagalong_paper.celeba import celeba",
        f"celeba({str(decoded_data)!r}, cache='decoded')",
    ]
    script.write_text("\n".join(lines))
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("started\n", "")
    assert only_file(tmp_path / "decoded")


def test_decoders_import_no_torch() -> None:
    script = "import sys, tagalong_paper.celeba.decode; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("kept", [-1, 5, 0])
def test_the_error_names_a_cache_file_that_was_truncated_later(data: Path, kept: int) -> None:
    celeba(data, pixels=PIXELS)
    file = only_file(data / "tagalong-cache")
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ValueError, match="found a truncated one") as caught:
        celeba(data, pixels=PIXELS)
    todo = "delete it or choose another `cache`"
    assert str(caught.value) == f"{file} must be a complete npy file, found a truncated one; {todo}"
    file.unlink()
    assert len(celeba(data, pixels=PIXELS).train) == 420
