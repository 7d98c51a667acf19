import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from study_small import small_problem

from tagalong.learn import MLP, Job, Task
from tagalong.study import Runner, Store, Study, make_executor
from tagalong.study.executors import Serial, device_name

pytestmark = pytest.mark.slow

JOBS = [Job(tasks, seed) for seed in (0, 1) for tasks in (("a",), ("b",), ("a", "b"))] + [Job(("a", "b"), 0, "uw")]


def train_with(executor, path, problem):
    with (
        Store(path) as store,
        Runner(problem, store, executor, partial=path.parent / "partial") as runner,
    ):
        return {job: (row.val, row.test, row.steps) for job, row in runner.networks(JOBS).items()}


def with_lambda():
    """Returns a problem that plain pickle cannot handle."""
    problem = small_problem("ab")
    own = Task("b", kind="custom", loss=lambda outputs, targets: (outputs[:, 0] - targets).abs())
    return replace(problem, tasks=(problem.tasks[0], own))


class RecordsBlockedSignals(MLP):
    """Records whether the process that makes an encoder was started with SIGINT blocked."""

    def __init__(self, mark: Path) -> None:
        super().__init__(4, hidden=(5,))
        self.mark, self.home = mark, os.getpid()

    def __call__(self, width: float = 1.0):
        if os.getpid() != self.home:
            self.mark.write_text(str(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])))
        return super().__call__(width)


def test_worker_processes_train_the_same_networks_as_the_serial_executor_and_block_ctrl_c(tmp_path):
    pytest.importorskip("cloudpickle")
    problem = replace(with_lambda(), encoder=RecordsBlockedSignals(tmp_path / "mark"))
    here = train_with(Serial(), tmp_path / "here.sqlite", problem)
    there = train_with(make_executor("processes:2"), tmp_path / "there.sqlite", problem)
    assert (tmp_path / "mark").read_text() == "True"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert there.keys() == here.keys()
    for job, (val, test, steps) in here.items():
        assert there[job][2] == steps
        for mine, theirs in ((val, there[job][0]), (test, there[job][1])):
            assert {t: o.loss for t, o in mine.items()} == pytest.approx({t: o.loss for t, o in theirs.items()})


class DiesOnce(MLP):
    """Kills the first worker process that makes an encoder."""

    def __init__(self, mark: Path, every_time: bool = False) -> None:
        super().__init__(4, hidden=(5,))
        self.mark, self.every_time, self.home = mark, every_time, os.getpid()

    def __call__(self, width: float = 1.0):
        if os.getpid() != self.home and (self.every_time or not self.mark.exists()):
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(width)


@pytest.mark.usefixtures("forked_workers")
def test_a_dead_process_is_reported_and_the_rest_is_kept(tmp_path):
    pytest.importorskip("cloudpickle")
    problem = replace(small_problem("ab"), encoder=DiesOnce(tmp_path / "mark"))
    expected = train_with(Serial(), tmp_path / "here.sqlite", problem)
    with pytest.raises(RuntimeError, match="a worker process died"):
        train_with(make_executor("processes:1"), tmp_path / "run.sqlite", problem)
    assert train_with(make_executor("processes:1"), tmp_path / "run.sqlite", problem) == expected


class WaitsOnce(MLP):
    """Names the first node on which an encoder is made, and then waits there to be killed."""

    def __init__(self, mark: Path) -> None:
        super().__init__(4, hidden=(5,))
        self.mark, self.home = mark, os.getpid()

    def __call__(self, width: float = 1.0):
        if os.getpid() != self.home and not self.mark.exists():
            import ray

            self.mark.write_text(ray.get_runtime_context().get_node_id())
            time.sleep(300)
        return super().__call__(width)


@pytest.mark.filterwarnings("ignore")  # from Ray itself
def test_a_cluster_that_loses_one_of_two_nodes_trains_every_network_once(tmp_path):
    ray = pytest.importorskip("ray")
    from ray import cloudpickle
    from ray.cluster_utils import Cluster

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    problem, mark = small_problem("ab"), tmp_path / "mark"
    here = train_with(Serial(), tmp_path / "here.sqlite", problem)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]

    def kill_the_waiting_node():
        while not mark.exists() or not mark.read_text():
            time.sleep(0.1)
        cluster.remove_node(next(node for node in nodes if node.node_id == mark.read_text()), allow_graceful=False)

    ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    killer = threading.Thread(target=kill_the_waiting_node, daemon=True)
    killer.start()
    try:
        path = tmp_path / "there.sqlite"
        there = train_with(make_executor("ray"), path, replace(problem, encoder=WaitsOnce(mark)))
        assert ray.is_initialized(), "a connection that was there before stays"
        killer.join(timeout=60)
        assert not killer.is_alive(), "a node was killed"
        with Store(path) as store:
            assert len(store) == len(JOBS)
    finally:
        ray.shutdown()
        cluster.shutdown()
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    for job, (val, _, steps) in here.items():
        assert there[job][2] == steps
        assert {t: o.loss for t, o in val.items()} == pytest.approx({t: o.loss for t, o in there[job][0].items()})


def test_the_error_for_a_missing_package_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"tagalong\[ray\]"):
        Study(small_problem(), tmp_path, executor="ray")


def test_unknown_executors_and_devices_are_rejected():
    for wrong in ("procesess", 3, "processes:", "processes:-1", "processes:two"):
        with pytest.raises(ValueError, match="`executor` must be a known executor, found "):
            make_executor(wrong)
    for wrong in ("processes:0", "processes:1000000"):
        with pytest.raises(ValueError, match="`workers` must be"):
            make_executor(wrong)
    for wrong in ("gpu9000", "meta", "maia"):
        with pytest.raises(ValueError, match="`device` must be"):
            device_name(wrong)
    own = Serial()
    assert make_executor(own) is own
