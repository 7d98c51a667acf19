"""The problems included in the package, and a registry that also finds problems from other packages.

Modules have names such as `faces_problem`, so that `tagalong.problems.faces` always refers to the function.
"""

from .celeba_net import PAPER_RECIPE as PAPER_RECIPE
from .celeba_net import CelebANet as CelebANet
from .demos import DEMOS as DEMOS
from .demos import Demo as Demo
from .faces_drawing import FACE_ATTRIBUTES as FACE_ATTRIBUTES
from .faces_problem import FACES_RECIPES as FACES_RECIPES
from .faces_problem import faces as faces
from .nhanes_problem import nhanes as nhanes
from .problem_registry import ProblemSpec as ProblemSpec
from .problem_registry import known_problems as known_problems
from .problem_registry import load_problem as load_problem
from .problem_registry import problem_names as problem_names
from .problem_registry import register_problem as register_problem
from .qm9_problem import qm9 as qm9
