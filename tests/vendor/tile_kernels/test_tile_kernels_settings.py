"""Settings, integer helpers, scale layouts and comparisons of the emitted tile_kernels, beside the real package's."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest
import torch

EXCLUDED_WRAPPERS = {
    "engram": {"engram_gate_bwd", "grad_w_reduce", "engram_sinkhorn_finalize", "engram_sinkhorn_momentum_update"}
    | {"engram_sinkhorn_step", "engram_sinkhorn_step_reduce"},
    "mhc": {"mhc_multilayer_recompute"},
    "moe": {"moe_topk_gate_backward"},
    "quant": {"norm_backward", "swiglu_backward", "swiglu_backward_and_per_token_cast"},
    "rand": {"randn", "randn_like", "set_seed"},
    "transform": set(),
    "torch": {"norm_backward_ref", "swiglu_backward", "moe_topk_gate_backward"},
}


def functions(package: Any) -> dict[str, Any]:
    return {
        name: value for name, value in vars(package).items() if inspect.isfunction(value) and not name.startswith("_")
    }


@pytest.mark.parametrize("part", EXCLUDED_WRAPPERS)
def test_every_exported_function_is_there(tk: Any, real: Any, part: str) -> None:
    theirs, ours = functions(getattr(real, part)), functions(getattr(tk, part))
    assert set(theirs) <= set(ours)
    excluded = {name for name in theirs if name in EXCLUDED_WRAPPERS[part] or name.endswith("_bwd")}
    for name, function in theirs.items():
        mine = inspect.signature(ours[name]).parameters
        wanted = inspect.signature(function).parameters
        assert [(p.name, p.kind, p.default) for p in mine.values()] == [
            (p.name, p.kind, p.default) for p in wanted.values()
        ], name
    for name in excluded:
        count = [
            p
            for p in inspect.signature(ours[name]).parameters.values()
            if p.default is p.empty and p.kind is not p.VAR_POSITIONAL
        ]
        with pytest.raises(NotImplementedError, match=f"^{name}: not supported on Neuron \\(basic mode\\)$"):
            ours[name](*[None] * len(count))
    assert all("NotImplementedError(" not in inspect.getsource(ours[name]) for name in set(theirs) - excluded)


def test_the_device_counts_as_ascend(tk: Any) -> None:
    assert tk.config.is_ascend() is True and tk.config.is_ascend.cache_info
    assert tk.config.get_device() == torch.get_default_device().type or torch.accelerator.is_available()
    assert (
        tk.quant.common.get_packed_ue8m0_pack_factor() == 2
        and tk.quant.common.get_packed_ue8m0_torch_dtype() == torch.int16
    )


def test_settings_are_kept(tk: Any) -> None:
    config = tk.config
    limit = tk.get_device_num_sms()
    assert (
        tk.get_num_sms() == tk.get_num_ai_cores() == tk.get_num_cube_cores() == limit
        and tk.get_num_vec_cores() == 2 * limit
    )
    tk.set_num_sms(limit - 24)
    assert tk.get_num_sms() == limit - 24 and tk.get_num_vec_cores() == 2 * (limit - 24)
    for refused in (0, -1, limit + 1):
        with pytest.raises(AssertionError):
            tk.set_num_sms(refused)
    tk.set_pdl(True)
    tk.use_deterministic_algorithms(1)
    tk.set_token_alignment(256)
    tk.set_amax_clamp_for_quant("e2m1", True, 0.5)
    assert (tk.get_pdl(), tk.get_deterministic_algorithms(), tk.get_token_alignment()) == (True, True, 256)
    assert tk.get_amax_clamp_for_quant("e2m1", True) == 0.5
    for call in (
        lambda: tk.get_amax_clamp_for_quant("fp8", False),
        lambda: tk.set_amax_clamp_for_quant("bf16", False, 1.0),
    ):
        with pytest.raises(ValueError, match="quantised format"):
            call()
    config.reset_runtime_config()
    assert (tk.get_num_sms(), tk.get_pdl(), tk.get_deterministic_algorithms(), tk.get_token_alignment()) == (
        limit,
        False,
        False,
        128,
    )
    with pytest.raises(NotImplementedError):
        tk.get_max_smem_per_sm()


def test_defaults_are_upstreams(tk: Any, real: Any) -> None:
    for fmt, e4m3 in itertools.product(("e4m3", "e2m1"), (True, False)):
        assert tk.get_amax_clamp_for_quant(fmt, e4m3) == real.get_amax_clamp_for_quant(fmt, e4m3)
    for simt in (True, False):
        assert tk.get_max_ub_per_vector_core(simt) == real.get_max_ub_per_vector_core(simt)
    assert tk.get_token_alignment() == real.get_token_alignment()


def test_integers(tk: Any, real: Any) -> None:
    for x, y in itertools.product(range(40), range(1, 9)):
        assert tk.utils.ceil_div(x, y) == real.utils.ceil_div(x, y) and tk.utils.align(x, y) == real.utils.align(x, y)
    for x in range(-3, 70):
        assert tk.utils.is_power_of_two(x) == real.utils.is_power_of_two(x)
        assert x <= 0 or tk.utils.next_power_of_two(x) == real.utils.next_power_of_two(x)


def test_names_of_dtypes(tk: Any, real: Any) -> None:
    for name in ("fp32", "bf16", "e4m3", "e2m1"):
        assert tk.utils.str_to_dtype(name) == real.utils.str_to_dtype(name)
        assert tk.utils.dtype_to_str(tk.utils.str_to_dtype(name)) == name
    for call in (lambda: tk.utils.str_to_dtype("fp16"), lambda: tk.utils.dtype_to_str(torch.float16)):
        with pytest.raises(ValueError, match="expected one of"):
            call()


@pytest.mark.parametrize("column", [True, False])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("block", [(1, 32), (32, 32), (32, 1)], ids=str)
def test_scale_layouts(tk: Any, real: Any, column: bool, packed: bool, block: tuple[int, int]) -> None:
    options = {"sf_block": block, "use_tma_aligned_col_major_sf": column, "use_packed_ue8m0": packed}
    ours, theirs = tk.quant.common.CastOutputConfig(**options), real.quant.common.CastOutputConfig(**options)
    for shape in ((0, 128), (70, 96), (128, 256)):
        assert tk.quant.common.get_sf_shape(shape, ours) == real.quant.common.get_sf_shape(shape, theirs)
    for name in ("with_sf", "sf_torch_dtype", "sf_col_pack", "dtype", "sf_dtype", "round_sf", "clamp_min_value"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for dtype in (torch.int8, torch.float8_e4m3fn):
        assert tk.quant.common.get_logical_hidden(64, dtype) == real.quant.common.get_logical_hidden(64, dtype)
        assert tk.quant.common.get_physical_hidden(64, dtype) == real.quant.common.get_physical_hidden(64, dtype)
    sf = torch.randint(-(2**15), 2**15, (4, 6), dtype=torch.int16)
    for stored in (sf, sf.T.contiguous().T):
        mine = tk.torch.cast.__globals__["transform_sf"](stored, ours if packed else None)
        assert torch.equal(mine, real.torch.cast.__globals__["transform_sf"](stored, theirs if packed else None))
    e4m3 = torch.rand(4, 6).to(torch.float8_e4m3fn)
    assert torch.equal(tk.torch.cast.__globals__["transform_sf"](e4m3), e4m3.float())


def test_comparisons(tk: Any, real: Any) -> None:
    numeric, theirs = tk.testing.numeric, real.testing.numeric
    x = torch.randn(6, 4)
    pairs = [
        (x, x.clone(), {}),
        (x, x + 1, {}),
        (x, x.bfloat16(), {}),
        (x, x.T.contiguous().T, {}),
        (x, x.T.contiguous().T, {"check_stride": False}),
        (x, x.view(4, 6), {"check_shape": False, "check_stride": False}),
        (x.to(torch.float8_e4m3fn), (x + 1).to(torch.float8_e4m3fn), {}),
        (torch.tensor([0.0]), torch.tensor([-0.0]), {}),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), {}),
        (torch.empty(0, 3), torch.empty(3, 0).T, {}),
    ]
    for first, second, options in pairs:
        outcomes = []
        for module in (numeric, theirs):
            try:
                module.assert_equal(first, second, **options)
                outcomes.append(True)
            except AssertionError:
                outcomes.append(False)
        assert outcomes[0] == outcomes[1], (first.shape, second.dtype, options)
    y = x + torch.randn(6, 4) * 0.01
    assert float(numeric.calc_diff(x, y)) == float(theirs.calc_diff(x, y)) > 0
    assert numeric.calc_diff(x * 0, x * 0) == 0
    assert numeric.count_bytes(x, None, (x, [x.bfloat16()])) == theirs.count_bytes(x, None, (x, [x.bfloat16()]))
    wide, even = torch.zeros(4000), torch.tensor([1.0, -1.0]).repeat(2000)
    for module in (numeric, theirs):
        module.check_bias(even, wide)
        module.check_bias(wide[:0], wide[:0])
        with pytest.raises(AssertionError):
            module.check_bias(even.abs(), wide)
