"""A model folder small enough for a smoke test: configuration and tokenizer of every layer kind, no weights.

For ``load_format="dummy"``: DeepInfer fills the weights itself. The sizes are the smallest that its kernels' layouts
allow; the text is made of 500 made-up words.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 512
_BAR, _GAP = "\uff5c", "\u2581"  # the signs of the released tokenizer's own tokens
SPECIAL = (
    f"<{_BAR}begin{_GAP}of{_GAP}sentence{_BAR}>",
    f"<{_BAR}end{_GAP}of{_GAP}sentence{_BAR}>",
    f"<{_BAR}{_GAP}pad{_GAP}{_BAR}>",
    "<image>",
)

TEXT: dict[str, Any] = {
    "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0, "num_key_value_heads": 1, "num_hidden_layers": 6,
    "num_nextn_predict_layers": 0, "compress_ratios": [0, 2, 2, 1, 1, 1], "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3, 4], "candidate_source_layer_id": 3, "candidate_topk_blocks": 64, "candidate_block_size": 8,
    "hidden_size": 256, "num_attention_heads": 4, "vocab_size": VOCABULARY, "max_position_embeddings": 4096, "rms_norm_eps": 1e-20,
    "swiglu_limit": 10.0, "tie_word_embeddings": False, "sliding_window": 128, "rope_theta": 10000.0, "compress_rope_theta": 160000.0,
    "rope_scaling": {"original_max_position_embeddings": 1024, "factor": 4, "beta_fast": 32, "beta_slow": 1}, "q_lora_rank": 128,
    "head_dim": 512, "o_lora_rank": 64, "qk_rope_head_dim": 64, "o_groups": 2, "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20,
    "index_topk": 64, "index_n_heads": 32, "index_head_dim": 128, "moe_intermediate_size": 64, "n_routed_experts": 8,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True, "topk_method": "noaux_tc", "dspark_block_size": 5, "dspark_target_layer_ids": [3, 4, 5],
    "dspark_markov_rank": 64, "dspark_noise_token_id": 2, "dspark_n_routed_experts": 8, "dspark_num_experts_per_tok": 2,
    "engram_layer_ids": [1], "engram_max_ngram_size": 3, "engram_vocab_size": 1000, "engram_n_heads": 2, "engram_head_dim": 128,
    "engram_compressed_vocab_size": VOCABULARY, "engram_pad_token_id": 2,
}  # fmt: skip

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": 2, "image_token_id": 3, "tokenizer_compatibility": "native", "text_config": TEXT,
    "quantization_config": {
        "quant_method": "fp8", "expert_dtype": "fp4", "activation_scheme": "dynamic", "weight_block_size": [32, 32], "scale_fmt": "ue8m0",
    },
    "vision_config": {
        "hidden_size": 1024, "downsample_ratio": 3, "patch_size": 14, "max_image_tokens": 64, "min_pixels": 196, "max_wh_ratio": None,
    },
}  # fmt: skip


def write(folder: Path) -> Path:
    """Write config.json, tokenizer.json and tokenizer_config.json into ``folder``; returns it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    words = {word: index for index, word in enumerate((*SPECIAL, *(f"w{i}" for i in range(VOCABULARY - len(SPECIAL)))))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": SPECIAL[0],
                "eos_token": SPECIAL[1],
                "pad_token": SPECIAL[2],
            }
        )
    )
    return folder
