import random
import subprocess
import sys

import numpy as np
import torch

from tagalong.testing import check_estimator, check_executor, check_method, check_problem


def test_importing_tagalong_does_not_import_the_checks() -> None:
    code = "import sys, tagalong; sys.exit('tagalong.testing' in sys.modules or 'torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_checks_leave_the_global_random_state_unchanged() -> None:
    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002

    def set_seeds() -> None:
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)

    set_seeds()
    expected = draw()
    set_seeds()
    threads = torch.get_num_threads()
    check_method("mtl")
    check_estimator("cosine")
    check_problem("faces", rows=300, pixels=8)
    check_executor("serial")
    assert draw() == expected
    assert torch.get_num_threads() == threads
