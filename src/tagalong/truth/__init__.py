"""What do groupings truly bring? Tables of all subsets of tasks, trained; and who predicts them best."""

from ._shipped import load_truth as load_truth
from ._shipped import truth_names as truth_names
from ._table import TruthTable as TruthTable
