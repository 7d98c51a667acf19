"""A fork server that has already imported torch and the package, so that processes start at once."""

import multiprocessing
import os
import sys
from functools import cache
from multiprocessing.context import ForkServerContext

import pytest


@cache
def forkserver() -> ForkServerContext:
    """Starts the server; it is the only one of this process, so `start_method="forkserver"` elsewhere uses it too."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    first = context.Process(target=str)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # the server does not get our `sys.path`
        first.start()  # the first one waits for the imports
    first.join()
    return context
