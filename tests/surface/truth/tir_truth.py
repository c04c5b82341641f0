"""Elaborates real factories with TileLang itself, on a CPU, and prints which kernel arguments each one reads and writes.

A script, run in its own process: it imports upstream packages, which the tool never does. Nothing is compiled or executed:
``JITImpl.get_tir`` gives the kernel as TIR, where every access names its buffer and says whether it reads or writes.

Usage: tir_truth.py BACKEND DEEPINFER_ROOT TILE_KERNELS_ROOT, where BACKEND is ``asc`` or ``cuda``. Prints one JSON object:
``operations``, the names of TileLang's language, and ``factories``: factory id -> {"sets": elaborated argument sets,
"refused": sets that the factory's own asserts refuse, "failed": error texts, "order": tensor arguments in order,
"arguments": {name: {"read", "written", "lost": bool}} for tensors, "lost" meaning that a pointer to the buffer was handed to
foreign code}. Arguments of all sets are joined by "or".
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import os
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

READ, WRITE = 1, 2
_SETS = 24
_VARIED = frozenset(
    {"layout", "mode", "D", "index_dtype", "value_dtype", "COMPRESS_RATIO", "n_hint", "mega_moe_block_m", "clamp_value"}
)


def prepare(backend: str, roots: Sequence[str]) -> None:
    """Pretend to be on the wanted accelerator before anything looks."""
    exists = os.path.exists
    os.path.exists = lambda path: backend == "asc" if str(path) == "/dev/davinci_manager" else exists(path)
    sys.path[:0] = list(roots)
    import tilelang  # noqa: F401  (must see the real torch first)
    import torch

    properties = types.SimpleNamespace(
        vector_core_num=64,
        cube_core_num=32,
        multi_processor_count=132,
        L2_cache_size=192 << 20,
        shared_memory_per_multiprocessor=228 << 10,
    )
    torch.npu = types.SimpleNamespace(get_device_properties=lambda *_: properties, current_device=lambda: 0)
    torch.cuda.get_device_properties = lambda *_: properties
    torch.cuda.get_device_capability = lambda *_: (10, 0)
    torch.cuda.current_device = lambda: 0

    class Platform:
        is_gpu, is_npu = backend == "cuda", backend == "asc"
        tilelang_ops_backend = backend
        fp8_sf_type = torch.int16 if backend == "asc" else torch.int32

    platform = importlib.import_module("deepinfer.platform")
    platform.get_platform = Platform


# ---------------------------------------------------------------------------- reading TIR


def accesses(function: Any) -> dict[str, dict[str, bool]]:
    """Per kernel argument: is it read, written, lost to foreign code."""
    from tvm import tirx
    from tvm.tirx.stmt_functor import post_order_visit

    rows: dict[str, dict[str, bool]] = {}
    behind: dict[Any, str] = {}
    for parameter in function.params:
        buffer = function.buffer_map.get(parameter)
        if buffer is not None:
            # A buffer takes the last name it was bound to; its parameter keeps the kernel's own.
            name = str(parameter.name).removesuffix("_handle")
            rows[name] = {"read": False, "written": False, "lost": False}
            behind[buffer.data] = name

    def mark(buffer: Any, mask: int) -> None:
        name = behind.get(buffer.data)
        if name is not None:
            rows[name]["read"] |= bool(mask & READ)
            rows[name]["written"] |= bool(mask & WRITE)

    described: set[Any] = set()

    def calls(node: Any) -> None:
        if not isinstance(node, tirx.Call):
            return
        operation = str(getattr(node.op, "name", ""))
        args = list(node.args)
        if operation.endswith(("tileop.region", "tl.region")):
            mark(args[0].buffer, int(args[1]))
            described.add(args[0])
        elif operation.endswith("access_ptr"):
            masks = [a for a in args if isinstance(a, tirx.IntImm)]
            if isinstance(args[0], tirx.BufferLoad):
                mark(args[0].buffer, int(masks[-1]))
                described.add(args[0])
            else:
                data = next((a for a in args if isinstance(a, tirx.Var) and a in behind), None)
                if data is not None:
                    rows[behind[data]]["read"] |= bool(int(masks[-1]) & READ)
                    rows[behind[data]]["written"] |= bool(int(masks[-1]) & WRITE)
        elif operation.endswith("address_of") and isinstance(args[0], tirx.BufferLoad):
            described.add(args[0])
            pointers.append(args[0].buffer)

    pointers: list[Any] = []

    def foreign(node: Any) -> None:
        if isinstance(node, tirx.Call) and "extern" in str(getattr(node.op, "name", "")):
            for arg in node.args:
                if isinstance(arg, tirx.Call) and str(arg.op.name).endswith("address_of"):
                    name = behind.get(arg.args[0].buffer.data)
                    if name is not None:
                        rows[name]["lost"] = True

    def stores(node: Any) -> None:
        if isinstance(node, tirx.BufferStore):
            mark(node.buffer, WRITE)
        elif isinstance(node, tirx.BufferLoad) and node not in described:
            mark(node.buffer, READ)

    for visit in (calls, foreign, stores):
        post_order_visit(function.body, visit)
    # An atomic or a pointer-taking intrinsic shows as address_of outside foreign calls: such a buffer may be written.
    atomic: list[Any] = []

    def atomics(node: Any) -> None:
        if isinstance(node, tirx.Call) and "atomic" in str(getattr(node.op, "name", "")):
            for arg in node.args:
                if isinstance(arg, tirx.Call) and str(arg.op.name).endswith("address_of"):
                    atomic.append(arg.args[0].buffer)

    post_order_visit(function.body, atomics)
    for buffer in atomic:
        mark(buffer, READ | WRITE)
    return rows


# ---------------------------------------------------------------------------- argument sets


def combinations(options: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Argument sets: what changes the code that is generated is varied, sizes have their later choices as a fallback only.

    Varied: first choices, last choices, and every single change from the first. Fallback: the product of all choices.
    """
    varied = {
        name: choices
        for name, choices in options.items()
        if len(choices) > 1 and (name in _VARIED or isinstance(choices[0], bool))
    }
    first = {name: choices[0] for name, choices in options.items()}
    last = {**first, **{name: choices[-1] for name, choices in varied.items()}}
    rows = [first, last]
    rows += [{**first, name: choice} for name, choices in varied.items() for choice in choices[1:]]
    seen: set[str] = set()
    for values in (*rows, None, *itertools.islice(itertools.product(*options.values()), 4096)):
        if values is None:
            yield {}
            continue
        row = values if isinstance(values, dict) else dict(zip(options, values, strict=True))
        key = repr(row)
        if key not in seen:
            seen.add(key)
            yield row


