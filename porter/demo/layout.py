"""The tiny DeepSeek-V4.1: its configuration, and the name, shape and kind of every tensor.

The sizes are the smallest that DeepInfer's layouts allow on a device. The six layers are, in order: window only; a ratio-2 source
of keys and of index (with Engram before it); a ratio-2 layer that reuses both; a ratio-1 source that also chooses
candidate blocks; a ratio-1 layer with an index of its own inside the candidates; a ratio-1 layer that reuses that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from porter.demo.bpe import BOS, EOS, IMAGE, PAD

VOCABULARY = 512
HIDDEN = 256
LAYERS = 6
HEADS, HEAD_DIM = 4, 512
Q_RANK, O_RANK, O_GROUPS = 128, 128, 2
STREAMS = 4
INDEX_HEADS, INDEX_DIM = 32, 128
EXPERTS, EXPERTS_PER_TOKEN, EXPERT_WIDTH = 8, 2, 128
RATIOS = (0, 2, 2, 1, 1, 1)
KV_SOURCES, INDEX_SOURCES = (1, 3), (1, 3, 4)
ENGRAM_LAYERS, NGRAM, ENGRAM_HEADS, ENGRAM_DIM, ENGRAM_ROWS = (1,), 3, 2, 128, 1000

# The vision tower's sizes are constants of the engine.
VISION_WIDTH, VISION_DEPTH, VISION_MLP, PATCH, MERGED = 1024, 32, 2816, 14, 3


class Kind(StrEnum):
    """How a tensor is stored in the released format."""

    BLOCK_FP8 = "e4m3, a ue8m0 scale for 32 x 32"
    EXPERT_FP4 = "e2m1, a ue8m0 scale for 1 x 32"
    TABLE_FP8 = "e4m3, a ue8m0 scale for 1 x 32"
    BF16 = "bfloat16"
    F32 = "float32"
    ZEROS = "bfloat16, all zero"


@dataclass(frozen=True)
class Item:
    """One tensor by its Hugging Face name. ``layer`` is None outside the layers."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    layer: int | None = None


def engram_primes() -> tuple[int, ...]:
    """Rows of each head's part of the n-gram tables, by layer, n-gram and head: primes, each used once."""
    found: list[int] = []
    for _ in ENGRAM_LAYERS:
        for _ in range(NGRAM - 1):
            candidate = ENGRAM_ROWS
            for _ in range(ENGRAM_HEADS):
                while candidate in found or any(candidate % d == 0 for d in range(2, int(candidate**0.5) + 1)):
                    candidate += 1
                found.append(candidate)
    return tuple(found)


def items() -> Iterator[Item]:
    """Every tensor of the language model."""
    yield Item("embed.weight", (VOCABULARY, HIDDEN), Kind.BF16)
    for layer in range(LAYERS):
        for name, shape, kind in _layer(layer):
            yield Item(f"layers.{layer}.{name}", shape, kind, layer)
    yield Item("norm.weight", (HIDDEN,), Kind.BF16)
    yield Item("head.weight", (VOCABULARY, HIDDEN), Kind.BF16)


