"""What is there to learn?"""

from ._celeba import celeba as celeba
from ._celeba_network import PAPER_RECIPE as PAPER_RECIPE
from ._celeba_network import CelebANet as CelebANet
from ._faces import faces as faces
from ._nhanes import nhanes as nhanes
from ._qm9 import qm9 as qm9
from ._registry import DEMO_TASKS as DEMO_TASKS
from ._registry import Known as Known
from ._registry import known_problems as known_problems
from ._registry import load_problem as load_problem
from ._registry import problem_names as problem_names
from ._taskonomy import TASKONOMY_RECIPE as TASKONOMY_RECIPE
from ._taskonomy import taskonomy as taskonomy
from ._taskonomy_network import Decoders as Decoders
from ._taskonomy_network import Xception as Xception
