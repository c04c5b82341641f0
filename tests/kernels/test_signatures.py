"""Every factory and kernel of these modules takes what upstream's takes, by name and order."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

FACTORIES: dict[str, dict[str, tuple[Any, ...]]] = {
    "gather": {"gather_tl": (4, torch.int8, torch.int32, 4)},
    "swa_index": {"expand_swa_index_tl": (8,)},
    "get_kv_index": {"load_kv_index_tl": (8, 4, True), "get_fused_dflash_get_input_tl": (8, 64, True, True)},
    "kv_index_cat": {"kv_index_cat_tl": ("int32", 8, 8, 16)},
    "flash_mla_utils": {"convert_kv_index_tl": (1, 8, 4, 16)},
    "candidate_blocks": {
        "candidate_block_max_tl": (64, 8),
        "get_candidate_compact_lens_tl": (8, 8),
        "restore_candidate_indices_inplace_tl": (8, 8, 8, True),
    },
    "prepare_v4_decode_metadata": {
        "copy_block_tables_tl": (1, 8),
        "prepare_v4_decode_metadata_tl": (1, 8, 8, 8, 8, False, (1,), (), (1,)),
    },
    "sampler": {
        "prepare_verification_metadata_tl": (1,),
        "expand_sampling_params_tl": (),
        "map_lookup_tl": (64,),
        "remap_draft_topk_tl": (64, 128),
        "get_accept_result_tl": (True,),
        "finalize_verification_tl": (True, True, 1, 2),
    },
    "fused_sample": {"fused_sample_tl": (64, True, True)},
    "random_sampling": {"random_sampling_tl": (64, False)},
    "structure_output": {"apply_token_bitmask_by_step_inplace_tl": (64, True)},
    "sum_smaller_probs": {"sum_smaller_probs_tl": (64,)},
    "state_cache": {"select_state_slice_tl": (8, 4, 1, 4), "load_state_to_cache_tl": (8, 4, 1, 4)},
    "compute_seqlens_k_zos": {"compute_seqlens_k_zos_tl": (1,)},
    "gather_input_ids_zos": {"gather_input_ids_zos_tl": (2,)},
    "gather_engram_tokens_zos": {"gather_engram_tokens_zos_tl": (2, 3, 0, -1)},
    "schedule_mtp_varlen": {"compute_seqlens_q_by_confidence_rates_tl": (2,)},
    "store_mtp_info": {"store_mtp_info_tl": (1, 64, True, True)},
    "dflash": {"confidence_head_fused_tl": (128, 0, False), "dflash_input_store_tl": (128, 4)},
    "dflash_copy": {"copy_dflash_decode_input_tl": (True,)},
    "prepare_cp_mirror": {"prepare_cp_mirror_tl": (2, (1,)), "yoco_cp_boundary_fused_tl": (2,)},
    "image_embed_ops": {
        "replace_input_embeds_tl": (128,),
        "rgb_pad_to_patches_tl": (14,),
        "batch_downsample_tl": (2, 128, True, torch.float32),
    },
}
SCRATCH = {"candidate_block_max_tl": 3}  # outputs that the compiled kernel allocates itself
DELEGATED = {"select_state_slice_tl": "_state_cache_copy_tl", "load_state_to_cache_tl": "_state_cache_copy_tl"}


def functions(module: Path) -> dict[str, ast.FunctionDef]:
    return {n.name: n for n in ast.parse(module.read_text(encoding="utf-8")).body if isinstance(n, ast.FunctionDef)}


def parameters(function: ast.FunctionDef) -> list[tuple[str, str | None]]:
    arguments = function.args
    assert not arguments.posonlyargs and not arguments.kwonlyargs and not arguments.vararg and not arguments.kwarg
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + [ast.unparse(d) for d in arguments.defaults]
    return list(zip((a.arg for a in arguments.args), defaults, strict=True))


def kernel_names(factory: ast.FunctionDef) -> list[list[str]]:
    """Argument names of each compiled function in a factory."""
    found = (n for n in ast.walk(factory) if isinstance(n, ast.FunctionDef))
    return [
        [a.arg for a in n.args.args] for n in found if any(ast.unparse(d) == "T.prim_func" for d in n.decorator_list)
    ]


@pytest.mark.parametrize("module, name", [(m, n) for m, names in FACTORIES.items() for n in names])
def test_names(source_root: Callable[[str], Path], module: str, name: str) -> None:
    folder = source_root("deepinfer") / "deepinfer" / "model_executor" / "layers" / "tilelang_ops" / "asc"
    theirs = functions(folder / f"{module}.py")
    ours = importlib.import_module(f"overrides.tilelang_ops.{module}")
    mine = functions(Path(ours.__file__ or ""))
    assert parameters(mine[name]) == parameters(theirs[name])
    kernel = getattr(ours, name)(*FACTORIES[module][name])
    kernels = kernel_names(theirs[DELEGATED.get(name, name)])
    assert kernels
    for names in kernels:
        assert list(inspect.signature(kernel).parameters) == names[: len(names) - SCRATCH.get(name, 0)]


def test_every_factory_of_these_modules_is_there(source_root: Callable[[str], Path]) -> None:
    folder = source_root("deepinfer") / "deepinfer" / "model_executor" / "layers" / "tilelang_ops" / "asc"
    for module, names in FACTORIES.items():
        exported = {n for n in functions(folder / f"{module}.py") if n.endswith("_tl") and not n.startswith("_")}
        assert exported == set(names), module
