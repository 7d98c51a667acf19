"""A cluster of two Ray nodes: one is killed while it trains, and the study gives the same results."""

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from study_small import small_problem

from kill_at import records_without_times
from tagalong.learn import MLP
from tagalong.study import Study

pytestmark = pytest.mark.slow

ray = pytest.importorskip("ray")
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
# A silent node counts as lost after a second or two; by default Ray waits longer.
IMPATIENT = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}


class KillsItsNode(MLP):
    """On one node, kills the node and itself in the middle of the second training there."""

    def __init__(self, mark: Path, node: str, raylet: int) -> None:
        super().__init__(4, hidden=(5,))
        self.mark, self.node, self.raylet = mark, node, raylet
        self.home, self.made = os.getpid(), 0

    def __call__(self, width: float = 1.0) -> torch.nn.Module:
        if os.getpid() != self.home and ray.get_runtime_context().get_node_id() == self.node:
            self.made += 1
            if self.made == 2:
                self.mark.touch()
                os.kill(self.raylet, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(width)


@pytest.fixture
def cluster() -> Iterator[object]:
    from ray import cloudpickle
    from ray.cluster_utils import Cluster

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as on the workers
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    made = Cluster(initialize_head=True, head_node_args={**NODE, "_system_config": IMPATIENT})
    try:
        ray.init(address=made.address, log_to_driver=False, configure_logging=False)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore")  # from Ray itself
def test_a_study_survives_the_loss_of_a_node(cluster, tmp_path: Path) -> None:
    doomed = cluster.add_node(**NODE)
    cluster.wait_for_nodes()
    (raylet,) = doomed.all_processes["raylet"]
    encoder = KillsItsNode(tmp_path / "mark", doomed.node_id, raylet.process.pid)
    asked = {"methods": ["mtl", "stl", "tag", "uw"], "budgets": [2], "seeds": 3}
    there = Study(replace(small_problem(), encoder=encoder), tmp_path / "there", executor="ray", device="cpu").run(
        **asked
    )
    assert encoder.mark.exists(), "the second node was at work"
    assert raylet.process.wait(timeout=60) == -signal.SIGKILL  # the cluster may take longer to notice
    here = Study(replace(small_problem(), encoder=encoder), tmp_path / "here", device="cpu").run(**asked)
    # the workers share a request, so that networks are stacked differently than in one process
    for far, near in zip(records_without_times(there), records_without_times(here), strict=True):
        assert replace(far, val=near.val, test=near.test) == near
        for losses, expected in ((far.val, near.val), (far.test, near.test)):
            assert {task: score.loss for task, score in losses.items()} == pytest.approx(
                {task: score.loss for task, score in expected.items()}, rel=1e-6
            )
    assert there.verdict().recommended == here.verdict().recommended
    assert there.verdict().estimate == pytest.approx(here.verdict().estimate, abs=1e-6)
