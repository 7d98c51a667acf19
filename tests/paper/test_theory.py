"""The lemma and the proposition on random losses: repeats the search whose results `tagalong paper theory` shows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from tagalong_paper import Value, run_experiment

REPORT = run_experiment("theory")
STATEMENTS = {row[0]: row[1:] for row in REPORT.table("Tested statements").rows}
COUNT = 100_000  # random cases per statement
Bound = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
BOUNDS: dict[str, Bound] = {  # on cos(g_a, g_c), from α, β and η
    "main text": lambda alpha, beta, eta: eta / 4 * alpha * beta / (beta - alpha) - 1,
    "proof": lambda alpha, beta, eta: eta / 4 * beta / (beta - alpha) - 1,
    "example": lambda alpha, beta, eta: eta / 4 * beta / (beta - alpha),
    "proof's last inequality": lambda alpha, beta, eta: eta * beta / 2 + alpha / (2 * (beta - alpha)) - 1,
    "corrected": lambda alpha, beta, eta: (eta * beta - 3) / 2,
}


@dataclass
class Cases:
    """Losses L_a with their convexity α and smoothness β, starting points, learning rates and gradients [cases, …]."""

    loss: Callable[[np.ndarray], np.ndarray]
    theta: np.ndarray
    alpha: np.ndarray
    beta: np.ndarray
    eta: np.ndarray
    a: np.ndarray
    b: np.ndarray
    c: np.ndarray

    def after(self, gradient: np.ndarray) -> np.ndarray:
        return self.loss(self.theta - self.eta[:, None] * gradient)

    @property
    def more_affinity(self) -> np.ndarray:
        return self.after(self.b) <= self.after(self.c)

    @property
    def better_partner(self) -> np.ndarray:
        with_b, with_c = self.after(self.a + self.b), self.after(self.a + self.c)
        return with_b <= with_c + 1e-12 * np.abs(with_c)

    @property
    def cosine(self) -> np.ndarray:
        return (unit(self.a) * unit(self.c)).sum(1)

    @property
    def lemma_gap(self) -> np.ndarray:
        """The right-hand side of Lemma 1 minus the left-hand side."""
        left = (self.a * self.c).sum(1) - self.beta * self.eta / 2 * (self.c**2).sum(1)
        return (self.a * self.b).sum(1) - left - self.alpha * self.eta / 2 * (self.b**2).sum(1)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def quadratic_cases(rng: np.random.Generator, bound: Bound | None = None) -> Cases:
    """Draws quadratics in two dimensions with gradients of equal length, and cos(g_a, g_c) below the bound."""
    alpha = np.exp(rng.uniform(-1, 1, COUNT))
    beta = alpha * np.exp(rng.uniform(0.05, 3.5, COUNT))
    eta = rng.uniform(0.02, 1.0, COUNT) / beta
    curvature = np.stack([alpha, beta], 1)
    theta = rng.standard_normal((COUNT, 2))
    a = theta * curvature

    def rotate(cosine: np.ndarray) -> np.ndarray:
        across = np.stack([-a[:, 1], a[:, 0]], 1) * rng.choice([-1.0, 1.0], (COUNT, 1))
        return cosine[:, None] * a + np.sqrt(np.clip(1 - cosine**2, 0, None))[:, None] * across

    if bound is None:
        c = rotate(np.cos(rng.uniform(0, np.pi, COUNT)))
    else:
        c = rotate(rng.uniform(-1, np.clip(bound(alpha, beta, eta), -1, 1)))
    b = rotate(np.cos(rng.uniform(0, np.pi, COUNT)))
    return Cases(lambda x: 0.5 * (curvature * x * x).sum(1), theta, alpha, beta, eta, a, b, c)


def logistic_cases(rng: np.random.Generator) -> Cases:
    """Draws logistic regressions of six rows with weight decay in four dimensions."""
    features = 2 * rng.standard_normal((COUNT, 6, 4))
    alpha = np.exp(rng.uniform(-3, 0, COUNT))
    beta = alpha + np.linalg.norm(features, 2, axis=(1, 2)) ** 2 / 4
    eta = rng.uniform(0.02, 1.0, COUNT) / beta
    theta = rng.standard_normal((COUNT, 4))

    def loss(x: np.ndarray) -> np.ndarray:
        return np.logaddexp(0, -np.einsum("crd,cd->cr", features, x)).sum(1) + 0.5 * alpha * (x * x).sum(1)

    slopes = -1 / (1 + np.exp(np.einsum("crd,cd->cr", features, theta)))
    a = np.einsum("cr,crd->cd", slopes, features) + alpha[:, None] * theta
    lengths = np.linalg.norm(a, axis=1, keepdims=True) * np.exp(rng.uniform(-1, 1, (2, COUNT, 1)))
    b, c = (unit(rng.standard_normal((COUNT, 4))) * length for length in lengths)
    return Cases(loss, theta, alpha, beta, eta, a, b, c)


@pytest.fixture(scope="module")
def drawn() -> dict[str, Cases]:
    rng = np.random.default_rng(0)
    return {"quadratic": quadratic_cases(rng), "logistic": logistic_cases(rng)}


@pytest.mark.parametrize("kind", ["quadratic", "logistic"])
def test_lemma_1_and_what_holds_instead_of_proposition_1_are_never_broken(drawn: dict[str, Cases], kind: str) -> None:
    cases = drawn[kind]
    met = cases.more_affinity
    broken = met & (cases.lemma_gap < -1e-9 * (cases.a**2).sum(1))
    assert broken.sum() == STATEMENTS[f"Lemma 1, {kind}"][1] == 0
    assert met.sum() == pytest.approx(STATEMENTS[f"Lemma 1, {kind}"][0], rel=1e-3)
    lengths = np.linalg.norm(cases.a, axis=1) * np.linalg.norm(cases.b - cases.c, axis=1)
    met = cases.after(cases.c) - cases.after(cases.b) >= cases.beta * cases.eta**2 * lengths
    assert (met & ~cases.better_partner).sum() == STATEMENTS[f"what holds instead, {kind}"][1] == 0
    assert met.sum() == pytest.approx(STATEMENTS[f"what holds instead, {kind}"][0], rel=1e-3)


@pytest.mark.parametrize("version", BOUNDS)
def test_every_printed_version_of_proposition_1_is_broken(version: str) -> None:
    cases = quadratic_cases(np.random.default_rng(0), BOUNDS[version])
    for gradient in (cases.b, cases.c):
        np.testing.assert_allclose(np.linalg.norm(gradient, axis=1), np.linalg.norm(cases.a, axis=1))
    met = cases.more_affinity & (cases.cosine <= BOUNDS[version](cases.alpha, cases.beta, cases.eta))
    broken = met & ~cases.better_partner
    count, failures, share = STATEMENTS[f"Proposition 1, {version}"]
    assert met.sum() == pytest.approx(count, rel=1e-3)
    assert broken.sum() == pytest.approx(failures, rel=1e-2)
    assert failures > 0 or version == "corrected"
    assert share is None or share.mean == pytest.approx(100 * failures / count)


def test_drawn_losses_have_the_stated_convexity_and_smoothness(drawn: dict[str, Cases]) -> None:
    for cases in drawn.values():
        start, random = cases.loss(cases.theta), np.random.default_rng(0)
        for length in (0.1, 1.0):
            step = length * random.standard_normal(cases.theta.shape)
            size = (step * step).sum(1)
            rest = cases.loss(cases.theta + step) - start - (cases.a * step).sum(1)
            assert (rest >= cases.alpha / 2 * size * (1 - 1e-9) - 1e-9).all()
            assert (rest <= cases.beta / 2 * size * (1 + 1e-9) + 1e-9).all()


def test_the_counterexample_meets_every_condition_and_breaks_the_proposition() -> None:
    curvature, theta = np.array([1.0, 9.349563]), np.array([[0.33962, 0.42377]])
    alpha, beta, eta = np.array([1.0]), np.array([9.349563]), np.array([0.057449])
    b, c = np.array([[-0.76530, -3.90227]]), np.array([[0.13811, -3.97421]])
    cases = Cases(lambda x: 0.5 * (x * x) @ curvature, theta, alpha, beta, eta, theta * curvature, b, c)
    lengths = [np.linalg.norm(gradient) for gradient in (cases.a, b, c)]
    np.testing.assert_allclose(lengths, lengths[0], rtol=1e-4)
    assert eta[0] <= 1 / beta[0]
    assert cases.lemma_gap.item() > 0
    assert cases.more_affinity.item()
    assert not cases.better_partner.item()
    for version, _, limit, met in REPORT.table("The counterexample").rows:
        assert limit.mean == pytest.approx(BOUNDS[version](alpha, beta, eta).item())
        assert met == ("yes" if cases.cosine.item() <= limit.mean else "no")
    losses = [cases.after(step).item() for step in (b, c, cases.a + c, cases.a + b)]
    (proposition,) = [row for row in run_experiment("errata").tables[0].rows if "is the better partner" in row[1]]
    assert "({:.4f} < {:.4f}), cos(g_a, g_c) = {:.4f}".format(*losses[:2], cases.cosine.item()) in proposition[2]
    assert "({:.4f} < {:.4f})".format(*losses[2:]) in proposition[2]


FIRST, SECOND = ((8.0, -2.0), (-12.0, 2.0)), ((8.0, -2.0), (-0.2, 15.0))  # the directions of g_b and g_c
PANELS = [(*FIRST, False), (*FIRST, True), (*SECOND, False), (*SECOND, True)]


def test_the_example_is_reproduced_with_unit_gradients_only() -> None:
    curvature, theta, eta = np.array([1.0, 10.0]), np.array([-2.0, -1.0]), 0.09
    figure = REPORT.figures["theory-counterexample"]
    arrows = [trace for trace in figure.data if trace.type == "scatter"]
    (example,) = [row for row in run_experiment("errata").tables[0].rows if "quadratic counterexample" in row[0]]
    for row, title, (b, c, combined) in zip(REPORT.tables[2].rows, figure.layout.annotations, PANELS, strict=True):
        printed = [cell.mean for cell in row[3:]]
        for length in (1.0, np.linalg.norm(theta * curvature)):
            g_a, g_b, g_c = (length * unit(np.array(vector)) for vector in (theta * curvature, b, c))
            steps = [gradient + combined * g_a for gradient in (g_b, g_c)]
            losses = [0.5 * (theta - eta * step) ** 2 @ curvature for step in steps]
            assert (losses[0] < losses[1]) == (printed[0] < printed[1])
            if length == 1.0:
                assert [cell.mean for cell in row[1:3]] == pytest.approx(losses)
                assert losses == pytest.approx(printed, abs=0.03)
                assert "{:.4f} and {:.4f}".format(*losses) in example[2]
                assert all(f"{loss:.3f}" in title.text for loss in losses)
                for step in steps if combined else [g_a, *steps]:
                    arrow = arrows.pop(0)
                    ends = theta - np.outer([0, eta, 1], step)
                    np.testing.assert_allclose([arrow.x, arrow.y], ends.T, atol=1e-6)
            else:
                assert np.abs(np.subtract(losses, printed)).min() > 0.1, "as stated, every number differs"
                assert "{:.2f} and {:.2f}".format(*losses) in example[3]


def test_the_claims_follow_from_the_tables() -> None:
    assert [claim.reproduced for claim in REPORT.claims] == ["yes", "yes", "no", "no"]
    met, broken, share = STATEMENTS["Proposition 1, main text"]
    assert f"{broken} of {met} cases" in REPORT.claims[2].because
    assert isinstance(share, Value)
