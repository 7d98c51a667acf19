"""The error of affinities in float32 and with TF32 convolutions, compared with float64 (see the README)."""

import argparse
import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from markdown import progress, table
from tagalong.learn import Job, Network, Problem, Training, mean_loss
from tagalong.problems import load_problem

TASKS = ("5_o_Clock_Shadow", "Black_Hair", "Blond_Hair", "Goatee", "No_Beard")
COLUMNS = ("epoch", "size", "spread", "float32", "TF32", "TF32, mean over batches", "chance, mean over batches")
Floats = NDArray[np.float64]


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allows or forbids TF32 convolutions, which round their inputs to ten bits."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def compute_lookahead(problem: Problem, network: Network, inputs: Tensor, targets: dict[str, Tensor]) -> Floats:
    """Computes equation 1 directly: one step on each task, then all losses again."""
    shared = {f"encoder.{name}": parameter for name, parameter in network.encoder.named_parameters()}
    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}

    def losses(moved: dict[str, Tensor]) -> Tensor:
        copies = {name: buffer.clone() for name, buffer in buffers.items()}
        outputs = functional_call(network, {**copies, **moved}, (inputs,))
        return torch.stack([mean_loss(task, outputs[task.name], targets[task.name]) for task in problem.tasks])

    before, rows = losses(shared), []
    for loss in before:
        gradients = torch.autograd.grad(loss, list(shared.values()), retain_graph=True)
        steps = zip(shared.items(), gradients, strict=True)
        with torch.no_grad():
            after = losses({name: weight - problem.recipe.lr * gradient for (name, weight), gradient in steps})
        rows.append(1 - after.double() / before.detach().double())
    return np.asarray(torch.stack(rows).cpu().numpy())[~np.eye(len(before), dtype=bool)]


class ScaleInFloat64(nn.Module):
    """Scales images to [-1, 1] in float64."""

    def forward(self, images: Tensor) -> Tensor:
        return images.double() / 127.5 - 1


def compare_precisions(problem: Problem, training: Training, batches: int) -> list[str]:
    """Returns one row of the table, for the network as trained so far."""
    found: dict[str, list[Floats]] = {"float64": [], "float32": [], "TF32": []}
    single = copy.deepcopy(training.network).train()
    double = copy.deepcopy(single).double()
    double.encoder[0] = ScaleInFloat64()
    size = problem.recipe.batch_size
    for number in range(batches):
        inputs, targets = training.rows.batch(torch.arange(number * size, (number + 1) * size))
        precise = {task: target.double() for task, target in targets.items()}
        found["float64"].append(compute_lookahead(problem, double, inputs, precise))
        for name, allowed in (("float32", False), ("TF32", True)):
            with tf32(allowed):
                found[name].append(compute_lookahead(problem, single, inputs, targets))
    float64, float32, rounded = (np.stack(found[name]) for name in ("float64", "float32", "TF32"))
    size_of_mean = np.abs(float64.mean(0)).mean()
    spread = float64.std(0, ddof=1).mean()
    off = rounded - float64
    shares = (
        *(spread, np.abs(float32 - float64).mean(), np.abs(off).mean()),
        *(np.abs(off.mean(0)).mean(), off.std(0, ddof=1).mean() / np.sqrt(batches) * np.sqrt(2 / np.pi)),
    )
    return [str(training.epoch), f"{size_of_mean:.2e}", *(f"{100 * share / size_of_mean:.3g}%" for share in shares)]


def main() -> None:
    """Trains all tasks together, and compares three precisions on the same batches after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--faces", type=int, default=16_000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batches", type=int, default=32)
    parser.add_argument("--pixels", type=int, default=64)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*TF32.*")
    problem = load_problem("faces", size="full", rows=options.faces, pixels=options.pixels).only(TASKS)
    training = Training(problem, Job(TASKS, 0), options.device)
    rows = []
    for epoch in range(options.epochs):
        progress(f"epoch {epoch + 1} of {options.epochs}")
        training.run_epoch()
        rows.append(compare_precisions(problem, training, options.batches))
    where = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU, which has no TF32"
    recipe = f"batches of {problem.recipe.batch_size}, learning rate {problem.recipe.lr:g}"
    print(f"{where}; torch {torch.__version__}; {options.faces} faces of {options.pixels} pixels; {recipe}\n")
    print(table(COLUMNS, rows))


if __name__ == "__main__":
    main()
