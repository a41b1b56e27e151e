"""The arguments of a step: which are tensors, which of them hold samples, and how many."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import (
    TreeSpec,
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_structure,
    tree_unflatten,
)

from fxgram.autocast import State, ambient
from fxgram.errors import InvalidArgument, InvalidBatch

_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
)


@dataclass(frozen=True)
class Batch:
    """Arguments of one call, flattened."""

    tensors: tuple[torch.Tensor, ...]
    dims: tuple[int | None, ...]  # which dim of the tensor holds the samples, if any
    size: int  # number of samples K; 1 if the losses are coupled
    places: tuple[int, ...]  # of the tensors among the leaves
    plain: tuple[Any, ...]  # all leaves, None for tensors
    tree: TreeSpec
    autocast: State = field(default_factory=ambient)  # blocks that are open around the step

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tensors, as the caller would write them: `args[0]['ids']`."""
        paths, _ = tree_flatten_with_path(self.arguments(self.tensors))
        return tuple(_name(path) for path, leaf in paths if isinstance(leaf, torch.Tensor))

    def arguments(self, tensors: tuple[torch.Tensor, ...]) -> tuple[tuple, dict[str, Any]]:
        """`(args, kwargs)` with other tensors in the places of these."""
        leaves = list(self.plain)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return tree_unflatten(leaves, self.tree)

    @property
    def key(self) -> tuple:
        """What a program is specialised on: all but the number of samples of two or more."""
        size = min(self.size, 2)
        metas = tuple(
            (t.dtype, t.device, *t.shape)
            if d is None
            else (t.dtype, t.device, d, *t.shape[:d], *t.shape[d + 1 :])
            for t, d in zip(self.tensors, self.dims)
        )
        plain = tuple((type(p), p if p == p else "nan") for p in self.plain)
        return size, metas, plain, self.tree, self.autocast


def flatten(args: tuple, kwargs: dict[str, Any], batch_dim: Any) -> Batch:
    """Flatten the arguments of a step and count the samples.

    Raises: InvalidBatch if the tensors disagree on the number of samples, if no tensor holds any,
        or if an argument is neither a tensor, a plain value, nor a registered container of these.
    """
    if type(batch_dim) is int and not kwargs and all(map(_is_tensor, args)):
        leaves, tree = args, _tree_of(len(args))
        dims = [batch_dim] * len(args)
    else:
        leaves, tree = tree_flatten((args, kwargs))
        dims = _dims(batch_dim, args, kwargs)

    def name(place: int) -> str:
        return _name(tree_flatten_with_path((args, kwargs))[0][place][0])

    tensors, found, places, plain = [], [], [], []
    for place, (leaf, dim) in enumerate(zip(leaves, dims, strict=True)):
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
            found.append(_dim(leaf, dim, name, place))
            places.append(place)
            plain.append(None)
        elif isinstance(leaf, _PLAIN):
            plain.append(leaf)
        else:
            raise InvalidBatch(
                f"`{name(place)}` is a {type(leaf).__name__}. Pass tensors (torch.as_tensor makes "
                "one of an array), plain values, or containers "
                "of these; register your own container with "
                "torch.utils._pytree.register_pytree_node."
            )
    sizes = {} if batch_dim is None else {
        at: t.shape[d] for at, t, d in zip(places, tensors, found) if d is not None
    }  # fmt: skip
    if batch_dim is not None and not sizes:
        raise InvalidBatch("No tensor of the batch holds samples: pass one with a batch dimension.")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"`{name(at)}` has {size}" for at, size in sizes.items())
        raise InvalidBatch(
            f"The tensors of the batch disagree on the number of samples: {listed}. "
            "Name those that all samples share with a None in batch_dim, e.g. batch_dim=(0, None)."
        )
    size = next(iter(sizes.values()), 1)
    return Batch(tuple(tensors), tuple(found), size, tuple(places), tuple(plain), tree)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


@functools.lru_cache(maxsize=64)
def _tree_of(count: int) -> TreeSpec:
    """The structure of a call with tensors alone."""
    return tree_structure(((None,) * count, {}))


def _dim(
    tensor: torch.Tensor, dim: int | None, name: Callable[[int], str], place: int
) -> int | None:
    """The dim that holds the samples, from 0; tensors without dims are shared."""
    if dim is None or tensor.ndim == 0:
        return None
    if not -tensor.ndim <= dim < tensor.ndim:
        raise InvalidBatch(
            f"`{name(place)}` has {tensor.ndim} dims, batch_dim says that dim {dim} holds samples."
        )
    return dim % tensor.ndim


def _name(path: tuple) -> str:
    """`args[0]['ids']` or `kwargs['mask']`."""
    head, *rest = path
    return ("args" if head.idx == 0 else "kwargs") + keystr(tuple(rest))


def _dims(batch_dim: Any, args: tuple, kwargs: dict[str, Any]) -> list[int | None]:
    """The batch dim of every leaf; a tree of dims may end above the leaves, as vmap's in_dims."""
    shared = batch_dim if isinstance(batch_dim, int | None) else 0
    keywords = [shared] * tree_structure(kwargs).num_leaves
    if isinstance(batch_dim, int) or batch_dim is None:
        return [batch_dim] * tree_structure(args).num_leaves + keywords
    if not isinstance(batch_dim, tuple | list) or len(batch_dim) != len(args):
        raise InvalidBatch(
            f"batch_dim={batch_dim!r} does not fit {len(args)} positional arguments: give one "
            "entry for each."
        )
    return _spread(tuple(batch_dim), args) + keywords


def _spread(dims: Any, tree: Any) -> list[int | None]:
    if isinstance(dims, int) or dims is None:
        return [dims] * tree_structure(tree).num_leaves
    if isinstance(dims, dict) and isinstance(tree, dict) and dims.keys() == tree.keys():
        return [d for key in tree for d in _spread(dims[key], tree[key])]
    if isinstance(dims, tuple | list) and isinstance(tree, tuple | list) and len(dims) == len(tree):
        return [d for one, part in zip(dims, tree) for d in _spread(one, part)]
    raise InvalidBatch(f"batch_dim entry {dims!r} does not fit an argument of the batch.")


def validate_batch_dim(batch_dim: Any) -> None:
    """Check the option of `compile`.

    Raises: InvalidArgument for what is no dim.
    """
    for dim in torch.utils._pytree.tree_leaves(batch_dim):
        if dim is not None and (not isinstance(dim, int) or isinstance(dim, bool)):
            raise InvalidArgument(
                f"batch_dim={batch_dim!r}: expected a dim, or a tree of dims and None."
            )
