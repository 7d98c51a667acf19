"""Where the text describes another network or another training than the published code."""

from __future__ import annotations

from tagalong.learn import Capacity, parameters_of

from ._erratum import Erratum


def setting() -> list[Erratum]:
    """Network, stopping, budgets and rules."""
    channels = ", ".join(f"{found.times:g}× channels: {found.reached:.1f}×" for found in paper_capacities())
    return [
        Erratum(
            "appendix, larger networks",
            "n× the channels equal the parameters of n networks",
            channels,
            "parameters of the paper's CelebA network with nine heads, counted",
        ),
        Erratum("appendix, CelebA", "an encoder loosely like ResNet 18", "one residual block", "the published code"),
        Erratum(
            "appendix, CelebA",
            "train until validation increases for 10 consecutive epochs",
            "until it has not improved for 10",
            "the published code",
        ),
        Erratum("section 5.1", "PCGrad", "PCGrad on Uncertainty Weights' losses", "the published code"),
        Erratum(
            "equation 1",
            "a plain gradient step on one task",
            "momentum is in the step, and Z is divided by the learning rate",
            "the published code; to first order momentum adds the same to every source, which changes no group",
        ),
    ]


def paper_capacities() -> list[Capacity]:
    """The paper's CelebA network at 2×, 3× and 4× the channels, with all nine heads."""
    from tagalong.problems import faces

    problem = faces(rows=100, size="full")
    sizes = {times: parameters_of(problem, problem.names, times) for times in (1.0, 2.0, 3.0, 4.0)}
    return [Capacity("channels", times, times, size, size / sizes[1.0]) for times, size in sizes.items() if times > 1]
