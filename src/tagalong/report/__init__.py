"""How do people see it? Functions that take results and return figures."""

from ._heatmap import affinity_heatmap as affinity_heatmap
from ._over_training import affinity_over_training as affinity_over_training
