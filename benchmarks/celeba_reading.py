"""How fast CelebA is read: decoding its JPEG files into the cache, and training from the cache.

    python benchmarks/celeba_reading.py
    python benchmarks/celeba_reading.py --images 20000 --rows 162770

Faces are drawn and written as JPEG files of CelebA's size. The floor is decoding them on all cores and nothing else;
the cache is built by `load_problem("celeba")`'s own code, which reads, decodes, resizes, writes and records. Training
goes through `train` itself, with batches of 256 in random order and a network that looks at one pixel in a thousand, so
that reading is what takes the time. Needs Pillow.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from markdown import progress, table
from tagalong.learn import Job, MappedTensor, Problem, Recipe, Split, Task, train
from tagalong_paper.celeba.cache import Cache, cores
from tagalong_paper.celeba.decode import decode
from tagalong_paper.celeba.files import find_images

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "paper"))
from official_celeba import file_name, write_celeba

DRAWN = 1000


class Glance:
    """Makes encoders that look at few pixels."""

    def __call__(self) -> nn.Module:
        return Pixels()


class Pixels(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images[:, :, ::32, ::32].flatten(1).float() / 255


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000, help="JPEG files to decode")
    parser.add_argument("--rows", type=int, default=60_000, help="images to train on, 12 kB each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of torch, when training")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    with tempfile.TemporaryDirectory() as folder:
        progress(f"writing {asked.images} JPEG files")
        write_images(Path(folder), asked.images)
        rows = decoding(Path(folder), asked.rounds)
        progress(f"training on {asked.rows} images")
        rows += training(Path(folder), asked.rows, asked.rounds)
    print(f"{cores()} cores to decode, {asked.threads} to train; medians of {asked.rounds} rounds\n")
    print(table(list(rows[0]), [[_shown(value) for value in row.values()] for row in rows]))
    if asked.json:
        asked.json.write_text(json.dumps({"cores": cores(), "rows": rows}, indent=1) + "\n")


def write_images(data: Path, images: int) -> None:
    """Draws some, and copies them until there are as many as wanted."""
    write_celeba(data, min(images, DRAWN))
    folder = data / "img_align_celeba"
    for number in range(DRAWN, images):
        (folder / file_name(number)).write_bytes((folder / file_name(number % DRAWN)).read_bytes())


def decoding(data: Path, rounds: int) -> list[dict[str, Any]]:
    """The floor and the cache, in turns."""
    files = sorted((data / "img_align_celeba").iterdir())
    measured: dict[str, list[tuple[float, float]]] = {}
    for number in range(rounds):
        progress(f"decoding, round {number + 1} of {rounds}")
        ways: dict[str, Callable[[], object]] = {
            "decoding alone": lambda: _on_all_cores(decoded, files),
            "decoding and resizing": lambda: _on_all_cores(resized, files),
            "building the cache": lambda place=number: _build(data, data / f"cache-{place}"),
        }
        for what, work in ways.items():
            measured.setdefault(what, []).append(_timed(work))
    floor = [median(seconds) for seconds in zip(*measured["decoding alone"], strict=True)]
    rows = []
    for what, times in measured.items():
        wall, busy = (median(seconds) for seconds in zip(*times, strict=True))
        ratios = {"× floor": wall / floor[0], "× floor, CPU": busy / floor[1]}
        rows.append({"what": what, "images": len(files), "images a second": len(files) / wall} | ratios)
    return rows


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of all cores."""

    def busy() -> float:
        spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in spent)

    before, start = busy(), time.perf_counter()
    work()
    return time.perf_counter() - start, busy() - before


def _on_all_cores(read: Callable[[Path], bool], files: list[Path]) -> None:
    with multiprocessing.get_context("fork").Pool(cores()) as pool:
        assert sum(pool.map(read, files, chunksize=512)) == len(files)
        pool.close()
        pool.join()


def resized(file: Path) -> bool:
    return len(decode(file.read_bytes(), 64)) == 3 * 64 * 64


def decoded(file: Path) -> bool:
    with Image.open(io.BytesIO(file.read_bytes()), formats=("JPEG",)) as image:
        image.load()
        return image.size == (178, 218)


def _build(data: Path, folder: Path) -> None:
    images = find_images(data)
    Cache(images, sorted(images.members), 64, folder).build()


def training(folder: Path, rows: int, rounds: int) -> list[dict[str, Any]]:
    """Epochs of `train` on a file of random images, read once before so that the system holds it."""
    path, random = folder / "rows.npy", np.random.default_rng(0)
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(rows, 3, 64, 64))
    for first in range(0, rows, 4096):
        some = file[first : first + 4096]
        some[:] = random.integers(0, 256, some.shape, dtype=np.uint8)
    del file
    labels = torch.from_numpy(random.integers(0, 2, rows).astype(np.float32))
    inputs = MappedTensor.open(path, "random")
    few = Split(
        torch.from_numpy(np.array([[0], [255]], np.uint8)).view(2, 1, 1, 1).expand(2, 3, 64, 64), {"a": labels[:2]}
    )
    measured = {}
    for what, images in (("training from the file", inputs), ("training from memory", inputs.clone())):
        recipe = Recipe(batch_size=256, epochs=rounds + 1, patience=None)
        split = Split(images, {"a": labels})
        problem = Problem("reading", (Task("a"),), split, few, few, encoder=Glance(), recipe=recipe)
        ends = [time.perf_counter()]
        train(problem, Job(("a",)), progress=lambda epoch, ends=ends: ends.append(time.perf_counter()))
        measured[what] = median(np.diff(ends)[1:])  # the first one builds the network and reads the file
    return [
        {"what": what, "images": rows, "images a second": rows / seconds, "× floor": None, "× floor, CPU": None}
        for what, seconds in measured.items()
    ]


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value > 100 else f"{value:.2f}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else value


if __name__ == "__main__":
    main()
