"""How is a network for some tasks trained?"""

from ._balance import check_rule as check_rule
from ._batchable import why_not_batched as why_not_batched
from ._capacity import Capacity as Capacity
from ._capacity import capacities as capacities
from ._capacity import parameters_of as parameters_of
from ._capacity import width_for as width_for
from ._labels import LabelSummary as LabelSummary
from ._labels import label_summary as label_summary
from ._many import train_many as train_many
from ._network import MLP as MLP
from ._network import Network as Network
from ._network import build_network as build_network
from ._problem import Problem as Problem
from ._problem import Split as Split
from ._recipe import Recipe as Recipe
from ._scaling import Preparation as Preparation
from ._scaling import Scaling as Scaling
from ._scaling import read_preparation as read_preparation
from ._table import Table as Table
from ._table_problem import problem_from_csv as problem_from_csv
from ._task import Task as Task
from ._trained import Job as Job
from ._trained import Score as Score
from ._trained import Trained as Trained
from ._trainer import Diverged as Diverged
from ._trainer import train as train