def _layer(layer: int) -> Iterator[tuple[str, tuple[int, ...], Kind]]:
    mixes = (2 + STREAMS) * STREAMS
    for part in ("attn", "ffn"):
        yield f"hc_{part}_base", (mixes,), Kind.F32
        yield f"hc_{part}_fn", (mixes, STREAMS * HIDDEN), Kind.F32
        yield f"hc_{part}_scale", (3,), Kind.F32
        yield f"{part}_norm.weight", (HIDDEN,), Kind.BF16
    yield "attn.attn_sink", (HEADS,), Kind.F32
    yield "attn.wq_a.weight", (Q_RANK, HIDDEN), Kind.BLOCK_FP8
    yield "attn.q_norm.weight", (Q_RANK,), Kind.BF16
    yield "attn.wq_b.weight", (HEADS * HEAD_DIM, Q_RANK), Kind.BLOCK_FP8
    yield "attn.wkv.weight", (HEAD_DIM, HIDDEN), Kind.BLOCK_FP8
    yield "attn.kv_norm.weight", (HEAD_DIM,), Kind.BF16
    yield "attn.wo_a.weight", (O_GROUPS * O_RANK, HEADS // O_GROUPS * HEAD_DIM), Kind.BLOCK_FP8
    yield "attn.wo_b.weight", (HIDDEN, O_GROUPS * O_RANK), Kind.BLOCK_FP8
    if layer in KV_SOURCES:
        yield "attn.compressor.wkv.weight", (HEAD_DIM, HIDDEN), Kind.BF16
        if RATIOS[layer] > 1:
            yield "attn.compressor.wgate.weight", (HEAD_DIM, HIDDEN), Kind.BF16
        yield "attn.compressor.norm.weight", (HEAD_DIM,), Kind.BF16
        yield "attn.indexer.wk.weight", (INDEX_DIM, HEAD_DIM), Kind.BF16
        yield "attn.indexer.k_norm.weight", (INDEX_DIM,), Kind.BF16
    if layer in INDEX_SOURCES:
        yield "attn.indexer.wq_b.weight", (INDEX_HEADS * INDEX_DIM, Q_RANK), Kind.BLOCK_FP8
        yield "attn.indexer.weights_proj.weight", (INDEX_HEADS, HIDDEN), Kind.BF16
    yield "ffn.gate.weight", (EXPERTS, HIDDEN), Kind.BF16
    yield "ffn.gate.bias", (EXPERTS,), Kind.F32
    yield "ffn.gate.bias_vl", (EXPERTS,), Kind.F32
    for expert in ("shared_experts", *(f"experts.{index}" for index in range(EXPERTS))):
        kind = Kind.BLOCK_FP8 if expert == "shared_experts" else Kind.EXPERT_FP4
        for part in ("w1", "w3"):
            yield f"ffn.{expert}.{part}.weight", (EXPERT_WIDTH, HIDDEN), kind
        yield f"ffn.{expert}.w2.weight", (HIDDEN, EXPERT_WIDTH), kind
    if layer in ENGRAM_LAYERS:
        width = (NGRAM - 1) * ENGRAM_HEADS * ENGRAM_DIM
        yield "engram.embed.weight", (sum(engram_primes()), ENGRAM_DIM), Kind.TABLE_FP8
        yield "engram.wkv.weight", ((STREAMS + 1) * HIDDEN, width), Kind.BLOCK_FP8
        yield "engram.q_weight", (STREAMS, HIDDEN), Kind.BF16
        yield "engram.k_weight", (STREAMS, HIDDEN), Kind.BF16


def vision_items() -> Iterator[Item]:
    """The vision tower, which the engine always loads and which text never reaches: zeros."""
    shapes: dict[str, tuple[int, ...]] = {
        "image_start": (HIDDEN,), "image_end": (HIDDEN,), "image_newline": (HIDDEN,),
        "vision.patch_embed.proj.weight": (VISION_WIDTH, 3 * PATCH * PATCH),
        "vision.patch_embed.proj.bias": (VISION_WIDTH,),
        "vision.norm.weight": (VISION_WIDTH,),
        "aligner.w1.weight": (HIDDEN, VISION_WIDTH * MERGED * MERGED), "aligner.w1.bias": (HIDDEN,),
        "aligner.w2.weight": (HIDDEN, HIDDEN), "aligner.w2.bias": (HIDDEN,),
    }  # fmt: skip
    block: dict[str, tuple[int, ...]] = {
        "norm1.weight": (VISION_WIDTH,), "norm2.weight": (VISION_WIDTH,),
        "attn.wqkv.weight": (3 * VISION_WIDTH, VISION_WIDTH), "attn.wqkv.bias": (3 * VISION_WIDTH,),
        "attn.wo.weight": (VISION_WIDTH, VISION_WIDTH), "attn.wo.bias": (VISION_WIDTH,),
        "mlp.w1.weight": (2 * VISION_MLP, VISION_WIDTH), "mlp.w2.weight": (VISION_WIDTH, VISION_MLP),
    }  # fmt: skip
    for index in range(VISION_DEPTH):
        shapes.update({f"vision.blocks.{index}.{name}": shape for name, shape in block.items()})
    for name, shape in shapes.items():
        yield Item(name, shape, Kind.ZEROS)


def config(*, released: bool, dtype: str, compressed: int) -> dict[str, Any]:
    """config.json. ``released``: weights in FP8 and FP4, which is what the engine reads; else plain ``dtype``.

    ``compressed``: tokens that the n-gram memory tells apart.
    """
    text: dict[str, Any] = {
        "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0, "num_key_value_heads": 1,
        "num_hidden_layers": LAYERS, "num_nextn_predict_layers": 0, "compress_ratios": list(RATIOS),
        "kv_source_layer_ids": list(KV_SOURCES), "index_source_layer_ids": list(INDEX_SOURCES),
        "candidate_source_layer_id": 3, "candidate_topk_blocks": 64, "candidate_block_size": 8,
        "hidden_size": HIDDEN, "num_attention_heads": HEADS, "vocab_size": VOCABULARY, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-20, "swiglu_limit": 10.0, "tie_word_embeddings": False, "sliding_window": 128,
        "rope_theta": 10000.0, "compress_rope_theta": 160000.0,
        "rope_scaling": {"original_max_position_embeddings": 1024, "factor": 4, "beta_fast": 32, "beta_slow": 1},
        "q_lora_rank": Q_RANK, "head_dim": HEAD_DIM, "o_lora_rank": O_RANK, "qk_rope_head_dim": 64, "o_groups": O_GROUPS,
        "hc_mult": STREAMS, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20,
        "index_topk": 64, "index_n_heads": INDEX_HEADS, "index_head_dim": INDEX_DIM,
        "moe_intermediate_size": EXPERT_WIDTH, "n_routed_experts": EXPERTS, "n_shared_experts": 1,
        "num_experts_per_tok": EXPERTS_PER_TOKEN, "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus",
        "norm_topk_prob": True, "topk_method": "noaux_tc",
        # Required keys of the draft model, which is off.
        "dspark_block_size": 5, "dspark_target_layer_ids": [3, 4, 5], "dspark_markov_rank": 64,
        "dspark_noise_token_id": PAD, "dspark_n_routed_experts": EXPERTS, "dspark_num_experts_per_tok": 2,
        "engram_layer_ids": list(ENGRAM_LAYERS), "engram_max_ngram_size": NGRAM, "engram_vocab_size": ENGRAM_ROWS,
        "engram_n_heads": ENGRAM_HEADS, "engram_head_dim": ENGRAM_DIM,
        "engram_compressed_vocab_size": compressed, "engram_pad_token_id": PAD,
    }  # fmt: skip
    whole: dict[str, Any] = {
        "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": dtype,
        "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, "image_token_id": IMAGE,
        "tokenizer_compatibility": "native", "text_config": text,
        "vision_config": {
            "hidden_size": VISION_WIDTH, "downsample_ratio": MERGED, "patch_size": PATCH, "max_image_tokens": 64,
            "min_pixels": PATCH * PATCH, "max_wh_ratio": None,
        },
    }  # fmt: skip
    if released:
        whole["quantization_config"] = {
            "quant_method": "fp8", "expert_dtype": "fp4", "activation_scheme": "dynamic",
            "weight_block_size": [32, 32], "scale_fmt": "ue8m0",
        }  # fmt: skip
    return whole
