"""Views between a parameter and its site."""

from torch import fx

from passes.sites import UseGroup
from passes.targets import target_name

# Views that show every element of a parameter at most once: they keep inner products.
_ISOMETRIES = {"t", "transpose", "permute", "view", "reshape", "unsqueeze", "squeeze", "flatten",
               "unflatten", "select", "slice", "narrow", "alias", "contiguous", "clone", "chunk",
               "split", "split_with_sizes", "unbind", "tensor_split", "numpy_T", "mT", "movedim",
               "getitem", "view_as", "reshape_as", "_unsafe_view", "swapaxes"}  # fmt: skip


def is_isometric(group: UseGroup) -> bool:
    """Whether the group is one use behind views alone, which keep inner products."""
    return len(group.uses) == 1 and all(target_name(n) in _ISOMETRIES for n in group.region)


def chain(group: UseGroup) -> tuple:
    """The views between a use and its site; equal for `x @ w.t()` and `y @ w.t()`."""
    views = []
    for node in group.region:
        plain = fx.node.map_arg((node.args, node.kwargs), lambda n: None)
        views.append((node.target, str(plain)))
    return tuple(views)
