"""The problems included in the package, and a registry that also finds problems from other packages.

Modules have names such as `faces_problem`, so that `tagalong.problems.faces` always refers to the function.
"""

from .celeba_net import PAPER_RECIPE as PAPER_RECIPE, CelebANet as CelebANet
from .demos import DEMOS as DEMOS, Demo as Demo
from .faces_drawing import FACE_ATTRIBUTES as FACE_ATTRIBUTES
from .faces_problem import FACES_RECIPES as FACES_RECIPES, faces as faces
from .nhanes_problem import nhanes as nhanes
from .problem_registry import (
    ProblemSpec as ProblemSpec,
    known_problems as known_problems,
    load_problem as load_problem,
    problem_names as problem_names,
    register_problem as register_problem,
)
from .qm9_problem import qm9 as qm9
