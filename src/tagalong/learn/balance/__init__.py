"""How the losses of a network become one gradient: one file per rule."""

from ._aggregated import Aggregated as Aggregated
from ._gradnorm import GradNorm as GradNorm
from ._plain import Plain as Plain
from ._rule import Balancer as Balancer
from ._rule import Losses as Losses
from ._rule import Rule as Rule
from ._scalarised import Scalarised as Scalarised
