"""Standley's network and losses: counted by hand, compared with loops, and trained at the paper's size."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from taskonomy_small import write_taskonomy
from torch import nn

from tagalong.learn import Job, train
from tagalong_paper.taskonomy import Decoders, Xception, taskonomy
from tagalong_paper.taskonomy.taskonomy_problem import TASKS, absolute_error, rotated_error

pytestmark = pytest.mark.slow

OUTPUTS = {"segmentation": 18, "depth": 1, "normals": 3, "edges": 1, "keypoints": 1}


def norm(channels: int) -> int:
    return 2 * channels


def separable(before: int, after: int) -> int:
    return 9 * before + before * after + norm(after)


def encoder_size(middle: int = 728, entry: tuple[int, ...] = (32, 64, 128, 256)) -> int:
    """Parameters of the encoder, layer by layer."""
    first, second = entry[:2]
    total = 9 * 3 * first + norm(first) + 9 * first * second + norm(second)
    for before, after in zip((*entry[1:],), (*entry[2:], middle), strict=True):
        total += separable(before, after) + separable(after, after)
        total += 4 * after * after + after  # the strided convolution, with bias
        total += before * after + norm(after)  # the short cut
    return total + 8 * 3 * separable(middle, middle) + separable(middle, 512)


def decoder_size(outputs: int) -> int:
    total, before = 0, 512
    for place, after in enumerate((128, 64, 48, 32)):
        total += 4 * before * after + after + norm(after)
        if place < 3:
            total += 9 * after * after + after + norm(after)
        before = after
    return total + 9 * before * outputs + outputs


def test_encoder_and_decoders_have_as_many_parameters_as_in_the_paper() -> None:
    encoder = Xception()()
    assert sum(p.numel() for p in encoder.parameters()) == encoder_size() == 16_847_608
    for task in TASKS:
        decoder = Decoders()(task, 512)
        assert sum(p.numel() for p in decoder.parameters()) == decoder_size(OUTPUTS[task.name])
        assert sum(isinstance(layer, nn.ConvTranspose2d) for layer in decoder) == 4
        assert sum(isinstance(layer, nn.Conv2d) for layer in decoder) == 4


def test_wider_encoders_have_the_same_output_channels() -> None:
    wide = Xception(1 / 16)(width=2)
    assert wide(torch.zeros(1, 3, 64, 64, dtype=torch.uint8)).shape == (1, 32, 4, 4)
    double = sum(p.numel() for p in Xception()(2).parameters())
    assert double == encoder_size(1456, (64, 128, 256, 512))


def test_convolutions_are_initialized_as_published() -> None:
    torch.manual_seed(0)
    encoder = Xception()()
    kernels = [part for part in encoder.modules() if isinstance(part, nn.Conv2d) and part.weight.numel() > 5000]
    assert len(kernels) > 40
    for part in kernels:
        expected = (2 / (part.kernel_size[0] * part.kernel_size[1] * part.out_channels)) ** 0.5
        assert float(part.weight.detach().std()) == pytest.approx(expected, rel=0.05)


def test_the_rotated_error_equals_a_loop() -> None:
    random = np.random.default_rng(0)
    outputs, values = random.normal(size=(2, 4, 3, 9, 9))
    known = random.random((4, 1, 9, 9)) < 0.7
    expected = []
    for row in range(4):
        tried = []
        for down in (-1, 0, 1):
            for right in (-1, 0, 1):
                errors = [
                    abs(outputs[row, channel, y + down, x + right] - values[row, channel, y, x]) * known[row, 0, y, x]
                    for channel in range(3)
                    for y in range(1, 8)
                    for x in range(1, 8)
                ]
                tried.append(np.mean(errors))
        expected.append(min(tried))
    targets = torch.from_numpy(np.concatenate([values, known], 1))
    np.testing.assert_allclose(rotated_error(torch.from_numpy(outputs), targets), expected)
    assert torch.equal(absolute_error(torch.tensor([1.0]), torch.tensor([3.0])), torch.tensor([2.0]))


def test_unknown_pixels_have_no_gradient() -> None:
    outputs = torch.randn(2, 1, 8, 8, requires_grad=True)
    targets = torch.randn(2, 2, 8, 8)
    targets[:, 1] = 1.0
    targets[:, 1, 3:5, 3:5] = 0.0
    changed = targets.clone()
    changed[:, 0, 3:5, 3:5] += 100
    torch.testing.assert_close(rotated_error(outputs, targets), rotated_error(outputs, changed))
    classes = torch.randint(1, 18, (2, 8, 8)).float()
    classes[:, :4] = torch.nan
    logits = torch.randn(2, 18, 8, 8, requires_grad=True)
    segmentation = TASKS[0]
    losses, _ = segmentation.row_losses(logits, classes)
    losses.sum().backward()
    assert logits.grad is not None
    assert not logits.grad[:, :, :4].any()
    assert logits.grad[:, :, 4:].any()


def test_all_five_tasks_train_and_are_measured_at_full_size(tmp_path: Path) -> None:
    """Two training images of 64×64, two steps, one of them measured; the real encoder and decoders."""
    problem = taskonomy(write_taskonomy(tmp_path, views=1), pixels=64)
    problem = replace(problem, recipe=replace(problem.recipe, lr=0.01, batch_size=2, epochs=2))
    trained = train(problem, Job(problem.names), meter={"every": 2})
    assert trained.parameters == encoder_size() + sum(map(decoder_size, OUTPUTS.values())) == 19_454_224
    assert trained.steps == 2
    assert trained.curve.shape == (2, 5)
    assert np.isfinite(trained.curve).all()
    assert all(np.isfinite([score.loss, score.error]).all() for score in trained.test.values())
    assert trained.affinity is not None
    assert trained.affinity.tasks == problem.names
    assert np.isfinite(trained.affinity.mean).all()
    assert (np.diag(trained.affinity.mean) > 0).all(), "a small step on a task lowers its own loss"
