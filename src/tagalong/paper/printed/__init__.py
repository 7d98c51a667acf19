"""Numbers that the paper prints (Fifty et al., NeurIPS 2021), table by table. Ours are never among them."""

from ._ablations import EVERY_STEP_ERROR as EVERY_STEP_ERROR
from ._ablations import HYPERPARAMETERS as HYPERPARAMETERS
from ._ablations import PARTNER as PARTNER
from ._ablations import PARTNER_PEARSON as PARTNER_PEARSON
from ._ablations import PCGRAD_GAIN as PCGRAD_GAIN
from ._ablations import SPEED as SPEED
from ._ablations import SPREAD as SPREAD
from ._ablations import VALIDATION_ERROR as VALIDATION_ERROR
from ._ablations import VALIDATION_PEARSON as VALIDATION_PEARSON
from ._ablations import Speed as Speed
from ._baselines import BASELINES as BASELINES
from ._baselines import Baseline as Baseline
from ._capacity import CAPACITY as CAPACITY
from ._groupings import OPTIMAL as OPTIMAL