def timed(identity: str, out: dict[str, Any], start: float) -> None:
    out[identity]["seconds"] = round(out[identity].get("seconds", 0.0) + time.process_time() - start, 2)


def elaborate(
    identity: str,
    factory: Any,
    options: Mapping[str, Sequence[Any]],
    constants: Mapping[str, int],
    out: dict[str, Any],
    *,
    limit: int = _SETS,
) -> None:
    """Elaborate one factory with several argument sets and join what they access."""
    row = out.setdefault(identity, {"sets": 0, "refused": 0, "failed": [], "arguments": {}})
    parameters = inspect.signature(factory.func.orig_func if hasattr(factory, "func") else factory).parameters
    used = {name: choices for name, choices in options.items() if name in parameters}
    tried = 0
    start = time.process_time()
    for values in combinations(used):
        if not values and used:
            # The fallback is for factories that refuse every plain choice.
            if row["sets"]:
                break
            limit = 1
            continue
        if row["sets"] >= limit or tried >= 400:
            break
        tried += 1
        try:
            found = accesses(factory.get_tir(**values, **constants))
        except (AssertionError, NotImplementedError, KeyError, ZeroDivisionError, IndexError, AttributeError) as error:
            # The factory itself says that such arguments cannot be.
            row["refused"] += 1
            row["last_refusal"] = f"{type(error).__name__}: {str(error)[:120]}"
        except Exception as error:
            text = f"{type(error).__name__}: {str(error)[:160]}"
            if text not in row["failed"]:
                row["failed"].append(text)
        else:
            row["sets"] += 1
            for name, seen in found.items():
                known = row["arguments"].setdefault(name, {"read": False, "written": False, "lost": False})
                for key, value in seen.items():
                    known[key] |= value
    timed(identity, out, start)


