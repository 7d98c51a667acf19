"""How far would one task's gradient move the shared parameters? The steps of optimisers, without taking them."""

from .optimizers import Steps as Steps
from .optimizers import accepted as accepted
from .optimizers import check_ownership as check_ownership
from .optimizers import optimizer_steps as optimizer_steps
from .optimizers import sgd_steps as sgd_steps
from .rules import Piece as Piece
from .rules import split as split
