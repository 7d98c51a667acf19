import multiprocessing

import pytest


@pytest.fixture(scope="session")
def processes():
    """Processes that have torch already, so that they start at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tagalong.study.study", "torch._dynamo", "study_small"])
    first = context.Process(target=str)
    first.start()  # the one that waits for the imports
    first.join()
    return context
