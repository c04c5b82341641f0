"""What a decode step calls of the vendor packages, each call on the simulated device under strict recording.

A program of its own process: ``python -m tests.sim.vendor.decode_step`` prints JSON of every call's findings, with the lines of
the overrides, and costs. The packages are the emitted ones. Arguments are made on the host and uploaded before the recording.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from porter import sim
from porter.config import VENDOR_PACKAGES, load_config
from porter.judging import origins
from porter.plan import VENDOR_OUT
from porter.verify.origins import Origins

ROOT = Path(__file__).resolve().parents[3]
DEVICE = "neuron"
TOKENS, HEADS = 4, 4

Prepared = tuple[str, Callable[..., Any], Sequence[Any], dict[str, Any]]


def on_device(value: Any) -> Any:
    """A value with its tensors, strides kept, on the device."""
    if isinstance(value, torch.Tensor) and value.device.type == DEVICE:
        return value
    if isinstance(value, torch.Tensor):
        # One piece of memory, whatever the view: .to would close the gaps of strided views.
        storage = value.untyped_storage()
        whole = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,)).to(DEVICE)
        return torch.empty(0, dtype=value.dtype, device=DEVICE).set_(
            whole.untyped_storage(), value.storage_offset(), value.shape, value.stride()
        )
    if isinstance(value, (list, tuple)):
        return type(value)(on_device(one) for one in value)
    return value


def ints(*values: Any) -> torch.Tensor:
    """int32."""
    return torch.tensor(values, dtype=torch.int32)


def bf16(*shape: int) -> torch.Tensor:
    """Random."""
    return torch.randn(shape).to(torch.bfloat16)


def e4m3(*shape: int) -> torch.Tensor:
    """Random."""
    return torch.randn(shape).to(torch.float8_e4m3fn)


def fp4(*shape: int) -> torch.Tensor:
    """Random codes, two a byte; ``shape`` in values."""
    return torch.randint(-128, 128, (*shape[:-1], shape[-1] // 2), dtype=torch.int8)


def packed(mn: int, k: int, group: int, *batch: int) -> torch.Tensor:
    """Exponent bytes of scales [mn, k / group], two an int16, MN-major."""
    return torch.full((*batch, k // group // 2, mn), 126 << 8 | 127, dtype=torch.int16).mT


def exponents(*shape: int) -> torch.Tensor:
    """Exponent bytes of 128 values, two an int16."""
    return torch.full((*shape, 2), 126 << 8 | 127, dtype=torch.int16)


def deep_gemm() -> Iterator[Prepared]:
    """GEMMs of a layer's projections and experts, and the indexer's logits."""
    import deep_gemm as g

    m, n, k = TOKENS, 256, 512
    out = torch.empty(m, n, dtype=torch.bfloat16)
    a8, b8 = (e4m3(m, k), packed(m, k, 128)), (e4m3(n, k), packed(n, k, 128))
    yield "fp8_fp4_gemm_nt, fp8", g.fp8_fp4_gemm_nt, (a8, b8, out), {}
    wide = (e4m3(n, k), torch.ones(n // 128, k // 128))
    yield "fp8_fp4_gemm_nt, fp32 scales", g.fp8_fp4_gemm_nt, ((e4m3(m, k), torch.ones(m, k // 128)), wide, out), {}
    by32 = (e4m3(m, k), packed(m, k, 32)), (fp4(n, k), packed(n, k, 32))
    yield "fp8_fp4_gemm_nt, fp4", g.fp8_fp4_gemm_nt, (*by32, out), {"recipe": (1, 1, 32)}
    yield "bf16_gemm_nt", g.bf16_gemm_nt, (bf16(m, k), bf16(n, k), out), {}
    yield "cublaslt_gemm_nt", g.cublaslt_gemm_nt, (bf16(m, k), bf16(n, k), out), {}
    groups, rows = 3, 3 * 128
    layout, grouped = ints(3, 128, 256 + 5), torch.empty(rows, n, dtype=torch.bfloat16)
    experts = (fp4(groups, n, k), packed(n, k, 32, groups))
    yield "m_grouped_fp8_fp4_gemm_nt_contiguous, fp4", g.m_grouped_fp8_fp4_gemm_nt_contiguous, (
        (e4m3(rows, k), packed(rows, k, 32)), experts, grouped, layout,
    ), {"recipe": (1, 1, 32), "use_psum_layout": True}  # fmt: skip
    yield "m_grouped_fp8_fp4_gemm_nt_contiguous, fp8", g.m_grouped_fp8_fp4_gemm_nt_contiguous, (
        (e4m3(rows, k), packed(rows, k, 128)), (e4m3(groups, n, k), packed(n, k, 128, groups)), grouped, layout,
    ), {"use_psum_layout": True}  # fmt: skip
    yield "m_grouped_bf16_gemm_nt_contiguous", g.m_grouped_bf16_gemm_nt_contiguous, (
        bf16(rows, k), bf16(groups, n, k), grouped, layout,
    ), {"use_psum_layout": True}  # fmt: skip
    h, r, d = HEADS, 256, 128
    left, right = (e4m3(m, h, r), torch.ones(m, h, r // 128)), (e4m3(h, d, r), torch.ones(h, d // 128, r // 128))
    result = torch.empty(m, h, d, dtype=torch.bfloat16)
    yield "fp8_einsum", g.fp8_einsum, ("bhr,hdr->bhd", left, right, result), {}
    again = torch.empty(m, h, d, dtype=torch.float8_e4m3fn), torch.empty(m, h * d // 64, dtype=torch.int16)
    yield "fp8_einsum, quantised again", g.fp8_einsum, ("bhr,hdr->bhd", left, right, again), {}
    mixes, squares = torch.empty(m, 24), torch.empty(m)
    yield "tf32_hc_prenorm_gemm", g.tf32_hc_prenorm_gemm, (bf16(m, 4 * k), torch.randn(24, 4 * k), mixes, squares), {}
    split = torch.empty(4, m, 24), torch.empty(4, m)
    yield "tf32_hc_prenorm_gemm, split", g.tf32_hc_prenorm_gemm, (bf16(m, 4 * k), torch.randn(24, 4 * k), *split, 4), {}
    yield from _logits(g)


def _logits(g: Any) -> Iterator[Prepared]:
    m, heads, d, keys, pages, page = TOKENS, HEADS, 128, 256, 6, 64
    starts, ends, weights = ints(0, 8, 16, 64), ints(200, 40, 256, 70), torch.rand(m, heads)
    kinds = {"fp8": (e4m3, d), "fp4": (fp4, d // 2)}
    for kind, (make, width) in kinds.items():
        q, kv = (make(m, heads, d), exponents(m, heads)), (make(keys, d), exponents(keys))
        yield f"fp8_fp4_mqa_logits, {kind}", g.fp8_fp4_mqa_logits, (q, kv, weights, starts, ends, keys), {}
        cache = torch.randint(0, 120, (pages, page, 1, width + 4), dtype=torch.uint8)
        paged_q = make(m, 1, heads, d), exponents(m, 1, heads)
        lengths, table = ints([200], [1], [64], [130]), ints(*[[0, 1, 2, 3], [4, 0, 0, 0], [5, 0, 0, 0], [3, 2, 1, 0]])
        schedule = torch.zeros(33, 2, dtype=torch.int32)
        yield f"fp8_fp4_paged_mqa_logits, {kind}", g.fp8_fp4_paged_mqa_logits, (
            paged_q, cache, weights, lengths, table, schedule, 256,
        ), {}  # fmt: skip
        blocks = ints(*[[0, 3], [0, 1], [1, 0], [2, 1]])
        yield f"fp8_fp4_sparse_mqa_logits, {kind}", g.fp8_fp4_sparse_mqa_logits, (
            q, kv, weights, blocks * 32, 2, 32,
        ), {}  # fmt: skip
        yield f"fp8_fp4_paged_sparse_mqa_logits, {kind}", g.fp8_fp4_paged_sparse_mqa_logits, (
            paged_q, cache, weights, blocks, 2, 32,
        ), {}  # fmt: skip
    yield "get_paged_mqa_logits_metadata", g.get_paged_mqa_logits_metadata, (ints([200], [1]), 64, 32), {}
    blocks = ints(*[[0, 3], [0, 1], [1, 0], [2, 1]])
    yield "get_sparse_mqa_logits_metadata", g.get_sparse_mqa_logits_metadata, (
        starts, ends, keys, blocks, torch.float8_e4m3fn, 32,
    ), {}  # fmt: skip
    yield "get_paged_sparse_mqa_logits_metadata", g.get_paged_sparse_mqa_logits_metadata, (
        ends, ints(*[[0, 1, 2, 3]] * 4), ints(0, 1, 2, 3), page, blocks, torch.float8_e4m3fn, 32,
    ), {}  # fmt: skip


def flash_mla() -> Iterator[Prepared]:
    """Sparse attention of decoded tokens, over one cache and two, and of a prompt's."""
    from flash_mla.flash_mla_interface import FlashMLASchedMeta, flash_mla_sparse_fwd, flash_mla_with_kvcache
    from flash_mla.fused_norm_rope_attn_rope_cast import decode

    m, heads, d, blocks, block = TOKENS, HEADS, 512, 3, 64
    cache = torch.randint(0, 100, (blocks, block, 1, 528), dtype=torch.uint8)
    small = torch.randint(0, 100, (blocks, block, 1, 288), dtype=torch.uint8)
    index = torch.randint(-1, blocks * block, (m, 1, 32), dtype=torch.int32)
    length, sink = ints(32, 5, 1, 0), torch.randn(heads)
    first = (bf16(m, 1, heads, d), cache, None, None, d, FlashMLASchedMeta())
    yield "flash_mla_with_kvcache", flash_mla_with_kvcache, first, {"indices": index, "attn_sink": sink}
    both = {
        "indices": index, "attn_sink": sink, "extra_k_cache": small, "extra_indices_in_kvcache": index,
        "topk_length": length, "extra_topk_length": length,
    }  # fmt: skip
    yield "flash_mla_with_kvcache, two caches", flash_mla_with_kvcache, (*first[:-1], FlashMLASchedMeta()), both
    yield "flash_mla_sparse_fwd", flash_mla_sparse_fwd, (bf16(m, heads, d), bf16(192, 1, d), index, 0.04), {
        "attn_sink": sink, "topk_length": length,
    }  # fmt: skip
    settings = (True, 1e-6, ints(0, 5, 9, 1), False, 64, torch.randn(16, 64), 2, 32, True, True, True)
    yield "fused_norm_rope_attn_rope_cast.decode", decode, (
        *settings, bf16(m, heads, d), cache, index.squeeze(1), 0.04,
    ), {"attn_sink": sink, "topk_length": length, "extra_k_cache": small, "extra_indices_in_kvcache": index.squeeze(1)}  # fmt: skip


