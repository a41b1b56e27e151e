"""Small models named by their difficulty, in families."""

from . import (
    arithmetic,
    attention,
    calls,
    convolution,
    freezing,
    indexing,
    inplace,
    inputs,
    losses,
    nesting,
    norms,
    recurrent,
    reparametrised,
    reuse,
    reuse_loops,
    reuse_views,
    shapes,
    state,
    transformers_tiny,
    vision,
)
from .case import Case as Case

FAMILIES = (
    nesting,
    inputs,
    shapes,
    state,
    calls,
    freezing,
    losses,
    reparametrised,
    reuse,
    reuse_loops,
    reuse_views,
    arithmetic,
    indexing,
    inplace,
    norms,
    attention,
    recurrent,
    convolution,
    vision,
    transformers_tiny,
)
CASES: tuple[Case, ...] = tuple(case for family in FAMILIES for case in family.CASES)
