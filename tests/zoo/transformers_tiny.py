"""Well-known architectures from the transformers library, tiny and with random weights."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .case import Case

VOCABULARY, CLASSES, T, S = 11, 3, 5, 4


class Logits(nn.Module):
    """Calls a library model with keywords and returns its logits."""

    def __init__(self, core: nn.Module, *names: str, **constants: Any) -> None:
        super().__init__()
        self.core, self.names, self.constants = core.train(), names, constants

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.core(**dict(zip(self.names, inputs, strict=True)), **self.constants).logits


def _gpt2(tied: bool) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=8, n_embd=8, n_layer=2, n_head=2,
        tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return Logits(GPT2LMHeadModel(config), "input_ids", use_cache=False)


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=12, max_position_embeddings=8, num_labels=CLASSES,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return Logits(BertForSequenceClassification(config), "input_ids", "attention_mask")


def _t5(tied: bool) -> nn.Module:
    """Give the untied model its own table per embedding, and its own bias table per layer."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCABULARY, d_model=8, d_kv=4, d_ff=12, num_layers=2, num_heads=2,
        relative_attention_num_buckets=6, relative_attention_max_distance=8, dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)
    if not tied:
        model.shared = nn.Identity()  # never called: the stacks embed
        model.lm_head = nn.Linear(8, VOCABULARY, bias=False)
        model.encoder.embed_tokens = nn.Embedding(VOCABULARY, 8)
        model.decoder.embed_tokens = nn.Embedding(VOCABULARY, 8)
        for stack in (model.encoder, model.decoder):
            for block in stack.block:
                attention = block.layer[0].SelfAttention
                attention.has_relative_attention_bias = True
                attention.relative_attention_bias = nn.Embedding(6, 2)
                attention.register_forward_pre_hook(_compute_own_bias, with_kwargs=True)
    return Logits(model, "input_ids", "decoder_input_ids", use_cache=False)


def _compute_own_bias(_module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    return args, kwargs | {"position_bias": None}


T5_COPIES = {
    "core.encoder.embed_tokens": "core.shared",
    "core.decoder.embed_tokens": "core.shared",
    "core.lm_head": "core.shared",
} | {
    f"core.{stack}.block.1.layer.0.SelfAttention.relative_attention_bias":
    f"core.{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
    for stack in ("encoder", "decoder")
}  # fmt: skip


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=8, intermediate_size=12, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=8,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return Logits(LlamaForCausalLM(config), "input_ids", use_cache=False)


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
        image_size=8, patch_size=4, num_labels=CLASSES,
    )  # fmt: skip
    return Logits(ViTForImageClassification(config), "pixel_values")


def _swin() -> nn.Module:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=16, patch_size=2, embed_dim=4, depths=[2, 1], num_heads=[1, 2], window_size=4,
        mlp_ratio=2.0, num_labels=CLASSES, drop_path_rate=0.0, hidden_dropout_prob=0.0,
    )  # fmt: skip
    return Logits(SwinForImageClassification(config), "pixel_values")


def _convnext() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(
        hidden_sizes=[4, 8], depths=[1, 2], num_stages=2, patch_size=2, num_labels=CLASSES,
        layer_scale_init_value=0.5,
    )  # fmt: skip
    return Logits(ConvNextForImageClassification(config), "pixel_values")


def _resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=4, hidden_sizes=[8, 16], depths=[1, 2], num_labels=CLASSES)
    return Logits(ResNetForImageClassification(config), "pixel_values").eval()


def _next_token(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(ids)[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


def _translation(model: nn.Module, source: Tensor, ids: Tensor) -> Tensor:
    logits = model(source, ids[:, :-1])
    return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


def _labelled(model: nn.Module, *batch: Tensor) -> Tensor:
    *inputs, classes = batch
    return F.cross_entropy(model(*inputs), classes, reduction="none")


def _ids(draw, k):
    return (draw.ids(VOCABULARY, k, T),)


def _masked_ids(draw, k):
    padding = draw.mask(k, T) & (torch.arange(T) > 0)
    return draw.ids(VOCABULARY, k, T), (~padding).long(), draw.ids(CLASSES, k)


def _two_sequences(draw, k):
    return draw.ids(VOCABULARY, k, S), draw.ids(VOCABULARY, k, T)


def _images(pixels: int):
    return lambda draw, k: (draw.normal(k, 3, pixels, pixels), draw.ids(CLASSES, k))


# these compute their norms in float32, whatever the model's dtype
IN_FLOAT32 = {"rtol": 1e-5}
SIZES = {"sizes": (1, 3, 8)}

CASES = (
    Case("gpt2", lambda: _gpt2(True), _ids, _next_token, random=True, **SIZES,
         untied=lambda: _gpt2(False), copies={"core.lm_head": "core.transformer.wte"}),
    Case("bert", _bert, _masked_ids, _labelled, **SIZES),
    Case("t5", lambda: _t5(True), _two_sequences, _translation, **SIZES, **IN_FLOAT32,
         untied=lambda: _t5(False), copies=T5_COPIES),
    Case("llama", _llama, _ids, _next_token, **SIZES, **IN_FLOAT32),
    Case("vit", _vit, _images(8), _labelled, **SIZES),
    Case("swin", _swin, _images(16), _labelled, **SIZES),
    Case("convnext", _convnext, _images(16), _labelled, **SIZES),
    Case("resnet_in_eval_mode", _resnet, _images(32), _labelled, **SIZES),
)  # fmt: skip
