"""Views, slices and entries of parameters, and rows of tables picked by constants or by data."""

# ruff: noqa: E501 (one row a case)

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .case import Case
from .free import Free

T, D = 4, 3


class PositionEmbedding(nn.Module):
    """The positions have no batch axis; they are broadcast over the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(6, D), nn.Embedding(8, D)

    def forward(self, ids: Tensor) -> Tensor:
        return (self.words(ids) + self.positions(torch.arange(ids.shape[1]))).tanh()


class PositionsInOneRow(PositionEmbedding):
    def forward(self, ids: Tensor) -> Tensor:
        return (self.words(ids) + self.positions(torch.arange(ids.shape[1])[None])).tanh()


class ClassLabels(nn.Module):
    """An image generator's condition: one id a sample, added to features."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(5, D), nn.Linear(D, D)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        return self.linear(x).sin() * self.table(label)


class Embeddings(nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(5, D, **options), nn.Linear(D, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.linear(self.table(ids)).sin()


class Bags(nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.bag, self.linear = nn.EmbeddingBag(5, D, **options), nn.Linear(D, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.linear(self.bag(ids)).sin()


class WeightedBags(Bags):
    """The weights of the entries are a parameter, one for each position."""

    def __init__(self) -> None:
        super().__init__(mode="sum")
        self.weights = nn.Parameter(torch.randn(T))

    def forward(self, ids: Tensor) -> Tensor:
        return self.linear(self.bag(ids, per_sample_weights=self.weights.expand(ids.shape))).sin()


class BagsOfSequence(Bags):
    """One sequence of ids, shared as an argument; each sample is a bag that begins somewhere."""

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        return self.linear(self.bag(ids, offsets)).sin()


def _one_sequence(draw, k):
    # the last bag is empty, and so is the second of two that begin alike
    return draw.ids(5, 7), torch.arange(k).mul(3).clamp(max=7)


def _ids(dtype=torch.int64, *dims):
    return lambda draw, k: (draw.ids(5, k, *(dims or (T,)), dtype=dtype),)


def _vectors(draw, k):
    return (draw.normal(k, D),)


def _with_ids(draw, k):
    return draw.normal(k, D), draw.ids(5, k)


def _times_complex(m, x):
    return torch.view_as_real(torch.fft.rfft(x) * torch.view_as_complex(m.w))


def _complex_products(m, x):
    y = torch.complex(x, x.cos()) @ m.w
    return torch.view_as_real((y * m.v.conj()).tanh() * y.abs()).flatten(1)


class ComplexWeights(nn.Module):
    """Parameters that are complex themselves, and one that is real."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(D, 2, dtype=torch.complex64))
        self.v = nn.Parameter(torch.randn(2, dtype=torch.complex64))
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(_complex_products(self, x))


def _case(name, function, draw=_vectors, fallback=False, **shapes):
    return Case(name, lambda: Free(function, **shapes), draw, fallback=fallback)


VIEWS = (
    _case("first_rows", lambda m, x: F.linear(x, m.w[:2]).sin(), w=(5, D)),
    _case("strided_rows", lambda m, x: F.linear(x, m.w[1::2]).sin(), w=(5, D)),
    _case("first_columns", lambda m, x: F.linear(x, m.w[:, :D]).sin(), w=(2, 5)),
    _case("viewed", lambda m, x: F.linear(x, m.w.view(2, D)).sin(), w=(2 * D,)),
    _case("reshaped_after_transpose", lambda m, x: F.linear(x, m.w.t().reshape(2, D)).sin(), w=(2, D)),
    _case("one_chunk", lambda m, x: F.linear(x, m.w.chunk(2)[1]).sin(), w=(4, D)),
    _case("one_of_unequal_splits", lambda m, x: F.linear(x, m.w.split([1, 3])[1]).sin(), w=(4, D)),
    _case("selected_row", lambda m, x: (x * m.w.select(0, 1)).sin(), w=(4, D)),
    _case("single_entry", lambda m, x: (x * m.w[1, 2]).sin(), w=(4, D)),
    _case("unbound_row", lambda m, x: (x * m.w.unbind(0)[0]).sin(), w=(2, D)),
    _case("permuted_and_flipped", lambda m, x: torch.tensordot(x, m.w.permute(2, 0, 1).flip(0), 1).sin(), w=(2, 2, D)),
    _case("diagonal", lambda m, x: (x * m.w.diagonal()).sin(), w=(D, D)),
    _case("diagonal_matrix", lambda m, x: (x @ torch.diag(m.w)).sin(), w=(D,)),
    _case("lower_triangle", lambda m, x: (x @ m.w.tril()).sin(), w=(D, D)),
    _case("squeezed", lambda m, x: (x * m.w.squeeze()).sin(), w=(1, D, 1)),
    _case("as_strided", lambda m, x: F.linear(x, m.w.as_strided((2, D), (1, 1))).sin(), w=(4,)),
    _case("unfolded", lambda m, x: F.linear(x, m.w.unfold(0, D, 1)).sin(), w=(5,)),
    _case("concatenated_weights", lambda m, x: F.linear(x, torch.cat([m.a, m.b])).sin(), a=(2, D), b=(1, D)),
    _case("stacked_vectors", lambda m, x: F.linear(x, torch.stack([m.a, m.b])).sin(), a=(D,), b=(D,)),
    _case("padded_weight", lambda m, x: F.linear(x, F.pad(m.w, (1, 0))).sin(), w=(2, D - 1)),
    _case("concatenated_with_data", lambda m, x: torch.cat([x, m.w.expand(len(x), 2)], 1).sin(), w=(2,)),
    _case("stacked_with_data", lambda m, x: torch.stack([m.w.expand_as(x), x], 1).prod(1).sin(), w=(D,)),
    _case("cumulative_sum_of_parameter", lambda m, x: (x * m.w.cumsum(0)).sin(), w=(D,)),
    _case("cumulative_sum_of_product", lambda m, x: (x * m.w).cumsum(1).sin(), w=(D,)),
    _case("sorted_parameter", lambda m, x: (x * m.w.sort().values).sin(), w=(D,)),
    _case("softmax_of_parameter", lambda m, x: x @ m.w.softmax(0), w=(D, 2)),
)  # fmt: skip

PICKS = (
    _case("constant_indices", lambda m, x: F.linear(x, m.w[torch.tensor([3, 0, 3])]).sin(), w=(4, D)),
    _case("indexed_by_data", lambda m, x, ids: (x * m.w[ids]).sin(), _with_ids, w=(5, D)),
    _case("entries_indexed_by_data", lambda m, x, ids: (x * m.w[ids, :, ids % 2]).sin(), _with_ids, w=(5, D, 2)),
    _case("index_select_by_data", lambda m, x, ids: (x * m.w.index_select(0, ids)).sin(), _with_ids, w=(5, D)),
    _case("columns_selected_by_data", lambda m, x, ids: (x * m.w.index_select(1, ids).t()).sin(), _with_ids, w=(D, 5)),
    _case("neighbouring_dims_indexed_by_data", lambda m, x, ids: (x * m.w[:, ids, ids - 3].t()).sin(), _with_ids, w=(D, 5, 5)),
    _case("gather_along_last_dim", lambda m, x, ids: (x * m.w.gather(1, ids.remainder(4)[None].expand(D, -1)).t()).sin(), _with_ids, w=(D, 4)),
    _case("gather_by_data", lambda m, x, ids: (x * m.w.gather(0, ids[:, None].expand(-1, D))).sin(), _with_ids, w=(5, D)),
    _case("take_by_data", lambda m, x, ids: (x.sum(1) * torch.take(m.w, ids)).sin(), _with_ids, w=(2, D)),
    _case("one_hot_product", lambda m, x, ids: (F.one_hot(ids, 5).to(x.dtype) @ m.w * x).sin(), _with_ids, w=(5, D)),
    _case("functional_embedding", lambda m, x, ids: (x * F.embedding(ids, m.w * 2)).sin(), _with_ids, w=(5, D)),
    _case("expert_weights_by_data", lambda m, x, ids: torch.bmm(m.w[ids], x.unsqueeze(2)).sin(), _with_ids, w=(5, 2, D)),
    _case("data_picked_by_constants", lambda m, x: (x[:, [2, 0, 2]] @ m.w).sin(), w=(D, 2)),
    _case("top_entries_of_a_product", lambda m, x: (x @ m.w).topk(2, dim=1).values.sin(), w=(D, 4)),
    _case("sorted_product", lambda m, x: (x @ m.w).sort(dim=1).values[:, 1:].sin(), w=(D, 4)),
)  # fmt: skip

EMBEDDINGS = (
    Case("embedding", Embeddings, _ids()),
    Case("embedding_of_int32", Embeddings, _ids(torch.int32)),
    Case("embedding_of_one_id", Embeddings, lambda draw, k: (draw.ids(5, k),)),
    Case("embedding_of_id_matrix", Embeddings, _ids(torch.int64, 2, 3)),
    Case("embedding_with_padding", lambda: Embeddings(padding_idx=0), _ids()),
    Case("embedding_with_last_padding", lambda: Embeddings(padding_idx=-1), _ids()),
    # a sample alone has other frequencies
    Case("embedding_scaled_by_frequency", lambda: Embeddings(scale_grad_by_freq=True), _ids(), alone=False),
    # PyTorch's kernel for bags divides by the frequencies of other entries: right is what it gives
    Case("embedding_bag_scaled_by_frequency", lambda: Bags(mode="sum", scale_grad_by_freq=True), _ids(), alone=False, fallback=True),
    Case("embedding_bag_by_offsets_scaled_by_frequency", lambda: BagsOfSequence(mode="mean", scale_grad_by_freq=True), _one_sequence, batch_dim=(None, 0), alone=False, sizes=(1, 2, 3, 8), fallback=True),
    Case("class_labels_of_one_dim", ClassLabels, _with_ids),
    Case("position_embedding", PositionEmbedding, _ids()),
    Case("position_embedding_of_one_row", PositionsInOneRow, _ids()),
    Case("embedding_bag_sum", lambda: Bags(mode="sum"), _ids()),
    Case("embedding_bag_mean", lambda: Bags(mode="mean", padding_idx=1), _ids()),
    Case("embedding_bag_with_learned_weights", WeightedBags, _ids()),
    Case("embedding_bag_max_with_padding", lambda: Bags(mode="max", padding_idx=1), _ids(), sizes=(1, 2, 3, 8)),
    Case("embedding_bag_by_offsets", lambda: BagsOfSequence(mode="mean"), _one_sequence, batch_dim=(None, 0), alone=False, sizes=(1, 2, 3, 8)),
    Case("embedding_bag_by_offsets_with_padding", lambda: BagsOfSequence(mode="sum", padding_idx=2), _one_sequence, batch_dim=(None, 0), alone=False, sizes=(1, 2, 3, 8)),
    Case("embedding_bag_max_by_offsets", lambda: BagsOfSequence(mode="max"), _one_sequence, batch_dim=(None, 0), alone=False, sizes=(1, 2, 3, 8), fallback=True),
    Case("embedding_bag_max", lambda: Bags(mode="max"), _ids(), sizes=(1, 2, 3, 8)),
)  # fmt: skip

COMPLEX = (
    Case("complex_parameters", ComplexWeights, _vectors, fallback=True),
    # the transform rejects an empty batch
    Case(
        "complex_view_of_parameter",
        lambda: Free(_times_complex, w=(2, 2)),
        _vectors,
        sizes=(1, 2, 3, 8),
        fallback=True,
    ),
)

CASES = VIEWS + PICKS + EMBEDDINGS + COMPLEX
