"""Trains networks for sets of tasks."""

from tagalong.group import Taught as Taught
from tagalong.score import Score as Score

from .architecture import describe_network as describe_network, rebuild_network as rebuild_network
from .averaging import (
    AVERAGES as AVERAGES,
    AVERAGES_BY_KIND as AVERAGES_BY_KIND,
    Average as Average,
    average_answers as average_answers,
    average_outputs as average_outputs,
)
from .balance import check_rule as check_rule, describe_rule as describe_rule, register_rule as register_rule
from .base_rate import (
    constant_output as constant_output,
    has_constant as has_constant,
)
from .capacity import (
    count_parameters as count_parameters,
    relative_step_cost as relative_step_cost,
    width_of_size as width_of_size,
)
from .chunks import why_not_batched as why_not_batched
from .classical import FITTED as FITTED, why_not_fitted as why_not_fitted
from .column_types import read_columns as read_columns
from .constant import (
    constant_losses as constant_losses,
    constant_scores as constant_scores,
    skill_constants as skill_constants,
    skill_units as skill_units,
)
from .data_checks import check_data as check_data, label_summary as label_summary
from .early_stopping import first_half as first_half, halve_rows as halve_rows
from .engine import Training as Training, train as train, train_many as train_many
from .job import Diverged as Diverged, Job as Job, Trained as Trained
from .losses import mean_loss as mean_loss
from .network import (
    MLP as MLP,
    Encoder as Encoder,
    ModuleFactory as ModuleFactory,
    Network as Network,
    build_network as build_network,
    count_multiplications as count_multiplications,
    feature_count as feature_count,
)
from .piecewise_linear import quantile_edges as quantile_edges
from .preparation import (
    Scaling as Scaling,
    Table as Table,
    load_array as load_array,
    read_preparation as read_preparation,
)
from .problem import Problem as Problem
from .randomness import derive_seed as derive_seed, seeded_rng as seeded_rng
from .recipe import Recipe as Recipe
from .rows import (
    THREADS as THREADS,
    Batch as Batch,
    Reader as Reader,
    Rows as Rows,
    Split as Split,
    StreamedRows as StreamedRows,
    require_in_memory as require_in_memory,
)
from .scoring import (
    average_scores_on as average_scores_on,
    outputs_on as outputs_on,
    outputs_on_rows as outputs_on_rows,
    row_losses_of as row_losses_of,
    score_outputs as score_outputs,
    weighted_losses as weighted_losses,
)
from .skill import (
    mean_skill as mean_skill,
    row_influences as row_influences,
    row_skills as row_skills,
    task_skills as task_skills,
)
from .splitting import PARTS as PARTS
from .tabm import TabM as TabM, TabMHeads as TabMHeads
from .task import Task as Task
from .teaching import (
    can_be_taught as can_be_taught,
    mix_rows as mix_rows,
    mix_targets as mix_targets,
    prepare_students as prepare_students,
    teach as teach,
    teacher_answers as teacher_answers,
)
