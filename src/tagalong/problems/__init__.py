"""What is there to learn?"""

from .celeba_net import PAPER_RECIPE as PAPER_RECIPE
from .celeba_net import CelebANet as CelebANet
from .drawing import ATTRIBUTES as ATTRIBUTES
from .faces import RECIPES as RECIPES
from .faces import faces as faces
from .nhanes import nhanes as nhanes
from .qm9 import qm9 as qm9
from .registry import DEMO_TASKS as DEMO_TASKS
from .registry import Known as Known
from .registry import known_problems as known_problems
from .registry import load_problem as load_problem
from .registry import problem_names as problem_names
