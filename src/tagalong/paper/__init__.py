"""The paper's published numbers, and what comes of them when they are computed again."""

from ._matrices import CELEBA as CELEBA
from ._matrices import MATRICES as MATRICES
from ._matrices import TASKONOMY as TASKONOMY
from ._printed import PRINTED as PRINTED
from ._printed import Printed as Printed
from ._printed import PrintedGroup as PrintedGroup
from ._published import Published as Published
from ._published import published as published
from ._selection import Selection as Selection
from ._selection import selections as selections
