"""What do groupings truly bring? Tables of all subsets of tasks, trained; and who predicts them best."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._effects import marginal_effects as marginal_effects
    from ._effects import pair_gains as pair_gains
    from ._estimates import Estimate as Estimate
    from ._leaderboard import Standing as Standing
    from ._leaderboard import average as average
    from ._leaderboard import leaderboard as leaderboard
    from ._lookup import Lookup as Lookup
    from ._shipped import load_truth as load_truth
    from ._shipped import truth_names as truth_names
    from ._table import TruthTable as TruthTable

_ON_DEMAND = {
    "Estimate": "_estimates",
    "Lookup": "_lookup",
    "Standing": "_leaderboard",
    "TruthTable": "_table",
    "average": "_leaderboard",
    "leaderboard": "_leaderboard",
    "load_truth": "_shipped",
    "marginal_effects": "_effects",
    "pair_gains": "_effects",
    "truth_names": "_shipped",
}


def __getattr__(name: str) -> Any:
    # The help of `tagalong leaderboard` does not wait for torch.
    if name in _ON_DEMAND:
        return getattr(import_module(f".{_ON_DEMAND[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
