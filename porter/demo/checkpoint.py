"""Tiny checkpoints of DeepSeek-V4.1 in Hugging Face layout, made from a seed.

``RELEASED`` is what the engine reads: e4m3 weights in 32 x 32 blocks and e2m1 experts in 1 x 32, ue8m0 scales.
``BF16`` and ``FP32`` hold the same numbers without blocks, exactly, for other implementations.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path

import numpy as np

from porter.demo import corpus, layout, rounding, tensorfile
from porter.demo.bpe import Tokenizer, train
from porter.demo.layout import Item, Kind
from porter.demo.tensorfile import Tensor
from porter.demo.weights import Recipe, recipe

MODEL_FILE, VISION_FILE, INDEX_FILE = "model.safetensors", "vision.safetensors", "model.safetensors.index.json"


class Variant(StrEnum):
    """Number format of the weights."""

    RELEASED = "released"
    BF16 = "bf16"
    FP32 = "fp32"


def write(folder: Path, *, seed: int = 0, variant: Variant = Variant.RELEASED) -> Path:
    """Write a whole checkpoint into ``folder`` (made where it is missing); returns it.

    The same seed and variant give the same bytes on every machine. The vision tower, which the engine insists on and
    text never reaches, is a file of zeros that takes no room on disk; only ``RELEASED`` has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train(corpus.TEXT, layout.VOCABULARY)
    for name, text in tokenizer.files().items():
        (folder / name).write_text(text, encoding="utf-8")
    files = {MODEL_FILE: dict(_tensors(recipe(seed, tokenizer, corpus.TEXT), variant))}
    if variant is Variant.RELEASED:
        files[VISION_FILE] = {item.name: Tensor("BF16", item.shape, None) for item in layout.vision_items()}
    index = {name: file for file, tensors in files.items() for name in tensors}
    size = sum(tensor.size for tensors in files.values() for tensor in tensors.values())
    _write_json(folder / INDEX_FILE, {"metadata": {"total_size": size}, "weight_map": dict(sorted(index.items()))})
    for file, tensors in files.items():
        tensorfile.write(folder / file, tensors)
    dtype = "float32" if variant is Variant.FP32 else "bfloat16"
    _write_json(folder / "config.json", layout.config(released=variant is Variant.RELEASED, dtype=dtype, compressed=tokenizer.compressed_size))
    return folder


def tokenizer() -> Tokenizer:
    """The checkpoints' tokenizer."""
    return train(corpus.TEXT, layout.VOCABULARY)


def _tensors(recipe: Recipe, variant: Variant) -> Iterator[tuple[str, Tensor]]:
    for item in layout.items():
        values = recipe.values(item)
        match item.kind:
            case Kind.F32:
                yield item.name, Tensor("F32", item.shape, values.astype("<f4").tobytes())
            case Kind.BF16:
                rounded = rounding.bfloat16(values)
                yield item.name, _plain(item, rounding.from_bfloat16(rounded), variant)
            case _:
                block = (32, 32) if item.kind is Kind.BLOCK_FP8 else (1, 32)
                magnitudes = rounding.E2M1 if item.kind is Kind.EXPERT_FP4 else rounding.E4M3
                scaled = rounding.quantised(values, block, magnitudes)
                if variant is Variant.RELEASED:
                    yield from _blocks(item, scaled)
                else:
                    yield item.name, _plain(item, scaled.values, variant)


def _plain(item: Item, values: rounding.Values, variant: Variant) -> Tensor:
    if variant is Variant.FP32:
        return Tensor("F32", item.shape, values.astype("<f4").tobytes())
    return Tensor("BF16", item.shape, rounding.bfloat16(values).astype("<u2").tobytes())


def _blocks(item: Item, scaled: rounding.Scaled) -> Iterator[tuple[str, Tensor]]:
    if item.kind is Kind.EXPERT_FP4:
        codes, dtype = rounding.packed(scaled.codes), "I8"
    else:
        codes, dtype = scaled.codes, "F8_E4M3"
    yield item.name, Tensor(dtype, codes.shape, np.ascontiguousarray(codes).tobytes())
    scale = item.name.removesuffix(".weight") + ".scale"
    yield scale, Tensor("F8_E8M0", scaled.exponents.shape, np.ascontiguousarray(scaled.exponents).tobytes())


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def sizes(folder: Path) -> Mapping[str, int]:
    """Bytes that each file takes on disk."""
    taken: Counter[str] = Counter()
    for path in sorted(folder.iterdir()):
        if path.is_file():
            taken[path.name] = path.stat().st_blocks * 512
    return taken
