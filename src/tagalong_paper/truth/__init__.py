"""Truth tables, which contain the results of every subset of tasks, and a leaderboard of estimators."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .standings import (
        Estimate as Estimate,
        Standing as Standing,
        average as average,
        estimate_from_networks as estimate_from_networks,
        leaderboard as leaderboard,
        marginal_effects as marginal_effects,
        pair_gains as pair_gains,
    )
    from .truth_table import (
        TruthRunner as TruthRunner,
        TruthTable as TruthTable,
        load_truth as load_truth,
        subset_members as subset_members,
        truth_names as truth_names,
    )

_HOMES = {
    "Estimate": ".standings",
    "Standing": ".standings",
    "TruthRunner": ".truth_table",
    "TruthTable": ".truth_table",
    "average": ".standings",
    "estimate_from_networks": ".standings",
    "leaderboard": ".standings",
    "load_truth": ".truth_table",
    "marginal_effects": ".standings",
    "pair_gains": ".standings",
    "subset_members": ".truth_table",
    "truth_names": ".truth_table",
}


def __getattr__(name: str) -> Any:
    # Imported on demand, so that `leaderboard --help` does not load torch.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
