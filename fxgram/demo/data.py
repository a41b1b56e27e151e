"""scikit-learn's 1797 handwritten digits, which come with the package."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor


@dataclass(frozen=True)
class Digits:
    """Images in [-1, 1], [k,1,8,8], and their classes, [k]."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def batches(self, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the samples in random order; a last batch that is not full is left out."""
        order = torch.randperm(len(self), generator=generator)
        for start in range(0, len(self) - size + 1, size):
            rows = order[start : start + size]
            yield self.x[rows], self.y[rows]

    def sorted_by_class(self, per_class: int) -> tuple[Tensor, Tensor]:
        """Return the first `per_class` samples of each class, class after class."""
        rows = torch.cat([(self.y == c).nonzero()[:per_class, 0] for c in range(10)])
        return self.x[rows], self.y[rows]


def load(seed: int, test_share: float = 0.2) -> tuple[Digits, Digits]:
    """Return a training and a test set with the same share of every class."""
    images, classes = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        images, classes, test_size=test_share, stratify=classes, random_state=seed
    )
    return _digits(x_train, y_train), _digits(x_test, y_test)


def _digits(images, classes) -> Digits:
    x = torch.as_tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
    return Digits(x, torch.as_tensor(classes, dtype=torch.int64))
