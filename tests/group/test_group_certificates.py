"""Certificates of many tasks are checked without enumerating all groups, and fail if prices are too low."""

import numpy as np
import pytest

from group_oracle import Floats
from tagalong.group import Certificate, check_certificate, select_groups
from tagalong.group.solvers import certificate as certificates
from tagalong.group.solvers.certificate import doubtful_groups


def planted(n: int, noise: float, groups: int) -> Floats:
    random = np.random.default_rng(n)
    place = random.permutation(np.arange(n) % groups)
    return (place[:, None] == place) + noise * random.standard_normal((n, n))


@pytest.mark.parametrize(("n", "groups", "singles"), [(20, 3, True), (26, 4, False), (40, 7, False)])
def test_certificates_of_many_tasks_hold_and_lower_prices_do_not(n: int, groups: int, singles: bool) -> None:
    matrix, names = planted(n, 0.5, groups), list(map(str, range(n)))
    grouping = select_groups(matrix, groups, allow_single=singles)
    certificate = grouping.certificate
    assert grouping.status == "optimal"
    assert certificate is not None
    assert check_certificate(matrix, names, certificate, allow_single=singles)
    assert certificate.bound(groups) == pytest.approx(grouping.value, abs=1e-6)
    tasks = dict(certificate.tasks)
    assert not check_certificate(matrix, names, Certificate(tasks, certificate.network - 1e-6), allow_single=singles)
    cheaper = Certificate(tasks | {"3": tasks["3"] - 1e-5}, certificate.network)
    assert not check_certificate(matrix, names, cheaper, allow_single=singles)


@pytest.mark.parametrize("seed", range(20))
def test_every_group_with_too_much_surplus_is_checked(seed: int) -> None:
    random, n = np.random.default_rng(seed), 8
    scores, prices = random.standard_normal((n, n)), random.normal(0.5, 0.3, n)
    largest, network = n - seed % 4, float(random.uniform(0.2, 1.5))
    everything = np.concatenate(list(certificates._all_groups(n)))
    surplus = certificates._group_surplus(everything, scores, prices, np.eye(n), False, largest)
    earning = {tuple(row) for row in everything[surplus > network].tolist()}
    found = [tuple(row) for some in doubtful_groups(scores, prices, network, largest) for row in some.tolist()]
    assert earning <= set(found)
    assert len(found) == len(set(found))
    assert all(2 <= sum(row) <= largest for row in found)
