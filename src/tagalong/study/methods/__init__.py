"""Methods that decide which networks to train."""

from .auto import AutoMethod as AutoMethod
from .effort import format_effort as format_effort
from .effort import read_effort as read_effort
from .ensemble import BestOf as BestOf
from .ensemble import Ensemble as Ensemble
from .ensemble import no_average as no_average
from .hoa_optimal import Optimal as Optimal
from .hoa_optimal import Oracle as Oracle
from .method import Choice as Choice
from .method import Decision as Decision
from .method import Method as Method
from .method_registry import make_method as make_method
from .method_registry import method_names as method_names
from .method_registry import register_method as register_method
from .mtl_stl import Combined as Combined
from .mtl_stl import Mtl as Mtl
from .tag_cs import Tag as Tag
