"""Ways of deciding which networks there should be, each a small file."""

from ._alone import Stl as Stl
from ._auto import Auto as Auto
from ._combined import Combined as Combined
from ._exhaustive import Optimal as Optimal
from ._exhaustive import Oracle as Oracle
from ._measured import Cs as Cs
from ._measured import Measured as Measured
from ._measured import Tag as Tag
from ._method import Choice as Choice
from ._method import Decision as Decision
from ._method import Method as Method
from ._pairs import Hoa as Hoa
from ._random import Random as Random
from ._registry import make_method as make_method
from ._registry import method_names as method_names
from ._registry import register_method as register_method
from ._together import Mtl as Mtl
from ._together import Ruled as Ruled
from ._together import Wide as Wide
