"""Attention layers and transformers of torch itself, and attention written by hand."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .case import Case, cross_entropy

T, S, D = 3, 4, 4


class SelfAttention(nn.Module):
    def __init__(self, masked: bool = False, weights: bool = False, **options) -> None:
        super().__init__()
        self.masked, self.weights = masked, weights
        self.attention = nn.MultiheadAttention(D, 2, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        mask = torch.ones(T, T, dtype=torch.bool).triu(1) if self.masked else None
        out, weights = self.attention(x, x, x, attn_mask=mask, need_weights=self.weights)
        return (out, weights) if self.weights else out


class SequenceFirstAttention(nn.Module):
    """The attention sees `[t, k, d]`, the model `[k, t, d]`."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 2, **options)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        return self.attention(x, x, x)[0].transpose(0, 1)


class CrossAttention(nn.Module):
    """Keys and values have their own widths; padding is masked."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 2, kdim=3, vdim=2, batch_first=True)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, padding: Tensor) -> Tensor:
        return self.attention(x, keys, values, key_padding_mask=padding, need_weights=False)[0]


class ScaledDotProduct(nn.Module):
    """Causal attention through the fused function, with learned extra scores."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.scores = nn.Parameter(torch.randn(2, T, T))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, D // 2)).permute(2, 0, 3, 1, 4)
        causal = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        biased = F.scaled_dot_product_attention(q, k, v, attn_mask=self.scores)
        return self.out((causal + biased).transpose(1, 2).flatten(2))


class PooledByQuery(nn.Module):
    """A learned query, the same for all samples, pools a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Parameter(torch.randn(D)), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.key(x).tanh() @ self.query).softmax(1)
        return (weights.unsqueeze(-1) * x).sum(1)


class LabelAttention(nn.Module):
    """Every label attends to a sequence by its row of a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.third = nn.Linear(D, D), nn.Linear(D, 5, bias=False)
        self.out = nn.Linear(D, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh().transpose(1, 2)
        share = (self.third.weight @ x).softmax(2)  # [k, labels, t]
        return (self.out.weight * (share @ x.transpose(1, 2))).sum(2) + self.out.bias


class Encoder(nn.Module):
    def __init__(self, layers: int = 2, **options) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, 2, dim_feedforward=5, batch_first=True, **options)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(D, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


class Transformer(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.core = nn.Transformer(D, 2, 1, 1, 5, dropout=dropout, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(S, dtype=target.dtype)
        return self.core(source, target, tgt_mask=mask)


class DecoderOnEmbeddings(nn.Module):
    """Token and position embeddings, a causal encoder, and a head: a small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(7, D), nn.Parameter(torch.randn(8, D))
        layer = nn.TransformerEncoderLayer(D, 2, 6, dropout=0.0, activation="gelu", norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(D, 7, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = (self.tokens(ids) + self.positions[: ids.shape[1]]).transpose(0, 1)
        mask = torch.full((len(x), len(x)), float("-inf"), dtype=x.dtype).triu(1)
        return self.head(self.layers(x, mask=mask)).transpose(0, 1)


def _next_token(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


def _sequences(draw, k):
    return (draw.normal(k, T, D),)


def _labelled(draw, k):
    return draw.normal(k, T, D), draw.ids(3, k)


def _pairs(draw, k):
    return draw.normal(k, T, D), draw.normal(k, S, D)


def _keys_and_values(draw, k):
    # the first position is never padding, for a softmax over nothing is nan
    padding = draw.mask(k, S) & torch.tensor([False, True, True, True])
    return draw.normal(k, T, D), draw.normal(k, S, 3), draw.normal(k, S, 2), padding


CASES = (
    Case("self_attention", SelfAttention, _sequences),
    Case("self_attention_with_weights", lambda: SelfAttention(weights=True), _sequences),
    Case("causal_self_attention", lambda: SelfAttention(masked=True, bias=False), _sequences),
    Case(
        "self_attention_with_dropout", lambda: SelfAttention(dropout=0.3), _sequences, random=True
    ),
    Case(
        "self_attention_with_learned_key",
        lambda: SelfAttention(add_bias_kv=True, add_zero_attn=True),
        _sequences,
    ),
    Case("sequence_first_attention", SequenceFirstAttention, _sequences),
    # the layer rejects an empty batch of keys
    Case("cross_attention", CrossAttention, _keys_and_values, sizes=(1, 2, 3, 8)),
    Case("fused_attention", ScaledDotProduct, _sequences),
    Case("pooled_by_learned_query", PooledByQuery, _sequences),
    Case("label_attention", LabelAttention, _sequences),
    Case("transformer_encoder", lambda: Encoder(dropout=0.0), _labelled, cross_entropy),
    Case(
        "transformer_encoder_norm_first",
        lambda: Encoder(dropout=0.0, norm_first=True, activation="gelu", bias=False),
        _labelled,
        cross_entropy,
    ),
    Case(
        "transformer_encoder_with_dropout",
        lambda: Encoder(1),
        _labelled,
        cross_entropy,
        random=True,
    ),
    Case("transformer", lambda: Transformer(0.0), _pairs),
    Case("transformer_with_dropout", lambda: Transformer(0.1), _pairs, random=True),
    Case(
        "small_language_model",
        DecoderOnEmbeddings,
        lambda draw, k: (draw.ids(7, k, 6),),
        _next_token,
    ),
)
