"""The vendor drop-ins against torch references, side by side in one run.

    python benchmarks/vendor.py [--select NAME ...] [--json FILE]

References are the real tile-kernels' torch functions (with Ascend's packing), and for the GEMMs, the logits, attention and top-k
what upstream's tests compare with: operands cast back as a whole, then plain products. Shapes are DeepInfer's, scaled down:
``decode`` has 8 tokens, ``prefill`` some hundred. Both sides are called turn by turn on one thread, the least of many runs is
taken, in processor time. ``peak`` is the most memory alive at a time beside the arguments, counted by storage at every operation.

Exits 1 when a drop-in is slower than its reference by more than 10 %, but for those that ``EXCUSED`` names with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).resolve().parents[1]
VENDOR = ROOT / "generated" / "deepinfer" / "neuron_ops" / "vendor"
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "vendor" / "tile_kernels")]

FLOOR = 0.9
_VIEWS = frozenset(
    {"view", "_unsafe_view", "expand", "slice", "select", "unsqueeze", "squeeze", "transpose", "t", "permute", "as_strided"}
    | {"alias", "detach", "split", "split_with_sizes", "diagonal", "unbind", "unfold", "_reshape_alias"}
    | {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
)  # fmt: skip
EXCUSED = {
    "engram_hash": "its 64-bit products and remainders are made of 32-bit words, which is what the device computes with",
    "topk_gate": "the reference sorts, which the device cannot",
    "normalize_weight": "the kernel adds 1e-20 to the sums, the reference does not: one operation in three",
    "m_grouped_fp8_fp4_gemm_nt_contiguous": "the reference reads the sizes on the host and goes expert by expert, which fits a"
    " processor's cache; here are few large operations of static shapes, each of which costs a launch on the device",
}
BF16, E4M3, ONE = torch.bfloat16, torch.float8_e4m3fn, 0x7F7F
MXFP8 = {"round_sf": True, "use_packed_ue8m0": True, "use_tma_aligned_col_major_sf": True}


@dataclass(frozen=True)
class Pair:
    """``ours`` and ``reference`` do the same work; each is called without arguments."""

    name: str
    shape: str
    ours: Callable[[], Any]
    reference: Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """Times in microseconds, device operations a call (views left out), most bytes alive at a time beside the arguments."""

    name: str
    shape: str
    ours_us: float
    reference_us: float
    ours_ops: int
    reference_ops: int
    ours_peak: int
    reference_peak: int

    @property
    def speed(self) -> float:
        """How many times the reference's speed."""
        return self.reference_us / self.ours_us


