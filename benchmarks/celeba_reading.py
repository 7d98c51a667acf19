"""How fast CelebA is read: decoding its JPEG files into the cache, and training from the cache.

    python benchmarks/celeba_reading.py
    python benchmarks/celeba_reading.py --images 20000 --rows 162770

Synthetic faces are written as JPEG files of CelebA's size. The floor is the time to decode them on all cores and do
nothing else; the cache is built by the code behind `load_problem("celeba")`, which also resizes, writes and computes
checksums. Training calls `train` with batches of 256 in random order and a network that looks at one pixel in a
thousand, so that most of the time is spent reading. Needs Pillow.
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
from tagalong_paper.celeba.cache import ImageCache, available_cores
from tagalong_paper.celeba.celeba_files import find_images
from tagalong_paper.celeba.decode import decode

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "paper"))
from official_celeba import file_name, write_celeba

DISTINCT_IMAGES = 1000


class FewPixels:
    """Makes encoders that look at only a few pixels."""

    def __call__(self) -> nn.Module:
        return FewPixelsEncoder()


class FewPixelsEncoder(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images[:, :, ::32, ::32].flatten(1).float() / 255


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000, help="number of JPEG files to decode")
    parser.add_argument("--rows", type=int, default=60_000, help="number of images to train on, 12 kB each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="number of torch threads for training")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        progress(f"writing {options.images} JPEG files")
        write_images(Path(folder), options.images)
        rows = measure_decoding(Path(folder), options.rounds)
        progress(f"training on {options.rows} images")
        rows += measure_training(Path(folder), options.rows, options.rounds)
    print(
        f"{available_cores()} cores for decoding, {options.threads} for training; medians of {options.rounds} rounds\n"
    )
    print(table(list(rows[0]), [[_format(value) for value in row.values()] for row in rows]))
    if options.json:
        options.json.write_text(json.dumps({"cores": available_cores(), "rows": rows}, indent=1) + "\n")


def write_images(data: Path, images: int) -> None:
    """Draws up to a thousand images, and writes copies of them until there are enough files."""
    write_celeba(data, min(images, DISTINCT_IMAGES))
    folder = data / "img_align_celeba"
    for number in range(DISTINCT_IMAGES, images):
        original = folder / file_name(number % DISTINCT_IMAGES)
        (folder / file_name(number)).write_bytes(original.read_bytes())


def measure_decoding(data: Path, rounds: int) -> list[dict[str, Any]]:
    """Times plain decoding and building the cache in alternation."""
    files = sorted((data / "img_align_celeba").iterdir())
    measured: dict[str, list[tuple[float, float]]] = {}
    for number in range(rounds):
        progress(f"decoding, round {number + 1} of {rounds}")
        variants: dict[str, Callable[[], object]] = {
            "decoding alone": lambda: _run_on_all_cores(decodes, files),
            "decoding and resizing": lambda: _run_on_all_cores(decodes_and_resizes, files),
            "building the cache": lambda place=number: _build_cache(data, data / f"cache-{place}"),
        }
        for what, work in variants.items():
            measured.setdefault(what, []).append(_time(work))
    floor = [median(seconds) for seconds in zip(*measured["decoding alone"], strict=True)]
    rows = []
    for what, times in measured.items():
        wall, cpu = (median(seconds) for seconds in zip(*times, strict=True))
        ratios = {"× floor": wall / floor[0], "× floor, CPU": cpu / floor[1]}
        rows.append({"what": what, "images": len(files), "images a second": len(files) / wall} | ratios)
    return rows


def _time(work: Callable[[], object]) -> tuple[float, float]:
    """Returns wall-clock seconds, and CPU seconds summed over all cores."""

    def cpu_seconds() -> float:
        spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in spent)

    before, start = cpu_seconds(), time.perf_counter()
    work()
    return time.perf_counter() - start, cpu_seconds() - before


def _run_on_all_cores(read: Callable[[Path], bool], files: list[Path]) -> None:
    with multiprocessing.get_context("fork").Pool(available_cores()) as pool:
        assert sum(pool.map(read, files, chunksize=512)) == len(files)
        pool.close()
        pool.join()


def decodes_and_resizes(file: Path) -> bool:
    return len(decode(file.read_bytes(), 64)) == 3 * 64 * 64


def decodes(file: Path) -> bool:
    with Image.open(io.BytesIO(file.read_bytes()), formats=("JPEG",)) as image:
        image.load()
        return image.size == (178, 218)


def _build_cache(data: Path, folder: Path) -> None:
    images = find_images(data)
    ImageCache(images, sorted(images.members), 64, folder).build()


def measure_training(folder: Path, rows: int, rounds: int) -> list[dict[str, Any]]:
    """Times epochs of `train` on a file of random images that the operating system already has in memory."""
    path, random = folder / "rows.npy", np.random.default_rng(0)
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(rows, 3, 64, 64))
    for first in range(0, rows, 4096):
        part = file[first : first + 4096]
        part[:] = random.integers(0, 256, part.shape, dtype=np.uint8)
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
        problem = Problem("reading", (Task("a"),), split, few, few, encoder=FewPixels(), recipe=recipe)
        ends = [time.perf_counter()]
        train(problem, Job(("a",)), progress=lambda epoch, ends=ends: ends.append(time.perf_counter()))
        measured[what] = median(np.diff(ends)[1:])  # the first epoch also builds the network and reads the file
    return [
        {"what": what, "images": rows, "images a second": rows / seconds, "× floor": None, "× floor, CPU": None}
        for what, seconds in measured.items()
    ]


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value > 100 else f"{value:.2f}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else value


if __name__ == "__main__":
    main()
