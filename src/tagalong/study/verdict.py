"""The verdict of a study: which models to use, how good they are, how much better than the obvious, and how surely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tagalong.documents import NumberOrNull
from tagalong.files import json_safe
from tagalong.group import Group

from .noise import Interval
from .records import Label
from .words import WIDTH, verdict_text


@dataclass(frozen=True)
class ServingCost:
    """What answering takes, which is counted and never timed.

    Attributes:
        operations: multiply-adds and visited tree nodes per predicted row.
        parameters: the number of parameters.
        training: the optimizer steps of training, in trainings of one plain network.
    """

    operations: float
    parameters: float = 0.0
    training: float = 0.0

    @property
    def order(self) -> tuple[float, float, float]:
        """The key by which ways are sorted, from cheap to expensive."""
        return self.operations, self.parameters, self.training


@dataclass(frozen=True)
class JudgedWay:
    """A way of using models, and what test rows say about the networks that you get.

    Attributes:
        label: the method and its budget.
        models: the number of models in use.
        seed: the seed of the networks that you get: the best one on validation rows.
        groups: these networks.
        validation: the mean skill on validation rows, over all seeds.
        skill: the mean skill of these networks on test rows.
        gain: by how much it exceeds that of the reference.
        cost: what answering takes.
        relative_cost: the operations per row, in multiples of the reference's, or None if unknown.
        deciding: the cost of choosing the models, in trainings of one plain network.
        honest: whether the way was chosen without test rows and may be recommended.
    """

    label: Label
    models: int
    seed: int
    groups: tuple[Group, ...]
    validation: NumberOrNull
    skill: NumberOrNull
    gain: Interval
    cost: ServingCost
    relative_cost: float | None
    deciding: float
    honest: bool = True


@dataclass(frozen=True)
class TaskAnswer:
    """What the recommended models do for a task, on test rows.

    Attributes:
        task: the name of the task.
        before: the skill of the reference.
        after: the skill of the recommended models.
        change: `after` minus `before`, from paired rows.
        error_before: the error of the reference in the task's own measure.
        error_after: the error of the recommended models.
        labels: the number of test rows with a label, or 1 if only mean losses are known.
    """

    task: str
    before: Interval
    after: Interval
    change: Interval
    error_before: NumberOrNull
    error_after: NumberOrNull
    labels: int

    @property
    def learnt(self) -> bool:
        """Whether the skill of the recommended models is above that of a constant beyond noise."""
        return self.after.above_zero


@dataclass(frozen=True)
class Verdict:
    """What to use, how good it is, how much better than the obvious, at what cost, and how surely.

    The recommendation uses validation rows only: the cheapest way whose mean skill falls short of the best one's by no
    more than the paired standard error of their difference, bounded to 0.3 to 1 point. Test rows then report the skill
    of the very models that you get, and their gain over the reference, whose interval accounts for the finite number of
    test rows and for the reference's seeds. With folds, all rows are tested, each in one fold, by networks that did not
    see it; you get the networks of the first fold. If only mean losses are known, all numbers are means over seeds, and
    intervals account for the seeds alone.

    Attributes:
        recommended: the method and budget to use.
        reference: the method and budget that everything is compared with, fixed before training.
        chosen: the recommended way.
        reference_skill: the mean skill of the reference on test rows, over its seeds.
        by_budget: the best way of using each number of models, on validation rows, or the recommended one.
        ways: all ways of using models.
        per_task: skill and error of each task, before and after.
        worse: the tasks that get worse beyond noise, corrected for their number.
        copies: the copies of one network that groups are compared with, or None if no groups are recommended.
        over_copies: the gain over these copies.
        own_error: the way that wins by the tasks' own errors on test rows, if it is another.
        cheaper: a cheaper way that is ahead on test rows beyond noise, if there is one.
        relative: the tasks whose skill is relative to the reference's loss, since they have no constant.
        left_out: tasks with too few labelled validation rows to have a vote.
        notes: what else to know: few seeds, late epochs, diverged networks.
        tried: the number of ways that were compared.
        seeds: the number of seeds that judge the recipe: fresh ones if there are any.
        folds: the number of folds, each of which chose and tested on its own, or 1 with one split.
        picked_in: the number of folds whose validation rows alone recommend the same.
        recipe: the gain of the same plan with fresh seeds that chose nothing, if there are any.
        use: the Python expression that loads the networks and predicts, or None if they are not saved.
    """

    recommended: Label
    reference: Label
    chosen: JudgedWay
    reference_skill: NumberOrNull
    by_budget: Mapping[int, JudgedWay]
    ways: tuple[JudgedWay, ...]
    per_task: tuple[TaskAnswer, ...]
    worse: tuple[str, ...] = ()
    copies: Label | None = None
    over_copies: Interval | None = None
    own_error: Label | None = None
    cheaper: Label | None = None
    relative: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tried: int = 1
    seeds: int = 1
    folds: int = 1
    picked_in: int = 1
    recipe: Interval | None = None
    use: str | None = None

    @property
    def groups(self) -> tuple[Group, ...]:
        """The networks to use."""
        return self.chosen.groups

    @property
    def skill(self) -> float:
        """The mean skill of the recommended models on test rows."""
        return self.chosen.skill

    @property
    def gain(self) -> Interval:
        """By how much the recommended models exceed the reference on test rows, in mean skill."""
        return self.chosen.gain

    @property
    def worth_it(self) -> bool:
        """Whether test rows or, if their noise is unknown, fresh seeds show that the gain is above zero."""
        if self.gain.low is None and self.recipe is not None:
            return self.recipe.above_zero
        return self.gain.above_zero

    @property
    def better_than_copies(self) -> bool | None:
        """Whether groups beat copies beyond noise, or None if no groups are recommended or no copies were trained."""
        return None if self.over_copies is None else self.over_copies.above_zero

    def way(self, label: Label) -> JudgedWay | None:
        """Returns what is known about a method and budget, or None if it was not compared."""
        return next((way for way in self.ways if way.label == label), None)

    def to_text(self, width: int = WIDTH) -> str:
        """Says what to use, how good it is, how much better than the reference, and how surely.

        Args:
            width: the maximum line length.
        """
        return verdict_text(self, width)

    def __str__(self) -> str:
        return self.to_text()

    def to_document(self) -> dict[str, Any]:
        """Converts all fields and the text to a JSON document."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["by_budget"] = {str(models): way for models, way in self.by_budget.items()}
        summary = {"skill": self.skill, "gain": self.gain, "worth_it": self.worth_it, "text": str(self)}
        document: dict[str, Any] = json_safe({**values, **summary})
        return document
