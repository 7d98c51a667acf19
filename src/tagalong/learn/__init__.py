"""How is a network for some tasks trained?"""

from ._network import MLP as MLP
from ._network import Network as Network
from ._network import build_network as build_network
from ._problem import Problem as Problem
from ._problem import Split as Split
from ._recipe import Recipe as Recipe
from ._task import Task as Task
from ._trained import Job as Job
from ._trained import Score as Score
from ._trained import Trained as Trained
from ._trainer import Diverged as Diverged
from ._trainer import train as train
