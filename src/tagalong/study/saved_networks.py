"""Files of trained networks: weights with checksums, and layers as JSON or, if they include user code, as pickles."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from tagalong._version import is_own_module
from tagalong.errors import first_few
from tagalong.files import checksum, report_damage, write_atomic
from tagalong.learn import Network, rebuild_network

from .documents import TRAIN_AGAIN, NetworksFile, NetworksFileError

# Modules whose layers and functions a pickle may contain; loading them runs no code from the file.
ALLOWED_LAYERS, ALLOWED_FUNCTIONS = "torch.nn.modules.", "torch.nn.functional."


class UntrustedCodeError(NetworksFileError):
    """Raised if loading networks would run code from their files, but the caller has not declared it trusted."""


def load_restricted(content: bytes, allowed: str) -> Any:
    """Reads what torch's restricted unpickler allows. Otherwise, torch would advise users to lift the restriction."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about plain pickles
        try:
            return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        except pickle.UnpicklingError:
            raise ValueError(f"it contains more than {allowed}") from None


def save_tensors(tensors: Any, path: Path) -> str:
    """Writes tensors to a file and returns its checksum."""
    content = io.BytesIO()
    torch.save(tensors, content)
    write_atomic(path, content.getvalue())
    return checksum(content.getvalue())


def load_tensors(path: Path, expected: str) -> Any:
    """Reads tensors from a file and verifies its checksum; never runs code from the file."""
    content = _read_verified(path, expected)
    with report_damage(path, NetworksFileError, TRAIN_AGAIN):
        return load_restricted(content, "tensors")


def save_layers(network: Network, path: Path) -> str:
    """Pickles a network without its weights, including classes defined in the main script; returns the checksum."""
    import cloudpickle

    stripped = copy.deepcopy(network).cpu()
    for module in stripped.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            meta = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
            module.register_parameter(name, meta)
    content = io.BytesIO()
    torch.save(stripped, content, pickle_module=cloudpickle)
    write_atomic(path, content.getvalue())
    return checksum(content.getvalue())


def load_layers(path: Path, expected: str, trust: bool) -> Network:
    """Unpickles a network without weights.

    Unless `trust` is True, the pickle may refer only to torch.nn and tagalong layers, which torch's restricted
    unpickler creates without running any other code.

    Raises:
        UntrustedCodeError: If the pickle needs other code and `trust` is False.
    """
    content = _read_verified(path, expected)
    network: Any
    if trust:
        network = torch.load(io.BytesIO(content), weights_only=False)
    else:
        found = {name: _find_allowed(name) for name in _needed_names(content)}
        if unknown := [name for name, value in found.items() if value is None]:
            message = f"contains code other than layers of torch.nn and tagalong ({first_few(unknown)})"
            hint = "if you trust whoever made it, pass `trust=True`"
            raise UntrustedCodeError(str(path), message, hint=hint)
        with report_damage(path, NetworksFileError, TRAIN_AGAIN), safe_globals(list(found.values())):
            network = load_restricted(content, "layers of torch.nn and tagalong")
    if not isinstance(network, Network):
        raise NetworksFileError(str(path), "must contain a network", type(network).__name__, TRAIN_AGAIN)
    return network


def _needed_names(content: bytes) -> list[str]:
    """Returns the full names of the classes and functions that a pickle refers to, excluding tensors and the like."""
    try:
        return get_unsafe_globals_in_checkpoint(io.BytesIO(content))
    except pickle.UnpicklingError:  # cloudpickle includes the code of classes and functions of a script
        return ["code of a script"]


def _find_allowed(name: str) -> Any:
    """Returns the layer or function with this full name if a pickle may contain it, otherwise None."""
    module, _, attribute = name.rpartition(".")
    if not (is_own_module(module) or f"{name}.".startswith((ALLOWED_LAYERS, ALLOWED_FUNCTIONS))):
        return None
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError:
        return None
    if isinstance(found, type):
        return found if issubclass(found, nn.Module) else None
    return found if isinstance(found, FunctionType) and name.startswith(ALLOWED_FUNCTIONS) else None


def _read_verified(path: Path, expected: str) -> bytes:
    with report_damage(path, NetworksFileError, TRAIN_AGAIN):
        content = path.read_bytes()
        if checksum(content) != expected:
            raise ValueError("its checksum does not match")
    return content


def load_network(folder: Path, entry: NetworksFile.Files, checksums: Mapping[str, str], trust: bool) -> Network:
    """Loads a network in evaluation mode, as described by its entry in `networks.json`."""
    layers, weights = entry.layers, entry.weights
    if isinstance(layers, str):
        network = load_layers(folder / layers, checksums[layers], trust)
    else:
        network = rebuild_network(layers)
    network.load_state_dict(load_tensors(folder / weights, checksums[weights]), assign=True)
    return network.eval()
