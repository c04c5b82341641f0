"""The emitted tile_kernels on the inputs that upstream's own test generators make, compared by upstream's own ``assert_equal``.

The wheel ships the generators but not the tests. Here they run unedited, with their device being the host, their random
numbers torch's, and fewer tokens than upstream takes.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

TOKENS = (0, 1, 33)
_HOST = {
    "get_device": lambda: "cpu",
    "get_device_num_sms": lambda: 64,
    "randn": lambda shape, dtype, device: torch.randn(shape, dtype=dtype),
}
CASTS = ("use_tma_aligned_col_major_sf", "round_sf", "use_packed_ue8m0")


@pytest.fixture
def made(real: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Upstream's generators and comparisons, on the host."""
    random.seed(20261203)
    for module in (real.testing.generator, real.testing.moe):
        for name, value in _HOST.items():
            monkeypatch.setattr(module, name, value, raising=False)
    return real.testing


def configurations(made: Any, fmt: str) -> list[dict[str, bool]]:
    return [dict(zip(CASTS, row, strict=True)) for row in made.generator.generate_cast_config(2, fmt)]


@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_per_token_cast(tk: Any, real: Any, made: Any, fmt: str, dtype: torch.dtype) -> None:
    count = 0
    for hidden in made.generator.generate_hidden_sizes(64):
        for options in configurations(made, fmt):
            for tokens in TOKENS:
                x = made.generator.generate_rand_float((tokens, hidden)).to(dtype)
                if not bool(x.isfinite().all()):
                    x = torch.randn(tokens, hidden).to(dtype)
                for group in (32, 128):
                    if hidden % group:
                        continue
                    expected = real.torch.cast(x, fmt, (1, group), **options)
                    actual = tk.quant.per_token_cast(x, fmt, group, **options)
                    for one, other in zip(actual, expected, strict=True):
                        made.numeric.assert_equal(one, other)
                    if options["use_packed_ue8m0"] and tokens:
                        cleared = [
                            made.quant.clear_unused_sf(sf, hidden, group)
                            for sf in (actual[1].T.contiguous().T, expected[1])
                        ]
                        made.numeric.assert_equal(*cleared)
                    made.numeric.assert_equal(
                        tk.quant.cast_back(actual, "fp32", (1, group)),
                        real.torch.cast_back(expected, "fp32", (1, group)),
                    )
                    count += 1
    assert count >= 150


def test_block_and_channel_casts(tk: Any, real: Any, made: Any) -> None:
    count = 0
    for hidden in [size for size in made.generator.generate_hidden_sizes(128) if size <= 2048]:
        for options in configurations(made, "e4m3"):
            x = made.generator.generate_rand_float((128, hidden))
            for block in ((32, 32), (128, 128)):
                expected, actual = real.torch.cast(x, "e4m3", block, **options), tk.quant.per_block_cast(
                    x, "e4m3", block, **options
                )
                for one, other in zip(actual, expected, strict=True):
                    made.numeric.assert_equal(one, other)
                count += 1
            if not options["use_tma_aligned_col_major_sf"]:
                expected = real.torch.cast(x, "e4m3", (32, 1), **options)
                actual = tk.quant.per_channel_cast(
                    x, "e4m3", 32, options["round_sf"], use_packed_ue8m0=options["use_packed_ue8m0"]
                )
                for one, other in zip(actual, expected, strict=True):
                    made.numeric.assert_equal(one, other)
                count += 1
    assert count >= 24


@pytest.mark.parametrize("alignment", [32, 128])
def test_swiglu(tk: Any, real: Any, made: Any, alignment: int) -> None:
    count = 0
    for package in (tk, real):
        package.config.set_token_alignment(alignment)
    rows = [
        row for row in made.generator.generate_moe_params(2) if row["num_ep_ranks"] <= 8 and row["num_experts"] <= 36
    ]
    for params in rows:
        params = {**params, "num_send_tokens": min(params["num_send_tokens"], 40), "alignment": alignment}
        mask, psum = made.generator.generate_psum_layout(params)
        for options in configurations(made, "e4m3"):
            x, weights = torch.randn(mask.shape[0], 256).bfloat16(), torch.rand(mask.shape[0])
            theirs, ours = torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
            expected = real.torch.cast(
                real.torch.swiglu_forward(x, psum, weights, 2.0, 1.0, theirs), "e4m3", (1, 32), **options
            )
            actual = tk.quant.swiglu_forward_and_per_token_cast(
                x, "e4m3", 32, psum, weights, 2.0, clamp_value=1.0, clamped_count=ours, **options
            )
            for one, other in zip(actual, expected, strict=True):
                made.numeric.assert_equal(one[mask], other[mask])
            made.numeric.assert_equal(ours, theirs)
            count += 1
    for package in (tk, real):
        package.config.reset_runtime_config()
    assert count >= 40


