"""Mistakes that mypy must find in a user's script: if our types were `Any`, it would find none of them."""

from tagalong import Affinity, AffinityMeter, Results, select_groups


def mistakes(affinity: Affinity, results: Results) -> int:
    select_groups(affinity, budget="two")  # mistake: arg-type
    print(select_groups(affinity, budget=2).grops)  # mistake: attr-defined
    AffinityMeter(evry=5)  # mistake: call-arg
    tasks: list[int] = affinity.tasks  # mistake: assignment
    print(tasks)
    return results.verdict()  # mistake: return-value
