"""Take single samples out of a batch."""

from typing import Any

from torch import Tensor


def one_sample(batch: Any, batch_dim: Any, k: int) -> Any:
    """Return sample `k` of the batch as a batch of one; shared arguments stay whole."""
    if isinstance(batch, Tensor):
        shared = batch_dim is None or batch.dim() == 0
        return batch if shared else batch.narrow(batch_dim, k, 1)
    if isinstance(batch, dict):
        dims = batch_dim if isinstance(batch_dim, dict) else dict.fromkeys(batch, batch_dim)
        return {key: one_sample(value, dims[key], k) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        dims = batch_dim if isinstance(batch_dim, (tuple, list)) else [batch_dim] * len(batch)
        return type(batch)(one_sample(v, d, k) for v, d in zip(batch, dims, strict=True))
    return batch
