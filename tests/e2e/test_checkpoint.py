"""The tiny checkpoint: the same bytes from the same seed, one set of numbers in three formats, a real tokenizer."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from porter.demo import checkpoint, corpus, layout, rounding
from porter.demo.bpe import BOS, EOS, IMAGE, PAD, SPECIAL, train
from porter.demo.checkpoint import Variant


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Variant, Path]:
    root = tmp_path_factory.mktemp("variants")
    return {variant: checkpoint.write(root / variant, variant=variant) for variant in Variant}


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_the_same_seed_gives_the_same_bytes(folders: dict[Variant, Path], tmp_path: Path) -> None:
    first = _digests(folders[Variant.RELEASED])
    assert _digests(checkpoint.write(tmp_path / "again")) == first
    other = _digests(checkpoint.write(tmp_path / "other", seed=1))
    assert {name for name in first if first[name] != other[name]} == {"model.safetensors"}


def test_a_second_write_into_the_same_folder_leaves_no_rest(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "a", variant=Variant.FP32)
    checkpoint.write(tmp_path / "a", variant=Variant.BF16)
    assert _digests(tmp_path / "a") == _digests(checkpoint.write(tmp_path / "b", variant=Variant.BF16))


def test_it_is_a_few_megabytes_on_disk(folders: dict[Variant, Path]) -> None:
    taken = checkpoint.sizes(folders[Variant.RELEASED])
    assert sum(taken.values()) < 16e6
    assert taken["vision.safetensors"] < 1e6 < (folders[Variant.RELEASED] / "vision.safetensors").stat().st_size


def _plain(folder: Path) -> dict[str, torch.Tensor]:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _dequantised(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The released tensors' values, from the formats' definitions and torch's own types."""
    codes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    values = {}
    for name, tensor in tensors.items():
        if name.endswith(".scale"):
            continue
        scale = tensors.get(name.removesuffix(".weight") + ".scale")
        if scale is None:
            values[name] = tensor.float()
            continue
        assert scale.dtype == torch.float8_e8m0fnu
        if tensor.dtype == torch.int8:
            low, high = tensor.view(torch.uint8) & 15, tensor.view(torch.uint8) >> 4
            value = codes[torch.stack((low, high), -1).flatten(1).int()]
        else:
            assert tensor.dtype == torch.float8_e4m3fn
            value = tensor.float()
        rows, columns = (size // count for size, count in zip(value.shape, scale.shape, strict=True))
        assert (rows, columns) in {(32, 32), (1, 32)}
        values[name] = value * scale.float().repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return values


@pytest.mark.parametrize("variant", [Variant.BF16, Variant.FP32])
def test_every_variant_holds_the_same_numbers(folders: dict[Variant, Path], variant: Variant) -> None:
    expected = _dequantised(_plain(folders[Variant.RELEASED]))
    found = _plain(folders[variant])
    assert set(found) == set(expected)
    for name, tensor in found.items():
        assert torch.equal(tensor.float(), expected[name]), name
    plain = torch.float32 if variant is Variant.FP32 else torch.bfloat16
    assert {tensor.dtype for name, tensor in found.items() if name.endswith("weight")} == {plain}


def test_scales_differ_and_no_weight_is_out_of_range(folders: dict[Variant, Path]) -> None:
    tensors = _plain(folders[Variant.RELEASED])
    for name, tensor in tensors.items():
        if name.endswith(".scale"):
            assert len(tensor.view(torch.uint8).unique()) > 1, name
        elif tensor.dtype != torch.int8:
            assert tensor.float().isfinite().all(), name


def test_every_kind_of_layer_is_there(folders: dict[Variant, Path]) -> None:
    text = json.loads((folders[Variant.RELEASED] / "config.json").read_text())["text_config"]
    names = set(_plain(folders[Variant.RELEASED]))
    ratios, kv, index = text["compress_ratios"], text["kv_source_layer_ids"], text["index_source_layer_ids"]
    kinds = {(ratio, layer in kv, layer in index) for layer, ratio in enumerate(ratios)}
    assert kinds == {
        (0, False, False), (2, True, True), (2, False, False), (1, True, True), (1, False, True), (1, False, False),
    }  # fmt: skip
    assert ratios[text["candidate_source_layer_id"]] == 1
    assert any(layer > text["candidate_source_layer_id"] for layer in index)
    assert text["index_n_heads"] >= 32, "fewer heads score many entries 0, and ties decide"
    for needed in (
        "engram.embed",
        "hc_attn_fn",
        "attn.attn_sink",
        "ffn.shared_experts.w1",
        "attn.wo_a",
        "ffn.gate.bias",
    ):
        assert any(needed in name for name in names), needed


def test_the_tokenizer_is_one_that_the_tokenizers_package_reads(folders: dict[Variant, Path]) -> None:
    theirs = Tokenizer.from_file(str(folders[Variant.RELEASED] / "tokenizer.json"))
    ours = checkpoint.tokenizer()
    for text in (corpus.TEXT, *corpus.PROMPTS, "  two  spaces\n\n\nlines, 42 isn't 7!  "):
        encoded = theirs.encode(text).ids
        assert encoded == [BOS, *ours.encode(text)]
        assert theirs.decode(encoded) == text
    assert [theirs.token_to_id(word) for word in SPECIAL] == [BOS, EOS, PAD, IMAGE]
    assert theirs.get_vocab_size() == layout.VOCABULARY


def test_the_config_says_how_many_tokens_the_memory_tells_apart(folders: dict[Variant, Path]) -> None:
    """By the rules of the engine's hugging_face tokenizer, from the `tokenizers` package's own normalizers."""
    from tokenizers import Regex, normalizers

    theirs = Tokenizer.from_file(str(folders[Variant.RELEASED] / "tokenizer.json"))
    steps = [normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]
    steps += [normalizers.Replace(Regex(r"[ \t\r\n]+"), " "), normalizers.Replace(Regex("^ $"), "\ue000")]
    steps += [normalizers.Strip(), normalizers.Replace("\ue000", " ")]
    normalizer, kinds = normalizers.Sequence(steps), set()
    for index in range(layout.VOCABULARY):
        text = theirs.decode([index], skip_special_tokens=False)
        kinds.add(theirs.id_to_token(index) if "\ufffd" in text else normalizer.normalize_str(text) or text)
    config = json.loads((folders[Variant.RELEASED] / "config.json").read_text())
    assert config["text_config"]["engram_compressed_vocab_size"] == len(kinds) < layout.VOCABULARY


def test_training_needs_enough_text() -> None:
    with pytest.raises(ValueError, match="merges only"):
        train("abc", 512)


def test_rounding_is_torchs() -> None:
    """On values in range, ties among them: e4m3 and bfloat16 bit for bit."""
    magnitudes = np.concatenate(
        (rounding.E4M3, (rounding.E4M3[1:] + rounding.E4M3[:-1]) / 2, np.linspace(0, 448, 9999))
    )
    values = np.concatenate((magnitudes, -magnitudes)).reshape(1, -1)
    values = values[:, : values.size // 32 * 32]
    cast = torch.tensor(values, dtype=torch.float32).to(torch.float8_e4m3fn)
    assert torch.equal(
        torch.from_numpy(rounding.quantised(values, (1, values.size), rounding.E4M3).codes), cast.view(torch.uint8)
    )
    rounded = torch.from_numpy(rounding.bfloat16(values).view(np.int16)).view(torch.bfloat16)
    assert torch.equal(rounded, torch.tensor(values, dtype=torch.float32).bfloat16())


@pytest.mark.parametrize(
    ("value", "code"),
    [(0.25, 0), (0.26, 1), (0.75, 2), (1.25, 2), (1.75, 4), (2.5, 4), (3.5, 6), (5.0, 6), (5.1, 7), (-0.75, 10)],
)
def test_fp4_ties_go_to_the_even_code(value: float, code: int) -> None:
    row = np.zeros((1, 32))
    row[0, :2] = 6.0, value
    found = rounding.quantised(row, (1, 32), rounding.E2M1)
    assert found.exponents.item() == 127 and found.codes[0, 1] == code
    assert rounding.packed(found.codes)[0, 0] == 7 | code << 4


@pytest.mark.parametrize(
    ("largest", "exponent"), [(448.0, 127), (448.1, 128), (224.0, 126), (0.0, 127), (2.0**-20, 99)]
)
def test_the_scale_is_the_smallest_power_of_two_that_holds_the_block(largest: float, exponent: int) -> None:
    found = rounding.quantised(np.full((32, 32), largest), (32, 32), rounding.E4M3)
    assert found.exponents.item() == exponent
    assert abs(found.values[0, 0] - largest) <= largest / 16
