"""What the search was tuned by; see benchmarks/auto_quality.py for how, and for what each is worth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """How the search proposes and decides.

    Attributes:
        optimism: standard deviations by which doubt counts in favour of a proposal.
        rounds: in which the effort is spent, about; trainings of a round can run together.
        together: the share of the effort for networks of all tasks, which everything is compared with.
        reserved: the share of the effort for further seeds of the best networks, at the end, while these are in doubt.
        clear: standard deviations that the expected gain must exceed to be in no doubt.
        caution: standard deviations by which doubt counts against moving a task, in the final choice.
        sure: standard deviations that the expected gain must exceed to be recommended.
        screen: train proposals to this fraction first, and end the worse half there; None: train all to the end.
    """

    optimism: float = 1.0
    rounds: int = 12
    together: float = 0.15
    reserved: float = 0.25
    clear: float = 3.0
    caution: float = 0.25
    sure: float = 1.5
    screen: float | None = None