def booleans(factory: Callable[..., Any], skip: Sequence[str] = ()) -> dict[str, Sequence[Any]]:
    """Both values for every flag of a factory."""
    parameters = inspect.signature(factory.func.orig_func).parameters
    return {
        p.name: (True, False)
        for p in parameters.values()
        if p.annotation in (bool, "bool") and p.name not in (*skip, "use_pdl")
    } | ({"use_pdl": (False,)} if "use_pdl" in parameters else {})


# ---------------------------------------------------------------------------- DeepInfer


def deepinfer(backend: str, out: dict[str, Any]) -> None:
    """The factories of tilelang_ops, with arguments as the interface modules give them."""
    import torch

    base = "deepinfer.model_executor.layers.tilelang_ops"
    formats = importlib.import_module(f"{base}.cache_common")
    layouts = [*formats.SUPPORTED_KV_CACHE_FORMATS]
    plain = formats.KVCacheFormat(None, 0, 0, 512, False, None, "plain")
    common: dict[str, Sequence[Any]] = {
        "COMPRESS_RATIO": (2, 1), "D": (512, 64), "DIM": (512,), "block_size": (64, 16, 8), "block_size_inference": (8,), "block_size_kvstore": (16,),
        "ca_ratios": ((1, 2),), "compress_ratios": ((1, 2),), "cp_size": (2,), "dense_ratios": ((1,),), "dim": (1024,), "downsample_ratio": (2,),
        "engram_compressed_pad_token": (2,), "feature_dim": (4096,), "force_topk": (64,), "hc_mult": (4,), "hidden": (4096,), "image_sentinel": (-1,),
        "index_dtype": (torch.int32, torch.int64), "index_length": (512,), "k": (512,), "layout": (*layouts, plain), "markov_rank": (256,),
        "max_abs": (1e3,), "max_model_len": (1 << 20,), "max_ngram_size": (4,), "max_num_blocks": (128,), "max_seqlen_q": (6,), "mode": ("by_key", "by_index"),
        "n": (64,), "n_embed": (1024,), "nextn": (5,), "num_layers": (2,), "num_steps": (6,), "num_stop_tokens": (4,), "out_stride": (640,),
        "padded_kv_len": (256,), "patch_size": (14,), "s": (2,), "sparse_ratios": ((2,),), "swa_block_size": (134,), "topk_blocks": (2048,),
        "topk_tokens": (512,), "vocab_size": (129280, 4096), "width": (128,), "window_size": (128,), "x_stride": (512, 64), "total_dim": (1024,),
    }  # fmt: skip
    special: dict[str, dict[str, Sequence[Any]]] = {
        "gather_tl": {"D": (2048, 64, 8), "dtype": (torch.int8,), "x_stride": (2048, 64, 8)},
        "kv_index_cat_tl": {"dtype": ("int32",)},
        "detect_outlier_and_abort_tl": {"dtype": ("bfloat16",)},
        "batch_downsample_tl": {"dtype": (torch.bfloat16, torch.float32)},
        "candidate_block_max_tl": {"block_size": (8, 16)},
        "get_candidate_compact_lens_tl": {"block_size": (8, 16)},
        "restore_candidate_indices_inplace_tl": {"block_size": (8, 16)},
        "map_lookup_tl": {"value_dtype": (torch.float32, torch.int32)},
    }
    norm: dict[str, Sequence[Any]] = {
        "hidden_size": (1024, 512), "d": (1024, 512), "dtype": ("bfloat16",), "return_dtype": ("bfloat16", "float8_e4m3fn"), "reduce_dtype": ("float",),
        "eps": (1e-6,), "out_scale": (1.0, 0.5), "num_per_channels": (0, 32, 128), "xdim": (3, 2), "shared_sf_block_m": (0, 128),
        **dict.fromkeys(("x_stride_s", "y_stride_s", "residual_stride_s", "residual_out_stride_s", "y_origin_stride_s", "sf_stride_s"), (1024, 512)),
    }  # fmt: skip
    package = importlib.import_module(f"{base}.{backend}")
    names = sorted(path.stem for path in Path(package.__path__[0]).glob("*.py") if path.stem != "__init__")
    for stem in names:
        module = importlib.import_module(f"{base}.{backend}.{stem}")
        for name, factory in sorted(vars(module).items()):
            if not hasattr(factory, "get_tir") or getattr(factory.func.orig_func, "__module__", "") != module.__name__:
                continue
            identity = f"{backend}.{stem}.{name}"
            if "fused_norm_rope" in name:
                fused(identity, module, factory, layouts, out, backend)
                continue
            options = {**common, **booleans(factory), **special.get(name, {})}
            if name == "norm_tl":
                for options in norm_sets(norm, booleans(factory)):
                    elaborate(identity, factory, options, {}, out, limit=40)
                continue
            elaborate(identity, factory, options, {}, out)


