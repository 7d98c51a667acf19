"""What do groupings truly bring? Tables of all subsets of tasks, trained; and who predicts them best."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .estimates import Estimate as Estimate
    from .estimates import marginal_effects as marginal_effects
    from .estimates import pair_gains as pair_gains
    from .leaderboard import Standing as Standing
    from .leaderboard import average as average
    from .leaderboard import leaderboard as leaderboard
    from .tables import Lookup as Lookup
    from .tables import TruthTable as TruthTable
    from .tables import load_truth as load_truth
    from .tables import truth_names as truth_names

_HOMES = {
    "Estimate": ".estimates",
    "Lookup": ".tables",
    "Standing": ".leaderboard",
    "TruthTable": ".tables",
    "average": ".leaderboard",
    "leaderboard": ".leaderboard",
    "load_truth": ".tables",
    "marginal_effects": ".estimates",
    "pair_gains": ".estimates",
    "truth_names": ".tables",
}


def __getattr__(name: str) -> Any:
    # On demand: `leaderboard --help` waits for no torch.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
