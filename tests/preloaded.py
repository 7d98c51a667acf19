"""Imports what takes long, for the fork server of the tests' processes."""

from contextlib import suppress

import plotly.graph_objects  # noqa: F401
import torch._dynamo  # noqa: F401

from tagalong.report import write_report  # noqa: F401
from tagalong.study import (
    Results,  # noqa: F401
)
from tagalong_paper.celeba import celeba  # noqa: F401

with suppress(ImportError):
    import tagalong.integrations.lightning
with suppress(ImportError):
    import tagalong.integrations.transformers  # noqa: F401