def test_indices_of_a_rank(tk: Any, real: Any, made: Any) -> None:
    count = 0
    for params in made.generator.generate_moe_params(1):
        if params["num_ep_ranks"] > 8:
            continue
        index = made.generator.generate_topk_idx({**params, "num_send_tokens": 9})
        total = params["num_experts"] * params["num_ep_ranks"]
        for columns in (1, 2, 4):
            for rank in range(columns):
                ours, theirs = (
                    package.torch.mask_indices_by_tp(index, total, params["num_ep_ranks"], rank, columns)
                    for package in (tk, real)
                )
                made.numeric.assert_equal(ours, theirs)
                count += 1
    assert count >= 28


def test_samples_of_the_norm(tk: Any, real: Any, made: Any) -> None:
    count = 0
    samples = list(
        made.generator.generate_samples(
            2, residual=(False, True), batch=(None, 2), out_scale=(1.0, 0.3), weighted=(True, False), padding=(0, 16)
        )
    )
    for sample in samples:
        for options in configurations(made, "e4m3"):
            lead = (9,) if sample["batch"] is None else (2, 9)
            x = torch.randn(*lead, 192 + sample["padding"]).bfloat16()[..., :192]
            residual = torch.randn(*lead, 192).bfloat16() if sample["residual"] else None
            weight = torch.randn(192).bfloat16() if sample["weighted"] else None
            expected, rstd, total = real.torch.norm_forward_ref(x, weight, 1e-6, residual, sample["out_scale"])
            (values, scales), wide, got_rstd, got_total = tk.quant.norm_forward_and_per_token_cast(
                x,
                weight,
                1e-6,
                "e4m3",
                32,
                residual,
                sample["out_scale"],
                with_out_bf16=True,
                with_rstd=True,
                **options,
            )
            for one, other in ((wide, expected), (got_rstd, rstd), (got_total, total)):
                made.numeric.assert_equal(one, other, check_stride=False)
            for want, one, sf in (
                [(expected, values, scales)] if sample["batch"] is None else zip(expected, values, scales, strict=True)
            ):
                for got, reference in zip((one, sf), real.torch.cast(want, "e4m3", (1, 32), **options), strict=True):
                    made.numeric.assert_equal(got, reference, check_stride=False)
            count += 1
    assert count == 96


@pytest.mark.parametrize("experts", [72, 256])
def test_gate(tk: Any, real: Any, made: Any, experts: int) -> None:
    for images in (False, True):
        kwargs = {
            "bias": torch.randn(experts) if experts == 72 else None,
            "image_token_mask": torch.rand(66) < 0.5 if images else None,
            "image_bias": torch.randn(experts) if images else None,
        }
        logits = made.moe.construct_logits(
            {"num_seqs": 2, "num_tokens": 30, "num_padded_tokens": 3, "num_routed_experts": experts, "num_topk": 8},
            kwargs,
        )
        arguments = (logits, 8, True, 2, 2.5, 3, "sqrtsoftplus")
        expected, actual = real.torch.moe_topk_gate_forward(*arguments, **kwargs), tk.moe.moe_topk_gate(
            *arguments, **kwargs
        )
        made.numeric.assert_equal(actual[0].sort(1).values, expected[0].sort(1).values)
        # The generator keeps the chosen apart from the others, not from one another.
        order = [pair[0].argsort(1) for pair in (actual, expected)]
        torch.testing.assert_close(actual[1].gather(1, order[0]), expected[1].gather(1, order[1]), rtol=2e-6, atol=0)
