"""A grouping in a notebook."""

from __future__ import annotations

from tagalong._html import join, table, tag

from ._grouping import Grouping
from ._grouping_text import remarks, summary


def html_table(grouping: Grouping) -> str:
    """One row per network, then what else there is to say."""
    rows = [
        [
            number,
            ", ".join(sorted(group.serves)),
            ", ".join(sorted(group.helpers)) or "–",
            f"{sum(grouping.per_task[task] for task in group.serves):.4g}",
        ]
        for number, group in enumerate(grouping.groups, 1)
    ]
    made = table(["network", "serves", "helped by", "score"], rows, caption=summary(grouping))
    return join([made, *(tag("div", tag("small", remark)) for remark in remarks(grouping))])
