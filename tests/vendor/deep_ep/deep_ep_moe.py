"""The engine's expert-parallel MoE layer on the emitted packages together: dispatch, grouped products, SwiGLU, combine.

``python deep_ep_moe.py FOLDER RANKS`` runs it on so many gloo ranks with the packages in FOLDER, and prints how far each rank's result
is from a token-by-token reference that uses the same quantised weights and casts.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

EXPERTS, TOPK, TOKENS, HIDDEN, INNER = 8, 3, 10, 512, 256
CAST: dict[str, Any] = {
    "num_per_channels": 32, "round_sf": True, "use_tma_aligned_col_major_sf": True, "use_packed_ue8m0": True
}  # fmt: skip


def layer(rank: int, ranks: int, sync: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The result of this rank's tokens, and the reference."""
    import deep_ep
    import deep_gemm
    import tile_kernels
    from tile_kernels.quant import per_token_cast, per_token_cast_back, swiglu_forward_and_per_token_cast

    def packed(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, sf = per_token_cast(weights.flatten(0, 1).to(torch.bfloat16), "e2m1", **CAST)
        return values.unflatten(0, (len(weights), -1)), sf.unflatten(0, (len(weights), -1)).mT.contiguous().mT

    def rounded(x: torch.Tensor, fmt: str) -> torch.Tensor:
        return per_token_cast_back(per_token_cast(x, fmt, **CAST), "fp32", 32)

    common, own = torch.Generator().manual_seed(1), torch.Generator().manual_seed(10 + rank)
    first = torch.randn(EXPERTS, 2 * INNER, HIDDEN, generator=common) / 20
    second = torch.randn(EXPERTS, HIDDEN, INNER, generator=common) / 16
    x = torch.randn(TOKENS, HIDDEN, generator=own).to(torch.bfloat16)
    shared = torch.randn(TOKENS, HIDDEN, generator=own).to(torch.bfloat16)
    weights, chosen = torch.rand(TOKENS, EXPERTS, generator=own).topk(TOPK)
    chosen[2, 1] = chosen[5] = -1

    alignment = deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout()
    deep_gemm.set_mk_alignment_for_contiguous_layout(alignment)
    tile_kernels.set_token_alignment(alignment)
    local = EXPERTS // ranks
    mine = slice(rank * local, (rank + 1) * local)
    up, down = packed(first[mine]), packed(second[mine])
    buffer = deep_ep.EPBuffer(
        dist.group.WORLD if ranks > 1 else None, num_max_tokens_per_rank=TOKENS, hidden=HIDDEN, num_topk=TOPK, use_fp8_dispatch=True
    )  # fmt: skip
    event = buffer.dispatch(
        x=per_token_cast(x, "e4m3", **CAST), num_sms=4, topk_idx=chosen, topk_weights=weights, num_experts=EXPERTS,
        num_max_tokens_per_rank=TOKENS, expert_alignment=alignment, async_with_compute_stream=True, do_cpu_sync=sync, do_expand=True,
        use_tma_aligned_col_major_sf=True, defer_epilogue=True,
    )  # fmt: skip
    rows, _, row_weights, handle = event.current_stream_wait()
    psum = handle.psum_num_recv_tokens_per_expert
    # What no choice has may hold anything.
    unused = torch.ones(row_weights.shape[0], dtype=torch.bool)
    used = handle.recv_src_metadata[: int(handle.psum_num_recv_tokens_per_scaleup_rank[-1]), 2:]
    unused[used[used >= 0].long()] = False
    rows[0].view(torch.uint8)[unused] = 0x7F
    row_weights[unused] = torch.nan

    def grouped(a: Any, b: Any, width: int) -> torch.Tensor:
        out = torch.empty(a[0].shape[0], width, dtype=torch.bfloat16)
        deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(
            a, b, out, psum, recipe_a=(1, 32), recipe_b=(1, 32), use_psum_layout=True, expected_m_for_psum_layout=None
        )  # fmt: skip
        return out

    inner = swiglu_forward_and_per_token_cast(
        grouped(rows, up, 2 * INNER), fmt="e4m3", **CAST, psum_num_tokens_per_expert=psum, topk_weights=row_weights, clamp_value=10.0
    )  # fmt: skip
    event = buffer.combine(
        x=grouped(inner, down, HIDDEN), handle=handle, num_sms=4, bias=shared, previous_event=buffer.capture(),
        async_with_compute_stream=True, allocate_on_comm_stream=True, defer_epilogue=True,
    )  # fmt: skip
    result, nothing = event.current_stream_wait()
    assert nothing is None

    first, second = (rounded(w.flatten(0, 1).to(torch.bfloat16), "e2m1").view_as(w) for w in (first, second))
    values, reference = rounded(x, "e4m3"), shared.float()
    for token in range(TOKENS):
        for choice in range(TOPK):
            expert = int(chosen[token, choice])
            if expert < 0:
                continue
            gate, linear = (first[expert] @ values[token]).to(torch.bfloat16).float().chunk(2)
            gate = gate.clamp(max=10.0)
            made = gate * torch.sigmoid(gate) * linear.clamp(-10.0, 10.0) * weights[token, choice]
            reference[token] += (second[expert] @ rounded(made.view(1, -1), "e4m3")[0]).to(torch.bfloat16).float()
    return result, reference


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.double(), b.double()
    return float(1 - 2 * (a * b).sum() / (a.square() + b.square()).sum())


def rank_main(rank: int, ranks: int, folder: str, store: str) -> None:
    sys.path.insert(0, folder)
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    exact, reference = layer(rank, ranks, True)
    fixed, _ = layer(rank, ranks, False)
    print(f"rank {rank} same {torch.equal(exact, fixed)} difference {difference(exact, reference):.3e}", flush=True)
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    import torch.multiprocessing as mp

    count, where = int(sys.argv[2]), str(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as scratch:
        if count == 1:
            rank_main(0, 1, where, "")
        else:
            mp.start_processes(rank_main, args=(count, where, f"{scratch}/store"), nprocs=count, start_method="spawn")
