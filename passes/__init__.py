"""Passes of fxgram: graph in, graph out, torch alone. `README.md` lists their invariants."""

from passes.annotations import SampleAxis as SampleAxis
from passes.annotations import facts as facts
from passes.annotations import note as note
from passes.annotations import operator_name as operator_name
from passes.annotations import source_line as source_line
from passes.batch_axes import batch_axes
from passes.canonicalize import canonicalize
from passes.clean import clean as clean
from passes.codegen import runnable as runnable
from passes.contract import contract as contract
from passes.dead import drop_dead_nodes as drop_dead_nodes
from passes.differentiate import SEEDS as SEEDS
from passes.differentiate import WEIGHTS as WEIGHTS
from passes.differentiate import differentiable_axes as differentiable_axes
from passes.differentiate import differentiate
from passes.differentiate import loss_columns as loss_columns
from passes.differentiate import name_placeholders as name_placeholders
from passes.differentiate import scale_rows as scale_rows
from passes.driver import PassRecord as PassRecord
from passes.driver import copy_graph as copy_graph
from passes.driver import run as run
from passes.factors import Choice as Choice
from passes.factors import Contribution as Contribution
from passes.factors import Factors as Factors
from passes.factors import Kernel as Kernel
from passes.factors import Use as Use
from passes.functionalize import functionalize
from passes.lower import lower
from passes.opaque import Hooked as Hooked
from passes.opaque import Opaque as Opaque
from passes.operands import NotFactored as NotFactored
from passes.operands import Operands as Operands
from passes.partition import GradientPart as GradientPart
from passes.partition import Partition as Partition
from passes.partition import partition as partition
from passes.reach import dependents as dependents
from passes.recompute import recompute
from passes.schedule import merge_masks as merge_masks
from passes.schedule import schedule
from passes.sizes import evaluated as evaluated
from passes.sizes import nbytes as nbytes
from passes.spec import Input as Input
from passes.spec import PassError as PassError
from passes.spec import Spec as Spec
from passes.spec import tensors as tensors
from passes.spell_out import spell_out
from passes.split_uses import split_uses
from passes.targets import has_foreign_backward as has_foreign_backward
from passes.targets import target_name as target_name

PASSES = (
    canonicalize,
    functionalize,
    split_uses,
    spell_out,
    batch_axes,
    differentiate,
    lower,
    contract,
    recompute,
    clean,
    schedule,
)
