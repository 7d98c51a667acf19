"""Methods that decide which networks to train."""

from .auto import AutoMethod as AutoMethod
from .effort import format_effort as format_effort, read_effort as read_effort, read_seconds as read_seconds
from .ensemble import BestOf as BestOf, Ensemble as Ensemble, no_average as no_average
from .hoa_optimal import Optimal as Optimal, Oracle as Oracle
from .method import Choice as Choice, Decision as Decision, Method as Method
from .method_registry import (
    make_method as make_method,
    method_names as method_names,
    register_method as register_method,
)
from .mtl_stl import Combined as Combined, Mtl as Mtl
from .tag_cs import Tag as Tag
