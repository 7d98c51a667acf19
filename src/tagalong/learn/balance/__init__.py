"""How the losses of a network become one gradient: one file per rule."""

from .gradnorm import GradNorm as GradNorm
from .registry import make_balancer as make_balancer
from .rules import Balancer as Balancer
from .rules import Losses as Losses
from .rules import Plain as Plain
from .rules import Rule as Rule
from .torchjd import Aggregated as Aggregated
from .torchjd import Scalarised as Scalarised