def norm_sets(
    base: Mapping[str, Sequence[Any]], flags: Mapping[str, Sequence[Any]]
) -> Iterator[dict[str, Sequence[Any]]]:
    """norm_tl's arguments depend on each other: with and without an fp8 cast, and with shared scales."""
    no_cast = {"do_fp8_cast": (False,), "num_per_channels": (0,), "return_dtype": ("bfloat16",), "shared_sf_block_m": (0,), "use_packed_ue8m0": (False,),
               "use_tma_aligned_col_major_sf": (False,)}  # fmt: skip
    cast = {
        "do_fp8_cast": (True,),
        "num_per_channels": (32, 128),
        "return_dtype": ("float8_e4m3fn",),
        "shared_sf_block_m": (0,),
    }
    shared = {
        **cast,
        "shared_sf_block_m": (128,),
        "use_packed_ue8m0": (True,),
        "round_sf": (True,),
        "use_tma_aligned_col_major_sf": (True,),
    }
    for change in (no_cast, cast, shared):
        yield {**base, **flags, **change}


class StandIn:
    """In a jit factory's place: elaborates, and its kernel notes which tensor was given for which argument."""

    def __init__(self, factory: Any) -> None:
        self.factory = factory
        self.found: dict[str, dict[str, bool]] = {}
        self.tensors: dict[int, dict[str, bool]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Callable[..., None]:
        self.found = accesses(self.factory.get_tir(*args, **kwargs))
        return self.launch

    def launch(self, *given: Any) -> None:
        # Every argument of this kernel is a tensor.
        for tensor, seen in zip(given, self.found.values(), strict=True):
            if tensor is not None:
                self.tensors[tensor.data_ptr()] = seen


def fused(identity: str, module: Any, kernel: Any, layouts: Sequence[Any], out: dict[str, Any], backend: str) -> None:
    """The fused transform: on Ascend a plain function whose closure calls the jit kernel; its tensors are followed through."""
    import torch

    sets: list[dict[str, Any]] = []
    base = {"do_norm": True, "norm_eps": 1e-6, "do_rope": True, "rotary_dim": 64, "positions_dtype": "int64", "is_neox": False, "conjugate": False,
            "do_hadamard": False, "hadamard_scale": 1.0, "cast_fmt": "", "num_per_channels": 0, "round_sf": False, "sf_format": "", "return_bf16": True,
            "bf16_stage": "transform", "return_quant": False, "cache_layout": None, "block_size": 1, "small_batch": True}  # fmt: skip
    for head_dim in (512, 128):
        plain = {**base, "head_dim": head_dim, "rope_offset": head_dim - 64}
        sets.append(plain)
        sets.append(
            {**plain, "do_norm": False, "do_rope": False, "rotary_dim": 0, "rope_offset": 0, "do_hadamard": True}
        )
        sets.append(
            {
                **plain,
                "cast_fmt": "e4m3",
                "num_per_channels": 32,
                "round_sf": True,
                "sf_format": "ue8m0",
                "return_quant": True,
                "return_bf16": False,
            }
        )
        for layout in layouts:
            if layout.num_elements == head_dim:
                sets.append({**plain, "cast_fmt": layout.quantized_dtype, "num_per_channels": layout.elements_per_sf, "return_bf16": layout.quantized_dtype == "e4m3",
                             "round_sf": layout.sf_format == "ue8m0", "sf_format": layout.sf_format, "cache_layout": layout, "block_size": 64})  # fmt: skip
    public = module.fused_norm_rope_hadamard_cast_store_kvcache_tl
    row = out.setdefault(
        identity.rpartition(".")[0] + ".fused_norm_rope_hadamard_cast_store_kvcache_tl",
        {"sets": 0, "refused": 0, "failed": [], "arguments": {}},
    )
    inner = out.setdefault(identity, {"sets": 0, "refused": 0, "failed": [], "arguments": {}})

    def join(target: dict[str, Any], name: str, seen: Mapping[str, bool]) -> None:
        known = target["arguments"].setdefault(name, {"read": False, "written": False, "lost": False})
        for key, value in seen.items():
            known[key] |= value

    for values in sets:
        try:
            if public is kernel:
                found = accesses(kernel.get_tir(num_heads=1, **values))
                for name, seen in found.items():
                    join(row, name, seen)
                row["sets"] += 1
                continue
            stand_in = StandIn(kernel)
            head_dim, layout = values["head_dim"], values["cache_layout"]
            setattr(module, identity.rpartition(".")[2], stand_in)
            try:
                launch = public(1, **values)
                rows = 4
                packs = head_dim // (values["num_per_channels"] or head_dim)
                tensors = {
                    "x": torch.empty(rows, 1, head_dim, dtype=torch.bfloat16),
                    "weight": torch.empty(head_dim, dtype=torch.bfloat16) if values["do_norm"] else None,
                    "positions": torch.empty(rows, dtype=torch.int64) if values["do_rope"] else None,
                    "cossin": torch.empty(64, 64) if values["do_rope"] else None,
                    "sin": None,
                    "out_bf16": torch.empty(rows, 1, head_dim, dtype=torch.bfloat16) if values["return_bf16"] else None,
                    "out_quant": torch.empty(rows, 1, head_dim, dtype=torch.int8) if values["return_quant"] else None,
                    "out_sf": torch.empty(rows, 1, packs, dtype=torch.uint8) if values["return_quant"] else None,
                    "kv_cache": (
                        torch.empty(4, 64, layout.bytes_per_token, dtype=torch.uint8) if layout is not None else None
                    ),
                    "slot_mapping": torch.empty(rows, dtype=torch.int32) if layout is not None else None,
                }
                launch(**tensors)
            finally:
                setattr(module, identity.rpartition(".")[2], kernel)
            for name, tensor in tensors.items():
                join(row, name, stand_in.tensors.get(tensor.data_ptr(), {}) if tensor is not None else {})
            for name, seen in stand_in.found.items():
                join(inner, name, seen)
            row["sets"] += 1
            inner["sets"] += 1
        except AssertionError:
            row["refused"] += 1
        except Exception as error:
            row["failed"].append(f"{type(error).__name__}: {str(error)[:160]}")


# ---------------------------------------------------------------------------- TileKernels


def tile_kernels(backend: str, out: dict[str, Any]) -> None:
    """The factories of tile_kernels for one backend, with plausible arguments."""
    import torch
    from tilelang import language as T

    common = importlib.import_module("tile_kernels.quant.common")
    asc = backend == "asc"

    def output(fmt: str, block: tuple[int, int], **flags: bool) -> Any:
        return common.get_cast_output_config(fmt, block, **flags)

    def source(dtype: Any, block: tuple[int, int] | None = None, **flags: bool) -> Any:
        return common.get_cast_input_config_impl(dtype, block, **flags)

    packed = {"use_tma_aligned_col_major_sf": True, "round_sf": True, "use_packed_ue8m0": True}
    blocks = [(1, 32), (32, 32), (32, 1), (1, 16)] + ([] if asc else [(1, 128), (128, 128), (128, 1)])
    outputs = [
        output(fmt, block, **flags)
        for block in blocks
        for fmt in ("e4m3", "e2m1")
        for flags in ({}, {"round_sf": True}, packed)
    ]
    outputs += [output("e2m1", (1, 16), use_e4m3_sf=True), output("bf16", (1, 1)), output("fp32", (1, 1))]
    plain = [source(torch.bfloat16), source(torch.float32)]
    packed_in = {"use_tma_aligned_col_major_sf": True, "use_packed_ue8m0": True}
    quantized = [
        source(dtype, block, **flags)
        for block in blocks
        for dtype in (torch.float8_e4m3fn, torch.int8)
        for flags in ({}, packed_in)
    ]
    base: dict[str, Sequence[Any]] = {
        "L": (3,), "act_x_grad_dtype": (T.bfloat16,), "alignment": (128,), "alpha": (0.5,), "beta1": (0.9,), "block_size": (32, 4096), "clamp_value": (1e-6, 10.0, None),
        "cos_sin_stride": (64,), "dtype": (T.bfloat16, T.float32), "eps": (1e-6,), "grad_dtype": (T.bfloat16,), "h_blk": (512, 256), "hc_mult": (4,), "head_dim": (512, 1024),
        "hidden": (2048, 1024), "hidden_block": (512,), "hidden_size": (4096, 2048), "in_config": (*plain, *quantized), "in_dtype": (T.bfloat16, T.float32, T.float8_e4m3fn),
        "max_ngram_size": (3,), "mega_moe_block_m": (0, 128), "mhc_mult3": (24,), "mhc_post_mult_value": (2.0,), "mhc_pre_eps": (1e-6,), "mhc_sinkhorn_eps": (1e-6,),
        "momentum_dtype": (T.float32,), "n_hint": (1, 256, 4096), "n_splits": (1, 16), "n_thr": (128, 64), "nheads": (8,), "num_ctas": (396,), "num_duplicate_experts": (0,),
        "num_embed_table_per_ngram": (8,), "num_experts": (8, 256), "num_ngram_layers": (2,), "num_partials": (16,), "num_persistent_blocks": (132,),
        "num_routed_experts": (256,), "num_shared_experts": (0, 1), "num_sms": (132,), "num_stages": (2, 3), "num_topk": (6, 8), "num_vec_cores": (64,),
        "out_config": outputs, "out_dtype": (T.bfloat16, T.float32), "out_scale": (1.0, 0.5), "positions_dtype": (T.int32, T.int64), "repeat": (4,), "rms_eps": (1e-6,),
        "rms_group_size": (16384,), "rotary_dim": (64,), "scalar": (0.1,), "sinkhorn_repeat": (4,), "tile_size": (512,), "token_block": (4,), "token_block_size": (4, 8, 32),
        "token_stride": (2048, 1024), "unroll_factor": (2,), "vec": (4, 8), "weight_grad_dtype": (T.float32, T.bfloat16), "x_dtype": (T.bfloat16, T.float32), "x_stride_0": (512,),
        "x_stride_1": (64,),
    }  # fmt: skip
    special: dict[str, dict[str, Sequence[Any]]] = {
        **{f"get_engram_gate_{way}_kernel_{backend}": {"clamp_value": (1e-6,)} for way in ("fwd", "bwd")},
        "get_cast_kernel_asc": {"in_dtype": (T.float32,), "out_dtype": (T.bfloat16,)},
        "get_cast_kernel_cuda": {"in_dtype": (T.float32,), "out_dtype": (T.bfloat16,)},
        "get_randn_kernel_asc": {"dtype": (T.bfloat16, T.float32), "block_size": (4096,)},
        "get_batched_transpose_weight_sf_kernel_asc": {"block_size": (32,)},
        "get_batched_transpose_weight_sf_kernel_cuda": {"block_size": (32, 128)},
        "get_swiglu_forward_kernel_asc": {"clamp_value": (10.0, None)},
        "get_swiglu_forward_and_per_token_cast_kernel_cuda": {"clamp_value": (10.0, None)},
    }
    swiglu_backward: tuple[dict[str, Sequence[Any]], ...] = (
        {"x_dtype": (T.float8_e4m3fn,), "out_config": (output("e4m3", (1, 32), **packed),)},
        {"x_dtype": (T.bfloat16,), "out_config": (output("bf16", (1, 1)),)},
    )
    variants: dict[str, tuple[dict[str, Sequence[Any]], ...]] = {
        "get_norm_forward_and_per_token_cast_kernel_cuda": (
            {},
            {"out_config": (output("e4m3", (1, 32), round_sf=True),), "mega_moe_block_m": (128,)},
        ),
    }
    variants |= dict.fromkeys(
        ("get_swiglu_backward_kernel_asc", "get_swiglu_backward_and_per_token_cast_kernel_cuda"), swiglu_backward
    )
    constants = {"mhc": 4, "h": 4096, "hidden": 4096, "hidden_size": 4, "mhc_mult": 4, "mhc_mult3": 24, "mhc_mult2": 16, "mhc3": 24, "mhc2": 16, "m": 24, "n": 1024,
                 "L": 3, "L_post": 2, "n_rms_group": 1}  # fmt: skip
    root = Path(importlib.import_module("tile_kernels").__path__[0])
    for path in sorted(root.rglob(f"*_{backend}.py")):
        name = ".".join(("tile_kernels", *path.relative_to(root).with_suffix("").parts))
        module = importlib.import_module(name)
        for symbol, factory in sorted(vars(module).items()):
            if not hasattr(factory, "get_tir") or factory.func.orig_func.__module__ != name:
                continue
            options = {
                **base,
                "stochastic_rounding": (False,),
                **booleans(factory, skip=("stochastic_rounding", "stochastic_cast", "small_batch")),
                **special.get(symbol, {}),
            }
            if "in_config" in inspect.signature(factory.func.orig_func).parameters or "cast_and_cast_back" in symbol:
                casts(f"{name}.{symbol}", factory, options, out)
                continue
            parameters = inspect.signature(factory.func.orig_func).parameters
            own = {key: value for key, value in constants.items() if key not in parameters}
            if "pre_big_fuse" in symbol:
                own["hidden_size"] = 4096
            if symbol == "mhc_pre_split_mixes_bwd_cuda":
                own["num_sms"] = 132
            for change in variants.get(symbol, ({},)):
                elaborate(
                    f"{name}.{symbol}", factory, {**options, **change}, own if has_constants(factory) else {}, out
                )


def casts(identity: str, factory: Any, options: Mapping[str, Sequence[Any]], out: dict[str, Any]) -> None:
    """Casts take configurations that must fit each other: try them pair by pair, all other options at their first choice."""
    parameters = inspect.signature(factory.func.orig_func).parameters
    pairs = list(
        itertools.product(
            options["in_config"] if "in_config" in parameters else (None,),
            options["out_config"] if "out_config" in parameters else (None,),
        )
    )
    flags = [name for name in ("sf_only", "cast_only", "use_pdl") if name in parameters]
    row: dict[str, Any] = out.setdefault(identity, {"sets": 0, "refused": 0, "failed": [], "arguments": {}})
    for values in (
        dict.fromkeys(flags, False),
        *({**dict.fromkeys(flags, False), flag: True} for flag in flags),
    ):
        before = row["sets"]
        for given, wanted in pairs:
            if row["sets"] - before >= 4:
                break
            chosen: dict[str, Sequence[Any]] = {name: (choices[0],) for name, choices in options.items()}
            chosen.update({name: (value,) for name, value in values.items()})
            if given is not None:
                chosen["in_config"] = (given,)
            if wanted is not None:
                chosen["out_config"] = (wanted,)
            chosen["stochastic_cast"] = chosen["small_batch"] = (False,)
            elaborate(identity, factory, chosen, {}, out, limit=row["sets"] + 1)


def has_constants(factory: Any) -> bool:
    return "T.const" in inspect.getsource(factory.func.orig_func)


def main(backend: str, deepinfer_root: str, tile_kernels_root: str) -> None:
    # TileLang prints its warnings to standard output: keep that for the answer alone.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    prepare(backend, (deepinfer_root, tile_kernels_root))
    out: dict[str, Any] = {}
    deepinfer(backend, out)
    tile_kernels(backend, out)
    for row in out.values():
        row["order"] = list(row["arguments"])
    operations = {
        *importlib.import_module(f"tilelang.{'ascend' if backend == 'asc' else 'cuda'}.language").__all__,
        *importlib.import_module("tilelang.language").__all__,
    }
    json.dump({"factories": out, "operations": sorted(operations)}, answer, indent=1, sort_keys=True)
    answer.close()


if __name__ == "__main__":
    main(*sys.argv[1:4])
