"""A causal language model: a Transformer's decoder alone (Radford et al. 2019, GPT-2)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Causal attention and a feed-forward network, each behind a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: Tensor) -> Tensor:
        """Mix each position with those before it: [k,s,d] -> [k,s,d]."""
        heads = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # [k,s,3,h,d/h]
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # [k,h,s,d/h]
        return self.out(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x))))


class LanguageModel(nn.Module):
    """Score the next token at every position: [k,s] -> [k,s,v]. No weight is shared."""

    def __init__(
        self, vocabulary: int = 1000, length: int = 128, width: int = 384, layers: int = 4
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads=6) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        # One row of positions per sample: Opacus wants the samples on the first axis of any layer.
        places = torch.arange(tokens.shape[1], device=tokens.device).repeat(len(tokens), 1)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(places))))
