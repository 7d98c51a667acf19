"""How far would one task's gradient move the shared parameters? The steps of optimisers, without taking them."""

from ._accept import accepted as accepted
from ._accept import check_ownership as check_ownership
from ._build import Steps as Steps
from ._build import optimizer_steps as optimizer_steps
from ._build import sgd_steps as sgd_steps
from ._pieces import Piece as Piece
from ._pieces import split as split
