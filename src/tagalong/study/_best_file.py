"""The recommended networks as files: weights, what they mean, and the modules without their weights."""

from __future__ import annotations

import copy
import errno
import json
import pickle
import shutil
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import nn

from tagalong.affinity._atomic import write_atomic
from tagalong.group import Group
from tagalong.learn import Network

from ._best import Best, Served
from ._document import read_document

FORMAT = "tagalong-networks"
VERSION = 2  # 1: pickled classes that have moved since
FOLDER, FILE, EXAMPLE = "networks", "networks.json", "example.pt"


class NetworksFileError(ValueError):
    """A folder that should hold networks does not."""


def write(best: Best, out: Path) -> Path:
    """Fills a folder beside it first: a kill half-way leaves the networks before."""
    folder = out / FOLDER
    draft = out / f".{FOLDER}.{uuid4().hex}"
    draft.mkdir(parents=True)
    try:
        for number, network in enumerate(best.networks):
            torch.save(network.state_dict(), draft / weights_file(number))
            (draft / module_file(number)).write_bytes(_without_weights(network))
        torch.save(best.example, draft / EXAMPLE)
        write_atomic(draft / FILE, (json.dumps(to_document(best), allow_nan=False, indent=1) + "\n").encode())
        _put(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _put(draft: Path, folder: Path) -> None:
    """Replaces `folder` by `draft`; where several processes do so at once, the last one's stays."""
    before = draft.with_name(f"{draft.name}.before")
    while True:
        with suppress(FileNotFoundError):
            folder.rename(before)
        try:
            draft.rename(folder)
            return
        except OSError as error:  # another process put its own there in between
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        finally:
            shutil.rmtree(before, ignore_errors=True)


def read(out: Path) -> Best:
    """The networks in the folder of a run, or in its `networks/` itself; never some of one run and some of another."""
    before = _identity(out / FOLDER)
    try:
        best = _read(out)
    except NetworksFileError:
        if _identity(out / FOLDER) == before:
            raise
    else:
        if _identity(out / FOLDER) == before:
            return best
    return read(out)  # another process has put its own there in between


def _identity(folder: Path) -> int | None:
    with suppress(FileNotFoundError):
        return folder.stat().st_ino
    return None


def _read(out: Path) -> Best:
    folder = out / FOLDER if (out / FOLDER).is_dir() else out
    if not (folder / FILE).exists():
        raise NetworksFileError(f"`out` must be the folder of a finished run, found no {FOLDER}/{FILE} in {out}")
    try:
        best: Best = read_document(
            folder / FILE, FORMAT, VERSION, lambda document: _best(document, folder), NetworksFileError
        )
    except ImportError as error:
        todo = "start Python where it can be, or run the study again"
        raise NetworksFileError(f"{folder} needs code that cannot be imported here ({error}); {todo}") from error
    return best


def _best(document: dict[str, Any], folder: Path) -> Best:
    return Best(
        groups=tuple(Group(entry["trains"], entry["serves"]) for entry in document["groups"]),
        networks=tuple(_module(folder, number) for number in range(len(document["groups"]))),
        tasks=tuple(_served(entry) for entry in document["tasks"]),
        seed=document["seed"],
        table=_table(document["table"]),
        example=torch.load(folder / EXAMPLE, weights_only=True),
    )


def to_document(best: Best) -> dict[str, Any]:
    """What the networks are, as JSON can hold it."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "seed": best.seed,
        "tasks": [asdict(task) for task in best.tasks],
        "groups": [{"trains": sorted(group.trains), "serves": sorted(group.serves)} for group in best.groups],
        "outputs": [list(network.tasks) for network in best.networks],
        "weights": [weights_file(number) for number in range(len(best.networks))],
        "table": None if best.table is None else best.table.to_document(),
    }


def weights_file(number: int) -> str:
    """The file of a network's weights."""
    return f"network-{number + 1}.pt"


def module_file(number: int) -> str:
    """The file of a network's module, without its weights."""
    return f"network-{number + 1}.pkl"


def _without_weights(network: Network) -> bytes:
    """The pickled module; own classes of the main script go along, so cloudpickle."""
    import cloudpickle

    hollow = copy.deepcopy(network).cpu()
    for module in hollow.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            meta = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
            module.register_parameter(name, meta)
    pickled: bytes = cloudpickle.dumps(hollow)
    return pickled


def _module(folder: Path, number: int) -> Network:
    network: Network = pickle.loads((folder / module_file(number)).read_bytes())
    weights = torch.load(folder / weights_file(number), weights_only=True, map_location="cpu")
    network.load_state_dict(weights, assign=True)
    return network.eval()


def _served(entry: dict[str, Any]) -> Served:
    scale = entry["scale"]
    return Served(entry["name"], entry["kind"], None if scale is None else tuple(scale), tuple(entry["labels"]))


def _table(document: dict[str, Any] | None) -> Any:
    from tagalong.learn import read_preparation

    return None if document is None else read_preparation(document)
