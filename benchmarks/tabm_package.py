"""TabM from PyPI (`pip install tabm`), trained as its authors do in their example, on all targets of a table."""

import copy

import numpy as np
import torch
from sklearn.preprocessing import QuantileTransformer
from torch import Tensor, nn

from tagalong.learn import Problem, average_outputs, score_outputs

BINS, EMBEDDING, NOISE = 48, 16, 1e-5
LR, WEIGHT_DECAY, CLIP, BATCH, PATIENCE = 2e-3, 3e-4, 1.0, 256, 16
Inputs = tuple[Tensor, Tensor]  # numbers, and values of two-valued columns as 0 and 1


def train_package(problem: Problem, device: torch.device) -> list[dict[str, Tensor]]:
    """Returns the average answers of all members on the validation rows and on the test rows, by task."""
    from rtdl_num_embeddings import PiecewiseLinearEmbeddings, compute_bins
    from tabm import TabM

    torch.manual_seed(0)
    fit_rows = problem.train.inputs
    is_number = torch.tensor([len(column.unique()) > 2 for column in fit_rows.T])
    noise = np.random.default_rng(0).normal(0, NOISE, (len(fit_rows), int(is_number.sum())))
    quantiles = min(1000, max(10, len(fit_rows) // 30))
    scaler = QuantileTransformer(n_quantiles=quantiles, output_distribution="normal", subsample=10**9)
    scaler.fit(fit_rows[:, is_number].numpy() + noise)
    middle = fit_rows[:, ~is_number].mean(0)

    def prepare(rows: Tensor) -> Inputs:
        scaled = torch.tensor(scaler.transform(rows[:, is_number].numpy()), dtype=torch.float32)
        return scaled.to(device), (rows[:, ~is_number] > middle).long().to(device)

    inputs = {part: prepare(rows.inputs) for part, rows in problem.splits.items()}
    targets = {name: labels.float().to(device) for name, labels in problem.train.targets.items()}
    sizes = [task.head_size for task in problem.tasks]
    bins = compute_bins(inputs["train"][0].cpu(), n_bins=BINS)
    embeddings = PiecewiseLinearEmbeddings(bins, EMBEDDING, activation=False, version="B")
    settings = {"n_num_features": len(bins), "cat_cardinalities": [2] * len(middle), "num_embeddings": embeddings}
    model = TabM.make(**settings, d_out=sum(sizes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)

    def answers(part: str) -> dict[str, Tensor]:
        model.eval()
        with torch.inference_mode():
            chunks = [model(*rows) for rows in zip(*(own.split(1024) for own in inputs[part]), strict=True)]
        members = torch.cat(chunks).cpu().split(sizes, 2)  # [rows, members, outputs] of each task
        pairs = zip(problem.tasks, members, strict=True)
        return {task.name: average_outputs(own.unbind(1), task.averaging) for task, own in pairs}

    best, waited, kept = np.inf, 0, copy.deepcopy(model.state_dict())
    while waited < PATIENCE:
        model.train()
        for rows in torch.randperm(len(fit_rows)).split(BATCH):
            outputs = model(*(own[rows.to(device)] for own in inputs["train"])).flatten(0, 1)  # [rows · members, …]
            loss = torch.zeros((), device=device)
            for task, own in zip(problem.tasks, outputs.split(sizes, 1), strict=True):
                losses, present = task.row_losses(own, targets[task.name][rows.to(device)])
                loss = loss + losses.sum() / present.sum().clamp(min=1)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
        answered = answers("val")
        labels = problem.val.targets
        total = sum(score_outputs(task, answered[task.name], labels[task.name]).loss for task in problem.tasks)
        waited += 1
        if total < best:
            best, waited, kept = total, 0, copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)
    return [answers("val"), answers("test")]
