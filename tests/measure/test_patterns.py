"""Shared parameters by name patterns."""

import numpy as np
import pytest
from small import regression
from torch import nn

from tagalong import AffinityMeter
from tagalong.errors import InvalidInput


@pytest.mark.parametrize("shared", ["encoder.*", ["encoder.0.*", "encoder.3.*"], ("*0.weight", "encoder.*")])
def test_patterns_select_parameters_by_name(shared: str | list[str]) -> None:
    model, closure = regression()
    by_name, by_module = AffinityMeter(shared, lr=0.1, model=model), AffinityMeter(model.encoder, lr=0.1)
    by_name(closure)
    by_module(closure)
    np.testing.assert_allclose(by_name.affinity().mean, by_module.affinity().mean, rtol=1e-12)


def test_patterns_and_modules_can_be_combined() -> None:
    model, closure = regression()
    meter = AffinityMeter([model.encoder[0], "*.3.bias"], lr=0.1, model=[model.heads, model])
    assert list(meter.check(closure).shared) == ["encoder.0.weight", "encoder.0.bias", "encoder.3.bias"]


def test_adapters_are_selected_and_frozen_layers_are_ignored() -> None:
    model, closure = regression()
    model.encoder[0].requires_grad_(False)
    assert list(AffinityMeter("encoder.*", lr=0.1, model=model).check(closure).shared) == [
        "encoder.3.weight",
        "encoder.3.bias",
    ]


def test_all_problems_with_patterns_are_listed_at_once() -> None:
    model, _ = regression()
    model.encoder[0].requires_grad_(False)
    with pytest.raises(InvalidInput) as caught:
        AffinityMeter(["*lora_*", "encoder", "encoder.0.*"], lr=0.1, model=model)
    text = str(caught.value)
    assert "found '*lora_*'; names look like 'encoder.0.weight', 'encoder.0.bias', 'encoder.3.weight'" in text
    assert "found 'encoder'; use 'encoder.*' for all parameters of that module" in text
    assert "found 'encoder.0.*', which matches only frozen ones (2); unfreeze them" in text


def test_patterns_without_a_model_are_rejected() -> None:
    with pytest.raises(InvalidInput, match=r"if `model` is given, found '\*' without `model`; pass model=model"):
        AffinityMeter("*", lr=0.1)


def test_a_model_without_parameters_matches_nothing() -> None:
    with pytest.raises(InvalidInput, match="`model` has no parameters"):
        AffinityMeter("*", lr=0.1, model=nn.ReLU())