def deep_select() -> Iterator[Prepared]:
    """The indexer's selection."""
    from deep_select.interface import topk

    rows = {"end": ints(100, 3, 64, 0), "output_idx": torch.empty(TOKENS, 8, dtype=torch.int32)}
    without = {"indices_type": torch.int32, "return_value": False}
    yield "topk, bf16 indices", topk, (bf16(TOKENS, 128), 8), {**rows, **without}
    shifted = {**rows, **without, "output_idx_offset": ints(0, 10, 20, 30), "sorted_index": True}
    yield "topk, with offsets", topk, (bf16(TOKENS, 128), 8), shifted
    yield "topk, fp32 values", topk, (torch.randn(TOKENS, 128), 8), {**rows, "indices_type": torch.int32}


def tile_kernels() -> Iterator[Prepared]:
    """Casts, activations, the gate, hyper-connections, n-grams and rotation."""
    import tile_kernels.engram as engram
    import tile_kernels.quant as quant
    from tile_kernels.mhc.expand_kernel import expand_to_mhc_fwd
    from tile_kernels.mhc.head_compute_mix_kernel import mhc_head_compute_mix_fwd
    from tile_kernels.mhc.norm_fn_kernel import mhc_reduce_partials_and_rmsnorm_fwd
    from tile_kernels.mhc.post_kernel import mhc_post_fwd
    from tile_kernels.mhc.pre_apply_mix_kernel import mhc_pre_apply_mix_fwd
    from tile_kernels.mhc.pre_big_fuse_kernel import mhc_pre_big_fuse_fwd
    from tile_kernels.mhc.pre_split_mixes_kernel import mhc_pre_split_mixes_fwd
    from tile_kernels.mhc.sinkhorn_kernel import mhc_sinkhorn_fwd
    from tile_kernels.moe import moe_topk_gate
    from tile_kernels.torch import cast_back
    from tile_kernels.transform import apply_rotary

    m, hidden, n = TOKENS, 256, 4
    stored = {"round_sf": True, "use_packed_ue8m0": True, "use_tma_aligned_col_major_sf": True}
    x = bf16(m, hidden)
    for fmt, group in (("e4m3", 128), ("e4m3", 32), ("e2m1", 32)):
        yield f"per_token_cast, {fmt} by {group}", quant.per_token_cast, (x, fmt, group), stored
    yield "per_token_cast, fp32 scales", quant.per_token_cast, (x, "e4m3", 128), {}
    yield "per_token_cast_and_cast_back", quant.per_token_cast_and_cast_back, (x.clone(), "e4m3", 64), {
        "round_sf": True
    }
    yield "cast_back", cast_back, ((e4m3(m, hidden), torch.ones(m, hidden // 128)), "bf16", (1, 128)), {}
    yield "swiglu_forward", quant.swiglu_forward, (x, "bf16"), {"clamp_value": 7.0}
    counted = {"clamp_value": 7.0, "clamped_count": torch.zeros(4, dtype=torch.int64), "topk_weights": torch.rand(m)}
    psum = {"psum_num_tokens_per_expert": ints(2, 3)}
    yield "swiglu_forward, counted", quant.swiglu_forward, (x, "bf16"), {**counted, **psum}
    yield "swiglu_forward_and_per_token_cast", quant.swiglu_forward_and_per_token_cast, (
        x, "e4m3", 32, ints(2, 3), torch.rand(m), 2.5,
    ), {**stored, "clamp_value": 7.0}  # fmt: skip
    routed = 16
    logits, bias, chosen = torch.randn(m, routed), torch.randn(routed), torch.zeros(m, 4, dtype=torch.int64)
    yield "moe_topk_gate", moe_topk_gate, (logits, 4, True, 1, 2.5, 0), {"bias": bias}
    yield "moe_topk_gate, all options", moe_topk_gate, (logits, 4, True, 1, 2.5, 0), {
        "bias": bias, "image_bias": bias, "image_token_mask": torch.tensor([True, False, True, False]),
        "mask": torch.tensor([True, True, True, False]), "unmapped_topk_idx": chosen,
        "fix_routing_mask": torch.tensor([False, True, False, False]),
        "to_physical_map": torch.arange(34, dtype=torch.int32).view(17, 2), "logical_count": torch.full((17,), 2, dtype=torch.int32),
        "force_random": torch.tensor([False, False, True, False]), "scores": torch.empty(m, routed),
        "out": (torch.empty(m, 5, dtype=torch.int64), torch.empty(m, 5)),
    }  # fmt: skip
    streams, scale, base = bf16(m, n, hidden), torch.rand(3), torch.rand(24)
    yield "expand_to_mhc_fwd", expand_to_mhc_fwd, (x, torch.empty_like(streams)), {}
    yield "mhc_head_compute_mix_fwd", mhc_head_compute_mix_fwd, (
        torch.randn(m, n), torch.rand(1), torch.rand(n), torch.empty(m, n), 1e-6,
    ), {}  # fmt: skip
    yield "mhc_reduce_partials_and_rmsnorm_fwd", mhc_reduce_partials_and_rmsnorm_fwd, (
        torch.rand(2, m, 1, 24), torch.rand(2, m, 1), torch.empty(m, 1, 24), torch.empty(m, 1), torch.empty(m, 24), 1024, 1e-6, 2,
    ), {}  # fmt: skip
    yield "mhc_post_fwd", mhc_post_fwd, (
        x.unsqueeze(0), streams.unsqueeze(0), torch.rand(1, m, n, 1), torch.rand(1, m, n, n), torch.empty_like(streams).unsqueeze(0),
    ), {}  # fmt: skip
    yield "mhc_pre_apply_mix_fwd", mhc_pre_apply_mix_fwd, (streams, torch.rand(m, n), torch.empty_like(x)), {}
    yield "mhc_pre_split_mixes_fwd", mhc_pre_split_mixes_fwd, (
        torch.randn(m, 24), scale, base, torch.empty(m, n), torch.empty(m, n), torch.empty(m, n * n), 2.0, 1e-6,
    ), {}  # fmt: skip
    yield "mhc_sinkhorn_fwd", mhc_sinkhorn_fwd, (torch.rand(m, n, n), torch.empty(m, n, n), 10, 1e-6), {}
    yield "mhc_pre_big_fuse_fwd", mhc_pre_big_fuse_fwd, (
        torch.randn(1, m, 24), torch.rand(1, m), scale, base, streams, torch.empty(m, n), torch.empty(m, n * n), torch.empty_like(x),
        1e-6, 1e-6, 1e-6, 2.0, 10, 1,
    ), {}  # fmt: skip
    yield "engram_gate_fwd", engram.engram_gate_fwd, (streams, bf16(m, n + 1, hidden), torch.rand(n, hidden), 1e-6, 1e-6, False), {
        "image_token_mask": torch.tensor([True, False, False, True]), "inplace": True,
    }  # fmt: skip
    yield "fused_weight", engram.fused_weight, (bf16(n, hidden), bf16(n, hidden)), {}
    yield "engram_hash", engram.engram_hash, (
        torch.randint(0, 1000, (m, 3), dtype=torch.int32), torch.randint(1, 1 << 40, (2, 3)), torch.full((2, 2, 4), 997, dtype=torch.int32),
        torch.arange(16, dtype=torch.int32).view(2, 8), torch.tensor([True, False, False, True]),
    ), {}  # fmt: skip
    for interleaved in (True, False):
        yield f"apply_rotary, interleaved={interleaved}", apply_rotary, (
            bf16(m, HEADS, 64), torch.randn(16, 64), bf16(m, 1, 64), ints(0, 5, 9, 1), interleaved,
        ), {}  # fmt: skip


def deep_ep() -> Iterator[Prepared]:
    """One rank's dispatch and combine of a step, without a CPU sync, and an n-gram table's fetch."""
    import deep_ep as package

    m, hidden, experts, topk = TOKENS, 256, 8, 2
    chosen = torch.tensor([[0, 3], [7, -1], [2, 5], [3, 1]])
    for fp8 in (False, True):
        for expand in (False, True):
            buffer = package.EPBuffer(
                None,
                num_max_tokens_per_rank=8,
                hidden=hidden,
                num_topk=topk,
                use_fp8_dispatch=fp8,
                explicitly_destroy=True,
            )
            x: Any = (e4m3(m, hidden), torch.ones(hidden // 128, m).T) if fp8 else bf16(m, hidden)
            name = f"{'fp8' if fp8 else 'bf16'}{', expanded' if expand else ''}"
            options = {"num_experts": experts, "expert_alignment": 8, "do_cpu_sync": False, "do_expand": expand}
            options |= {"use_tma_aligned_col_major_sf": fp8}
            given = on_device((x, chosen, torch.rand(m, topk)))
            yield f"EPBuffer.dispatch, {name}", buffer.dispatch, given, options
            received, _, weights, handle, _ = buffer.dispatch(*given, **options)
            rows = (received[0] if fp8 else received).shape[0]
            yield f"EPBuffer.combine, {name}", buffer.combine, (bf16(rows, hidden), handle), {"bias": bf16(m, hidden)}
            yield f"EPBuffer.dispatch again, {name}", buffer.dispatch, (given[0],), {
                "handle": handle,
                "do_expand": expand,
            }
            buffer.destroy()


def run(packages: Sequence[str]) -> dict[str, Any]:
    """Every call's findings, allowed ones and cost, by package and call."""
    sys.path.insert(0, str(ROOT / "tests" / "vendor" / "tile_kernels"))
    from emitted_packages import emitted, plan

    folder = emitted(tuple(VENDOR_PACKAGES))
    sys.path.insert(0, str(folder))
    config = load_config(ROOT / "porter.toml")
    table = origins(plan(), config.overrides_path.name)
    places = Origins(folder, {path.removeprefix(VENDOR_OUT + "/"): source for path, source in table.items()}, ROOT)
    torch.manual_seed(0)
    report: dict[str, Any] = {}
    for package in packages:
        rows = report[package] = {}
        for name, function, args, kwargs in globals()[package]():
            given, named = on_device(args), {key: on_device(value) for key, value in kwargs.items()}
            with sim.record(name, roots=[folder], arguments=[*given, *named.values()]) as recording:
                function(*given, **named)
            data = recording.to_dict()
            for finding in (*data["findings"], *data["allowed"]):
                finding["path"], finding["line"] = places.place(finding["path"], finding["line"])
            rows[name] = data
    return report


if __name__ == "__main__":
    sim.install()
    torch.set_num_threads(1)
    print(json.dumps(run(sys.argv[1:] or ["deep_gemm", "flash_mla", "deep_select", "tile_kernels", "deep_ep"])))
