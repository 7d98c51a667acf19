"""Optimisers and embeddings that cannot be measured raise an error before training."""

from typing import Any

import pytest
import torch
from step_oracle import dense_optimizers, parameters_for
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, Optimizer, SparseAdam

from tagalong import AffinityMeter
from tagalong.measure.steps import check_ownership, read_optimizers


def test_lbfgs_is_rejected() -> None:
    encoder = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"`optimizer` is LBFGS.*use `update='sgd'` with `lr` instead of `optimizer`"):
        AffinityMeter(encoder, LBFGS(encoder.parameters()))


def test_sparse_adam_is_rejected() -> None:
    encoder = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"`optimizer` is SparseAdam.*leave the sparse embeddings out of `shared`"):
        AffinityMeter(encoder, SparseAdam(list(encoder.parameters())))


@pytest.mark.parametrize("kind", [k for k in dense_optimizers() if "differentiable" in k.__init__.__annotations__])
def test_differentiable_is_rejected(kind: type[Optimizer]) -> None:
    encoder = nn.Linear(3, 2)
    optimizer = kind(encoder.parameters(), differentiable=True)  # type: ignore[call-arg]
    with pytest.raises(
        ValueError,
        match=rf"`optimizer` \({kind.__name__}\) has differentiable=True.*create it with differentiable=False",
    ):
        AffinityMeter(encoder, optimizer)


def test_one_error_lists_all_unsupported_optimizers() -> None:
    encoder = nn.Linear(3, 2)
    unsupported: list[Optimizer] = [
        LBFGS([encoder.weight]),
        SGD([{"params": [encoder.bias], "differentiable": True}], lr=0.1),
    ]
    with pytest.raises(ValueError, match=r"(?s)^several problems:\n.*LBFGS.*\n.*differentiable=True"):
        read_optimizers(unsupported)


def test_the_error_names_what_is_not_an_optimizer() -> None:
    with pytest.raises(ValueError, match=r"`optimizer` must be a torch.optim.Optimizer.*found dict"):
        read_optimizers([{}])  # type: ignore[list-item]


def test_zero_one_and_several_optimizers_are_accepted() -> None:
    parameters = parameters_for(SGD, torch.float32)
    one, other = SGD(parameters[:1], lr=0.1), Adam(parameters[1:])
    assert read_optimizers(None) == []
    assert read_optimizers(one) == [one]
    assert read_optimizers(o for o in (one, other)) == [one, other]


def test_parameter_in_two_optimizers_is_rejected() -> None:
    encoder = nn.Linear(3, 2)
    optimizers = [SGD(encoder.parameters(), lr=0.1), Adam([encoder.weight])]
    with pytest.raises(
        ValueError, match="`optimizer` is ambiguous: 1 shared parameters belong to more than one optimizer"
    ):
        AffinityMeter(encoder, optimizers)


def test_a_head_may_be_in_two_optimizers() -> None:
    encoder, head = nn.Linear(3, 2), nn.Linear(2, 1)
    check_ownership(list(encoder.parameters()), [SGD([*encoder.parameters(), head.bias], lr=0.1), Adam([head.bias])])


def test_optimizer_of_other_parameters_is_rejected() -> None:
    encoder, head = nn.Linear(3, 2), nn.Linear(2, 1)
    with pytest.raises(ValueError, match="`optimizer` contains none of the shared parameters"):
        AffinityMeter(encoder, SGD(head.parameters(), lr=0.1))


@pytest.mark.parametrize("embedding", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_embedding_inside_a_shared_module_is_rejected(embedding: type[nn.Embedding]) -> None:
    encoder = nn.Sequential(embedding(5, 3, sparse=True), nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"embedding with sparse gradients \(0\).*sparse=False"):
        AffinityMeter(encoder, SGD(encoder.parameters(), lr=0.1))


@pytest.mark.parametrize("estimator", ["lookahead", "gradient", "cosine"])
def test_sparse_embedding_given_as_a_parameter_is_rejected_at_the_first_measurement(estimator: Any) -> None:
    embedding, heads = nn.Embedding(5, 3, sparse=True), {t: nn.Linear(3, 1) for t in "ab"}
    meter = AffinityMeter([embedding.weight], SGD([embedding.weight], lr=0.1), estimator=estimator)
    rows = torch.tensor([0, 2, 2])

    def closure() -> dict[str, Tensor]:
        return {t: head(embedding(rows)).pow(2).mean() for t, head in heads.items()}

    before = embedding.weight.detach().clone()
    with pytest.raises(ValueError, match=r"embedding with sparse gradients \(shape \(5, 3\)\).*sparse=False"):
        meter(closure)
    assert torch.equal(embedding.weight, before)
    assert embedding.weight.grad is None


def test_dense_embedding_is_measured() -> None:
    embedding, heads = nn.Embedding(5, 3), {t: nn.Linear(3, 1) for t in "ab"}
    meter = AffinityMeter(embedding, Adam(embedding.parameters()), every=1)
    rows = torch.tensor([0, 2, 2])
    meter(lambda: {t: head(embedding(rows)).pow(2).mean() for t, head in heads.items()})
    assert meter.measured == 1
