"""Where proofs and examples do not hold as printed."""

from __future__ import annotations

from ..theory import BOUNDS, COUNTEREXAMPLE, PANELS, after_steps
from ._erratum import Erratum


def theory() -> list[Erratum]:
    """The lemma's misprint, the example's lengths, and the proposition."""
    return [_example(), _proposition(), *_constants()]


def _example() -> Erratum:
    found = {panel.letter: after_steps(panel) for panel in PANELS}
    as_stated = {panel.letter: after_steps(panel, unit=False) for panel in PANELS}
    return Erratum(
        "appendix, quadratic counterexample",
        "; ".join(f"{panel.printed[0]} and {panel.printed[1]}" for panel in PANELS),
        "; ".join(f"{found[letter][0]:.4f} and {found[letter][1]:.4f}" for letter in found),
        "gradients of unit length; with the length of g_a, as stated, "
        + "; ".join(f"{b:.2f} and {c:.2f}" for b, c in as_stated.values()),
    )


def _proposition() -> Erratum:
    cases = COUNTEREXAMPLE.cases
    alone = [float(cases.after(gradient)[0]) for gradient in (cases.g_b, cases.g_c)]
    joint = [float(cases.after(cases.g_a + gradient)[0]) for gradient in (cases.g_b, cases.g_c)]
    bound, corrected = float(BOUNDS[0].value(cases.alpha, cases.beta, cases.eta)[0]), BOUNDS[-1]
    return Erratum(
        "Proposition 1",
        "the task with more affinity is the better partner",
        f"b has more affinity ({alone[0]:.4f} < {alone[1]:.4f}), cos(g_a, g_c) = {COUNTEREXAMPLE.cosine:.4f} ≤ "
        f"{bound:.4f}, yet c is the better partner ({joint[1]:.4f} < {joint[0]:.4f})",
        f"the proof loses the term −(η/2)·β‖g_b‖²; with it the bound is {corrected.formula}, −1 at most, so that it "
        "proves nothing; see `tagalong paper theory`",
    )


def _constants() -> list[Erratum]:
    main, proof, example, *_ = BOUNDS
    return [
        Erratum(
            "Proposition 1",
            f"{main.formula} ({main.where}), {proof.formula} ({proof.where}), {example.formula} ({example.where})",
            "three different bounds",
            "the proof's own last inequality gives a fourth, ηβ/2 + α/(2(β−α)) − 1",
        ),
        Erratum("proof of Lemma 1", "L·η²/2 · ‖g_c‖²", "β·η²/2 · ‖g_c‖²", "strong smoothness; the lemma itself holds"),
        Erratum("proof of Proposition 1", "L_a(a), a_a + g_c", "L_a(θ), g_a + g_c", "misprints"),
    ]
