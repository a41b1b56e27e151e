"""Nothing in the zoo takes the fallback for more than 5 % of its parameters, unless it says so."""

import pytest
import torch
from zoo import CASES

import fxgram

AT_MOST = 0.05


def fallback_share(case):
    """Numel of the parameters with a use by the fallback, over the numel of all used ones."""
    step = fxgram.compile(case.make(), case.objective, batch_dim=case.batch_dim, check=False)
    torch.manual_seed(0)
    step(*case.batch(3))
    sizes = {row.parameter: torch.Size(row.shape).numel() for row in step.uses}
    slow = {row.parameter for row in step.uses if row.method == "fallback"}
    return sum(sizes[name] for name in slow) / sum(sizes.values())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rules_cover_the_zoo(case):
    share = fallback_share(case)
    assert (share > AT_MOST) == case.fallback, f"{share:.0%} by the fallback"
