"""What a node calls: an operator of PyTorch, one of the user's, or a Python callable."""

from torch import fx
from torch._ops import OpOverload

from passes.autocast import UnderAutocast
from passes.opaque import Hooked, Opaque


def overload(node: fx.Node) -> OpOverload | None:
    """The operator that a node calls, under autocast or not; None if it calls something else."""
    target = node.target.target if isinstance(node.target, UnderAutocast) else node.target
    return target if isinstance(target, OpOverload) else None


def target_name(node: fx.Node) -> str:
    """What to call the operator or the callable of a node: `linear`, `Round`."""
    return getattr(node.target, "_opname", None) or getattr(
        node.target, "__name__", str(node.target)
    )


def has_foreign_backward(node: fx.Node) -> bool:
    """Whether the backward of a node is the user's own, which vmap may not be able to batch."""
    called = overload(node)
    if called is not None:
        return called.namespace not in ("aten", "prims")
    target = node.target.target if isinstance(node.target, UnderAutocast) else node.target
    return isinstance(target, Opaque | Hooked)