class Ledger(TorchDispatchMode):
    """Counts operations and the memory that is alive."""

    def __init__(self) -> None:
        super().__init__()
        self.ops, self.peak = 0, 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        for one in given:
            # What an operation gets and did not make here is an argument.
            if one.untyped_storage()._cdata not in self._live:
                self._known.add(one.untyped_storage()._cdata)
        result = func(*args, **(kwargs or {}))
        if func.name().split("::")[1].split(".")[0] not in _VIEWS:
            self.ops += 1
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in self._known:
                storage = leaf.untyped_storage()
                self._live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._live = {key: entry for key, entry in self._live.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return result


def measure(pair: Pair, seconds: float) -> Row:
    """One row; ``seconds`` to spend on it at most, each side runs five times at least."""
    ledgers = []
    for call in (pair.ours, pair.reference):
        call()
        with Ledger() as ledger:
            call()
        ledgers.append(ledger)
    best, end, rounds = [float("inf")] * 2, time.perf_counter() + seconds, 0
    while rounds < 5 or (time.perf_counter() < end and rounds < 300):
        rounds += 1
        for side, call in enumerate((pair.ours, pair.reference)):
            start = time.process_time_ns()
            call()
            best[side] = min(best[side], (time.process_time_ns() - start) / 1e3)
    return Row(
        pair.name, pair.shape, *best, ledgers[0].ops, ledgers[1].ops, ledgers[0].peak, ledgers[1].peak
    )  # fmt: skip


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(BF16)


def tile_kernels_pairs(tk: Any, real: Any, tokens: int, shape: str) -> Iterator[Pair]:
    """Casts, SwiGLU, the gate, mHC, Engram, RoPE."""
    hidden, inner, experts, topk, streams = 2048, 1024, 256, 8, 4
    t = real.torch
    x = bf16(tokens, hidden)
    yield Pair(
        "per_token_cast", shape, lambda: tk.quant.per_token_cast(x, "e4m3", 32, **MXFP8),
        lambda: t.cast(x, "e4m3", (1, 32), use_tma_aligned_col_major_sf=True, round_sf=True, use_packed_ue8m0=True),
    )  # fmt: skip
    yield Pair(
        "per_token_cast_fp4", shape, lambda: tk.quant.per_token_cast(x, "e2m1", 32, **MXFP8),
        lambda: t.cast(x, "e2m1", (1, 32), use_tma_aligned_col_major_sf=True, round_sf=True, use_packed_ue8m0=True),
    )  # fmt: skip
    halves, weights = bf16(tokens * 4, 2 * inner), torch.rand(tokens * 4)
    yield Pair(
        "swiglu_forward_and_per_token_cast", shape,
        lambda: tk.quant.swiglu_forward_and_per_token_cast(halves, "e4m3", 32, None, weights, clamp_value=10.0, **MXFP8),
        lambda: t.cast(
            t.swiglu_forward(halves, None, weights, clamp_value=10.0), "e4m3", (1, 32),
            use_tma_aligned_col_major_sf=True, round_sf=True, use_packed_ue8m0=True,
        ),
    )  # fmt: skip
    logits, bias = torch.randn(tokens, experts), torch.randn(experts)
    gate = (topk, False, 0, 2.5, 0, "sqrtsoftplus", None, bias)
    yield Pair(
        "moe_topk_gate",
        shape,
        lambda: tk.moe.moe_topk_gate(logits, *gate),
        lambda: t.moe_topk_gate_forward(logits, *gate),
    )
    yield Pair("topk_gate", shape, lambda: tk.moe.topk_gate(logits, topk), lambda: t.stable_topk(logits, topk))
    comb, comb_out = torch.randn(tokens, streams, streams), torch.empty(tokens, streams, streams)
    yield Pair(
        "mhc_sinkhorn_fwd", shape, lambda: tk.mhc.mhc_sinkhorn_fwd(comb, comb_out, 20, 1e-6),
        lambda: t.sinkhorn_normalize_ref(comb, 20, 1e-6),
    )  # fmt: skip
    mixes, scale, base = torch.randn(tokens, 24), torch.rand(3), torch.randn(24)
    outs = torch.empty(tokens, 4), torch.empty(tokens, 4), torch.empty(tokens, 16)
    yield Pair(
        "mhc_pre_split_mixes_fwd", shape,
        lambda: tk.mhc.mhc_pre_split_mixes_fwd(mixes, scale, base, *outs, 2.0, 1e-6),
        lambda: t.mhc_pre_split_mixes_ref(mixes.unsqueeze(0), scale, base, streams, 2.0, 1e-6),
    )  # fmt: skip
    wide, mix, layer = bf16(tokens, streams, hidden), torch.rand(tokens, streams), bf16(tokens, hidden)
    yield Pair(
        "mhc_pre_apply_mix_fwd", shape, lambda: tk.mhc.mhc_pre_apply_mix_fwd(wide, mix, layer),
        lambda: t.mhc_pre_apply_mix_ref(wide, mix.unsqueeze(-1)),
    )  # fmt: skip
    residual, post, square = (
        wide.unsqueeze(0),
        torch.rand(1, tokens, streams, 1),
        torch.rand(1, tokens, streams, streams),
    )
    yield Pair(
        "mhc_post_fwd", shape, lambda: tk.mhc.mhc_post_fwd(layer.unsqueeze(0), residual, post, square),
        lambda: t.mhc_post_ref(layer.unsqueeze(0), residual, post, square),
    )  # fmt: skip
    ids, factors = torch.randint(0, 1 << 17, (tokens, 3), dtype=torch.int32), torch.randint(0, 1 << 45, (2, 3))
    sizes, offsets = torch.randint(1 << 20, 1 << 21, (2, 2, 8), dtype=torch.int32), torch.zeros(
        2, 16, dtype=torch.int32
    )
    yield Pair(
        "engram_hash", shape, lambda: tk.engram.engram_hash(ids, factors, sizes, offsets),
        lambda: t.engram_hash_ref(ids, factors, sizes, offsets),
    )  # fmt: skip
    weight = torch.rand(tokens, topk)
    yield Pair("normalize_weight", shape, lambda: tk.moe.normalize_weight(weight), lambda: t.normalize_weight(weight))


def gemm_pairs(gemm: Any, math: Any, tokens: int, shape: str) -> Iterator[Pair]:
    """Linear layers, experts, indexer logits."""

    def ones(*size: int) -> tuple[torch.Tensor, torch.Tensor]:
        *lead, k = size
        return torch.full((*lead, k // 64), ONE, dtype=torch.int16), torch.ones(*lead, k // 32)

    def packed(*size: int) -> torch.Tensor:
        return torch.randint(-128, 128, (*size[:-1], size[-1] // 2), dtype=torch.int8)

    n, k = 2048, 2048
    a, b, d = torch.randn(tokens, k).to(E4M3), torch.randn(n, k).to(E4M3), torch.empty(tokens, n, dtype=BF16)
    (sfa, wide_a), (sfb, wide_b) = ones(tokens, k), ones(n, k)
    yield Pair(
        "fp8_fp4_gemm_nt", shape, lambda: gemm.fp8_fp4_gemm_nt((a, sfa), (b, sfb), d, None, recipe=(1, 1, 32)),
        lambda: d.copy_(math.cast_back_from_fp8(a, wide_a, 32) @ math.cast_back_from_fp8(b, wide_b, 32).T),
    )  # fmt: skip
    left, right = bf16(tokens, k), bf16(n, k)
    yield Pair("bf16_gemm_nt", shape, lambda: gemm.bf16_gemm_nt(left, right, d), lambda: d.copy_(left @ right.T))
    groups, alignment, rows = 32, gemm.get_theoretical_mk_alignment_for_contiguous_layout(), max(tokens // 4, 1)
    gemm.set_mk_alignment_for_contiguous_layout(alignment)
    used = min(groups, tokens)
    span = -(-rows // alignment) * alignment
    ends = [span * group + rows for group in range(used)] + [span * used] * (groups - used)
    psum = torch.tensor(ends, dtype=torch.int32)
    inner, m = 512, span * used
    values, weight, out = torch.randn(m, 1024).to(E4M3), packed(groups, inner, 1024), torch.empty(m, inner, dtype=BF16)
    (sf_values, wide_values), (sf_weight, wide_weight) = ones(m, 1024), ones(groups, inner, 1024)

    def by_group() -> None:
        # Upstream's loop expands the experts that have rows, which it knows on the host.
        left = math.cast_back_from_fp8(values, wide_values, 32)
        for group, end in enumerate(psum.tolist()[:used]):
            start = group * span
            out[start:end] = left[start:end] @ math.cast_back_from_fp4(weight[group], wide_weight[group], 32).T

    yield Pair(
        "m_grouped_fp8_fp4_gemm_nt_contiguous", shape,
        lambda: gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(
            (values, sf_values), (weight, sf_weight), out, psum, recipe=(1, 1, 32), use_psum_layout=True
        ),
        by_group,
    )  # fmt: skip
    keys, heads = 2048, 32
    q, kv, w = packed(tokens, heads, 128), packed(keys, 128), torch.randn(tokens, heads).to(BF16)
    (q_sf, wide_q), (k_sf, wide_k) = ones(tokens, heads, 128), ones(keys, 128)
    start = torch.zeros(tokens, dtype=torch.int32)

    def logits() -> torch.Tensor:
        query = math.cast_back_from_fp4(q.view(-1, 64), wide_q.view(-1, 4), 32).view(tokens, heads, 128).float()
        key = math.cast_back_from_fp4(kv, wide_k, 32).float()
        return torch.einsum("hmn,hm->mn", torch.einsum("mhd,nd->hmn", query, key).relu(), w.float().T)

    yield Pair(
        "fp8_fp4_mqa_logits", shape,
        lambda: gemm.fp8_fp4_mqa_logits((q, q_sf), (kv, k_sf), w, start, start + keys, keys), logits,
    )  # fmt: skip


def attention_pairs(mla: Any, select: Any, kvcache: Any, tokens: int, shape: str) -> Iterator[Pair]:
    """Sparse attention over a paged cache, and top-k."""
    heads, topk, blocks, size = 16, 512, 64, 64
    q, cache = bf16(tokens, 1, heads, 512), torch.zeros(blocks, size, 1, 528, dtype=torch.uint8)
    cache[..., :512] = torch.randn(blocks, size, 1, 512).to(E4M3).view(torch.uint8)
    cache[..., 512:] = 127
    index = torch.randint(0, blocks * size, (tokens, 1, topk), dtype=torch.int32)
    sink = torch.randn(heads)

    def plain() -> torch.Tensor:
        # The cache as a whole, as upstream's reference casts it back.
        table = kvcache.decode_fp8_rows(cache.view(-1, 528))
        keys = table[index.view(tokens, topk).long()]
        scores = (q.view(tokens, heads, 512).float() @ keys.mT) * 512**-0.5
        lse = torch.logaddexp(scores.logsumexp(-1), sink)
        return ((scores - lse.unsqueeze(-1)).exp() @ keys).to(BF16)

    def cached() -> Any:
        meta, _ = mla.get_mla_metadata()
        return mla.flash_mla_with_kvcache(q, cache, None, None, 512, meta, indices=index, attn_sink=sink)

    if shape == "decode":
        yield Pair("flash_mla_with_kvcache", shape, cached, plain)
    prompt, kv, rows = (
        q.squeeze(1),
        bf16(4 * tokens, 1, 512),
        torch.randint(0, 4 * tokens, (tokens, 1, topk // 4), dtype=torch.int32),
    )

    def sparse() -> torch.Tensor:
        keys = kv.squeeze(1).float()[rows.squeeze(1).long()]
        scores = (prompt.float() @ keys.mT) * 512**-0.5
        lse = torch.logaddexp(scores.logsumexp(-1), sink)
        return ((scores - lse.unsqueeze(-1)).exp() @ keys).to(BF16)

    yield Pair(
        "flash_mla_sparse_fwd",
        shape,
        lambda: mla.flash_mla_sparse_fwd(prompt, kv, rows, 512**-0.5, attn_sink=sink),
        sparse,
    )
    scores = torch.randn(tokens, 4096).to(BF16)
    end = torch.full((tokens,), 4000, dtype=torch.int32)
    column = torch.arange(4096)

    def masked() -> tuple[torch.Tensor, torch.Tensor]:
        # The contract's order, which torch.topk alone does not give: smaller indices first among equal values, then ascending.
        kept = scores.float().masked_fill(column >= end.unsqueeze(1), float("-inf"))
        chosen = kept.sort(dim=1, descending=True, stable=True).indices[:, :topk].sort(dim=1).values
        return scores.gather(1, chosen), chosen.to(torch.int32)

    yield Pair(
        "deep_select.topk",
        shape,
        lambda: select.topk(scores, topk, end=end, indices_type=torch.int32, return_value=False),
        masked,
    )


@contextmanager
def packages() -> Iterator[tuple[Any, Any]]:
    """The emitted packages, importable, and the real tile_kernels as it is on Ascend."""
    from emitted_packages import Isolated

    from tests.conftest import unpacked

    exists = os.path.exists
    node = "/dev/davinci_manager"
    with (
        patch("os.path.exists", lambda path: path == node or exists(path)),
        patch("torch.compile", lambda function: function),
    ):
        shared = ("tilelang", "neuron_unavailable")
        upstream = Isolated((unpacked("tile_kernels"), VENDOR), ("tile_kernels",), shared=shared, walk=False)
        upstream["tile_kernels"].config.is_ascend.cache_clear()
        assert upstream["tile_kernels"].config.is_ascend()
    sys.path.insert(0, str(VENDOR))
    try:
        import tile_kernels

        yield tile_kernels, upstream["tile_kernels"]
    finally:
        sys.path.remove(str(VENDOR))


def pairs() -> Iterator[Pair]:
    """All of them, decode first."""
    with packages() as (tk, real):
        import deep_gemm
        import deep_select.interface as select
        import flash_mla
        from deep_gemm.utils import math

        from neuron_numerics import kvcache

        for tokens, shape in ((8, "decode"), (256, "prefill")):
            yield from tile_kernels_pairs(tk, real, tokens, shape)
            yield from gemm_pairs(deep_gemm, math, tokens, shape)
            yield from attention_pairs(flash_mla, select, kvcache, tokens, shape)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--select", nargs="*", default=[], help="only rows whose name holds one of these")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each row")
    parser.add_argument("--json", type=Path, help="write the rows there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows: list[Row] = []
    print(
        f"{'':38} {'shape':8} {'ours us':>9} {'ref us':>9} {'speed':>6} {'ops':>4} {'ref':>4} {'peak MB':>8} {'ref':>8}"
    )
    with torch.inference_mode(False), torch.no_grad():
        for pair in pairs():
            if options.select and not any(word in pair.name for word in options.select):
                continue
            row = measure(pair, options.seconds)
            rows.append(row)
            print(
                f"{row.name:38} {row.shape:8} {row.ours_us:9.0f} {row.reference_us:9.0f} {row.speed:6.2f} {row.ours_ops:4} "
                f"{row.reference_ops:4} {row.ours_peak / 1e6:8.2f} {row.reference_peak / 1e6:8.2f}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    slow = [row for row in rows if row.speed < FLOOR]
    for row in slow:
        print(f"slower: {row.name} ({row.shape}) at {row.speed:.2f}: {EXCUSED.get(row.name, 'not excused')}")
    return 1 if any(row.name not in EXCUSED for row in slow) else 0


if __name__ == "__main__":
    raise SystemExit(main())
