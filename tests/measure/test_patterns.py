"""Shared parameters by name patterns."""

import numpy as np
import pytest
from small import regression

from tagalong import AffinityMeter


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


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("*lora_*", "encoder.0.weight, encoder.0.bias, encoder.3.weight"),
        ("encoder", r"'encoder\.\*'"),
        ("encoder.0.*", "frozen"),
    ],
)
def test_patterns_that_match_nothing_to_train_are_rejected_with_a_hint(pattern: str, hint: str) -> None:
    model, _ = regression()
    model.encoder[0].requires_grad_(False)
    with pytest.raises(ValueError, match=f"`shared`.*{hint}"):
        AffinityMeter([pattern], lr=0.1, model=model)
