"""What runs at every step is one static graph: no host sync, no shape that depends on data, nothing written but the outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from harness import check_fake, check_fullgraph, clone_args, count_ops, guard, run_guarded, wide_ops
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Step:
    """A call: ``run`` takes the package and tensors and returns what it makes; ``written`` names the tensors it may change."""

    run: Callable[..., Any]
    arguments: Callable[[], tuple[Any, ...]]
    written: tuple[str, ...] = ()
    wide: bool = False  # does its contract hold 64-bit integers?


MXFP8 = {"round_sf": True, "use_packed_ue8m0": True, "use_tma_aligned_col_major_sf": True}
T, H = 9, 256


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16()


def gate_arguments() -> tuple[torch.Tensor, ...]:
    mask, image, drawn = torch.rand(T) < 0.8, torch.rand(T) < 0.3, torch.rand(T) < 0.2
    physical, count = torch.randint(0, 80, (72, 2), dtype=torch.int32), torch.randint(1, 3, (72,), dtype=torch.int32)
    return (
        torch.randn(T, 72), torch.randn(72), torch.randn(72), mask, image, drawn, physical, count,
        torch.zeros(T, 6, dtype=torch.int64), torch.zeros(T, 6),
    )  # fmt: skip


def gate(
    tk: Any,
    logits: Any,
    bias: Any,
    image_bias: Any,
    mask: Any,
    image: Any,
    drawn: Any,
    physical: Any,
    count: Any,
    index: Any,
    weight: Any,
) -> None:
    tk.moe.moe_topk_gate(
        logits, 6, False, 0, 2.5, 1, mask=mask, bias=bias, image_bias=image_bias, image_token_mask=image, force_random=drawn,
        to_physical_map=physical, logical_count=count, out=(index, weight),
    )  # fmt: skip


def swiglu_arguments() -> tuple[torch.Tensor, ...]:
    return bf16(64, 512), torch.tensor([3, 32 + 20], dtype=torch.int32), torch.rand(64)


def fuse_arguments() -> tuple[torch.Tensor, ...]:
    outputs = torch.zeros(T, 4), torch.zeros(T, 16), torch.zeros(T, H).bfloat16()
    return torch.randn(1, T, 24), torch.rand(1, T) * 100, torch.rand(3), torch.randn(24), bf16(T, 4, H), *outputs


STEPS: dict[str, Step] = {
    "per_token_cast": Step(lambda tk, x: tk.quant.per_token_cast(x, "e4m3", 32, **MXFP8), lambda: (bf16(T, H),)),
    "per_token_cast_fp4": Step(lambda tk, x: tk.quant.per_token_cast(x, "e2m1", 32, **MXFP8), lambda: (bf16(T, H),)),
    "per_token_cast_fp32_scales": Step(lambda tk, x: tk.quant.per_token_cast(x, "e4m3", 128), lambda: (bf16(T, H),)),
    "per_token_cast_of_quantised": Step(
        lambda tk, x, sf: tk.quant.per_token_cast((x, sf), "e2m1", 32, (32, 32), **MXFP8),
        lambda: (torch.randn(64, H).to(torch.float8_e4m3fn), torch.rand(2, H // 32)),
    ),
    "per_token_cast_into": Step(
        lambda tk, x, out, sf: tk.quant.per_token_cast(x, "e4m3", 32, out=(out, sf)),
        lambda: (bf16(T, H), torch.zeros(T, H).to(torch.float8_e4m3fn), torch.zeros(T, H // 32)),
        ("out", "sf"),
    ),
    "per_token_cast_and_cast_back": Step(
        lambda tk, x: tk.quant.per_token_cast_and_cast_back(x, "e4m3", 32, True), lambda: (bf16(T, H),), ("x",)
    ),
    "cast_back": Step(
        lambda tk, x, sf: tk.quant.cast_back((x, sf), "bf16", (1, 32)),
        lambda: (torch.randn(T, H).to(torch.float8_e4m3fn), torch.rand(T, H // 32)),
    ),
    "swiglu_and_cast": Step(
        lambda tk, x, psum, w: tk.quant.swiglu_forward_and_per_token_cast(
            x, "e4m3", 32, psum, w, clamp_value=7.0, **MXFP8
        ),
        swiglu_arguments,
    ),
    "swiglu": Step(lambda tk, x, psum, w: tk.quant.swiglu_forward(x, "bf16", psum, w, 2.5, 7.0), swiglu_arguments),
    "swiglu_counting": Step(
        lambda tk, x, psum, count: tk.quant.swiglu_forward(x, "bf16", psum, clamp_value=0.5, clamped_count=count),
        lambda: (*swiglu_arguments()[:2], torch.zeros(4, dtype=torch.int64)),
        ("count",),
        wide=True,
    ),
    "norm": Step(
        lambda tk, x, w, r: tk.quant.norm_forward(x, w, 1e-6, r)[0], lambda: (bf16(T, H), bf16(H), bf16(T, H))
    ),
    "norm_and_cast": Step(
        lambda tk, x, w: tk.quant.norm_forward_and_per_token_cast(x, w, 1e-6, "e4m3", 32, with_out_bf16=True, **MXFP8)[
            :2
        ],
        lambda: (bf16(T, H), bf16(H)),
    ),
    "rope": Step(
        lambda tk, q, table, k, positions: tk.transform.apply_rotary(q, table, k, positions, True),
        lambda: (
            guard(bf16(T, 3, 64), (400, 100, 1)),
            torch.randn(50, 64),
            bf16(T, 1, 64),
            torch.randint(0, 50, (T,), dtype=torch.int32),
        ),
        ("q", "k"),
    ),
    "gate": Step(gate, gate_arguments, ("index", "weight"), wide=True),
    "topk_gate": Step(lambda tk, scores: tk.moe.topk_gate(scores, 6), lambda: (torch.randn(T, 72),), wide=True),
    "normalize_weight": Step(lambda tk, w: tk.moe.normalize_weight(w), lambda: (torch.rand(T, 6),)),
    "expand_to_mhc": Step(lambda tk, x, o: tk.mhc.expand_to_mhc_fwd(x, o), lambda: (bf16(T, H), bf16(T, 4, H)), ("o",)),
    "head_compute_mix": Step(
        lambda tk, x, s, b, o: tk.mhc.mhc_head_compute_mix_fwd(x, s, b, o, 1e-6),
        lambda: (torch.randn(T, 4), torch.rand(1), torch.randn(4), torch.zeros(T, 4)),
        ("o",),
    ),
    "fn_normw_merge": Step(
        lambda tk, fn, w, o: tk.mhc.mhc_fn_normw_merge_fwd(fn, w, o),
        lambda: (torch.randn(24, H), torch.randn(H), torch.zeros(24, H)),
        ("o",),
    ),
    "reduce_partials": Step(
        lambda tk, m, s, om, os, o: tk.mhc.mhc_reduce_partials_and_rmsnorm_fwd(m, s, om, os, o, 1024, 1e-6, 1),
        lambda: (
            torch.randn(1, T, 1, 24),
            torch.rand(1, T, 1),
            torch.zeros(T, 1, 24),
            torch.zeros(T, 1),
            torch.zeros(T, 24),
        ),
        ("om", "os", "o"),
    ),
    "pre_apply_mix": Step(
        lambda tk, x, m, o: tk.mhc.mhc_pre_apply_mix_fwd(x, m, o),
        lambda: (bf16(T, 4, H), torch.rand(T, 4), bf16(T, H)),
        ("o",),
    ),
    "pre_split_mixes": Step(
        lambda tk, x, s, b, pre, post, comb: tk.mhc.mhc_pre_split_mixes_fwd(x, s, b, pre, post, comb, 2.0, 1e-6),
        lambda: (
            torch.randn(T, 24),
            torch.rand(3),
            torch.randn(24),
            torch.zeros(T, 4),
            torch.zeros(T, 4),
            torch.zeros(T, 16),
        ),
        ("pre", "post", "comb"),
    ),
    "sinkhorn": Step(
        lambda tk, x, o: tk.mhc.mhc_sinkhorn_fwd(x, o, 20, 1e-6),
        lambda: (torch.randn(T, 4, 4), torch.zeros(T, 4, 4)),
        ("o",),
    ),
    "post": Step(
        lambda tk, x, r, p, c, o: tk.mhc.mhc_post_fwd(x, r, p, c, o),
        lambda: (bf16(1, T, H), bf16(1, T, 4, H), torch.rand(1, T, 4, 1), torch.rand(1, T, 4, 4), bf16(1, T, 4, H)),
        ("o",),
    ),
    "pre_big_fuse": Step(
        lambda tk, m, s, scale, base, r, post, comb, layer: tk.mhc.mhc_pre_big_fuse_fwd(
            m, s, scale, base, r, post, comb, layer, 1e-6, 1e-6, 1e-6, 2.0, 20, 1
        ),
        fuse_arguments,
        ("post", "comb", "layer"),
    ),
    "engram_hash": Step(
        lambda tk, ids, m, sizes, offsets, mask: tk.engram.engram_hash(ids, m, sizes, offsets, mask),
        lambda: (
            torch.randint(0, 1 << 17, (T, 3), dtype=torch.int32),
            torch.randint(0, 1 << 45, (2, 3)),
            torch.randint(1 << 20, 1 << 21, (2, 2, 8), dtype=torch.int32),
            torch.zeros(2, 16, dtype=torch.int32),
            torch.rand(T) < 0.3,
        ),
    ),
    "engram_gate": Step(
        lambda tk, x, kv, w, mask: tk.engram.engram_gate_fwd(x, kv, w, 1e-5, 1e-6, False, mask, True),
        lambda: (bf16(T, 4, H), bf16(T, 5, H), torch.randn(4, H), torch.rand(T) < 0.3),
        ("x",),
    ),
    "reduce_fused": Step(
        lambda tk, x, w, place: tk.torch.reduce_fused(x, w, place),
        lambda: (bf16(30, H), torch.rand(T, 6), torch.randint(-1, 30, (T, 6), dtype=torch.int32)),
    ),
}


def kernel(tk: Any, step: Step, count: int) -> Callable[..., None]:
    """The step as the harness takes kernels: a function of its tensors that returns nothing."""
    names = list(inspect.signature(step.run).parameters)[1 : count + 1]

    def body(*args: Any) -> None:
        step.run(tk, *args)

    body.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    )
    return body


@pytest.mark.parametrize("name", STEPS)
def test_step(tk: Any, name: str) -> None:
    step = STEPS[name]
    arguments = tuple(guard(a) if isinstance(a, torch.Tensor) and a.is_contiguous() else a for a in step.arguments())
    body = kernel(tk, step, len(arguments))
    check_fake(body, *arguments)
    check_fullgraph(body, *arguments)
    if not step.wide:
        wide = [op for op in wide_ops(body, *clone_args(arguments)) if "to_copy" not in str(op)]
        assert not wide, wide
    run_guarded(body, *arguments, written=step.written)


@pytest.mark.parametrize("name", [name for name, step in STEPS.items() if not step.written])
def test_traced_results_are_the_eager_ones(tk: Any, name: str) -> None:
    step = STEPS[name]
    arguments = step.arguments()
    eager = step.run(tk, *clone_args(arguments))
    torch._dynamo.reset()
    traced = torch.compile(step.run, fullgraph=True, dynamic=False, backend="eager")(tk, *clone_args(arguments))
    for a, b in zip(tree_leaves(eager), tree_leaves(traced), strict=True):
        a, b = (x.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8) for x in (a, b))
        assert torch.equal(a, b)


LIMITS = {
    "per_token_cast": 16,
    "swiglu_and_cast": 24,
    "rope": 20,
    "gate": 105,
    "pre_big_fuse": 135,
    "engram_hash": 90,
    "engram_gate": 30,
    "norm": 12,
}


@pytest.mark.parametrize("name", LIMITS)
def test_operators_of_a_step(tk: Any, name: str) -> None:
    step = STEPS[name]
    arguments = step.arguments()
    assert len(count_ops(kernel(tk, step, len(arguments)), *arguments)) <= LIMITS[name]
