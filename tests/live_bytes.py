"""Which of the tensors that were made in a block are still alive."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Remember every storage that an operator returned in this block, and who still is alive."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        old = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if _dense(t)}
        result = func(*args, **(kwargs or {}))
        for tensor in filter(_dense, tree_leaves(result)):
            storage = tensor.untyped_storage()
            if storage._cdata not in old:
                self._seen[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return result

    def count(self) -> int:
        """Return the bytes that are alive now."""
        return sum(size for reference, size in self._seen.values() if not reference.expired())


def _dense(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided
