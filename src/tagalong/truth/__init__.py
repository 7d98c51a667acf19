"""What do groupings truly bring? Tables of all subsets of tasks, trained; and who predicts them best."""

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
