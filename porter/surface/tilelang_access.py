"""What TileLang's operations do to the buffers they are given: written, handed back as an alias, or handed away.

Read from TileLang 0.1.15 (``tilelang/language``, ``tilelang/ascend/language``) and from tilelang-ascend
(``tilelang/language/ascend_tile.py``). Names are without the language's own name: ``copy``, ``simd.vsts``, ``tile.add``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Access:
    """``parameters`` in order; positions ``written``; position ``alias`` whose buffer the call gives back (-1: none)."""

    parameters: tuple[str, ...] = ()
    written: tuple[int, ...] = ()
    alias: int = -1


def _access(text: str) -> tuple[str, Access]:
    """``copy: src dst*``: ``*`` marks a written parameter, ``&`` the one that is handed back."""
    name, _, rest = text.partition(":")
    words = rest.split()
    written = tuple(i for i, word in enumerate(words) if "*" in word)
    alias = next((i for i, word in enumerate(words) if "&" in word), -1)
    return name.strip(), Access(tuple(word.strip("*&") for word in words), written, alias)


_TABLE: Mapping[str, Access] = dict(_access(line) for line in """
    copy: src dst*
    async_copy: src dst*
    tma_copy: src dst*
    copy_cluster: src dst*
    dual_copy: src dst*
    transpose: src dst*
    npu_copy_v2: src dst*
    im2col: img col*
    im2col_impl: img col*
    c2d_im2col: img col*
    tma_gather4: src dst*
    tma_scatter4: src dst*
    fill: buffer* value
    clear: buffer*
    reduce: buffer out*
    reduce_max: buffer out*
    reduce_min: buffer out*
    reduce_sum: buffer out*
    reduce_abssum: buffer out*
    reduce_absmax: buffer out*
    reduce_bitand: buffer out*
    reduce_bitor: buffer out*
    reduce_bitxor: buffer out*
    reducer_init: reducer*
    reducer_update: target* value
    finalize_reducer: reducer dst*
    cumsum: src dst*
    cummax: src dst*
    cumsum_fragment: src dst*
    cummax_fragment: src dst*
    gemm: A B C*
    gemm_v0: A B C*
    gemm_v1: A B C*
    npu_gemm: A B C*
    mma: A B C*
    gemm_blockscaled: A B C*
    mma_gemm_blockscaled: A B C*
    wgmma_gemm: A B C*
    tcgen05_gemm: A B C*
    tcgen05_gemm_blockscaled: A B C*
    gemm_sp: A_sparse E B C*
    wgmma_gemm_sp: A_sparse E B C*
    tcgen05_gemm_sp: A_sparse E B C*
    dp4a: A B C*
    atomic_add: dst* value
    atomic_addx2: dst* value
    atomic_addx4: dst* value
    atomic_max: dst* value
    atomic_min: dst* value
    atomic_or: dst* value
    atomic_and: dst* value
    atomic_xor: dst* value
    atomic_cas: dst* compare value
    atomic_exchange: dst* value
    atomic_store: dst* src
    atomic_load: src
    stg32: dst* value
    stg64: dst* value
    stg128: dst* value
    stg256: dst* value
    sts32: dst* value
    sts64: dst* value
    sts128: dst* value
    cooperative_tensor_store: data idx ptr*
    ascend_nd2nz_post_copy: dst* src
    reinterpretcast: dst* src
    shmem_put_nbi: dst* src
    shmem_ub_put_nbi: ub dst*
    shmem_get_nbi: dst* src
    shmem_ub_get_nbi: dst* src
    ptx_cp_async: dst_access_ptr* src_access_ptr
    buffer_store: buffer* value
    simd.vsts: addr* src
    simd.pst: addr* src
    simd.vsstb: src base*
    simd.vscatter: src base*
    simd.vmula: dst* src0 src1
    simd.vmadd: dst* src0 src1
    simd.vaxpy: dst* src
    simd.dhistv2: dst* src
    simd.chistv2: dst* src
    simd.make_ubuf_ptr: buf_access&
    reshape: src& shape
    view: src& shape
    make_tensor: ptr& shape
    make_tensor_from_addr: addr& shape
    match_buffer: param& shape
    Tensor.from_ptr: pointer_var& shape
    Buffer.from_ptr: pointer_var& shape
    StridedTensor.from_ptr: pointer_var& shape
    Tensor: shape dtype data&
    Buffer: shape dtype data&
    SharedBuffer: shape dtype data&
    FragmentBuffer: shape dtype data&
    LocalBuffer: shape dtype data&
    StridedTensor: shape strides dtype scope data&
    decl_buffer: shape dtype data&
    buffer: shape dtype data&
    buffer_decl: shape dtype data&
    address_of: buffer&
    handle_add_byte_offset: handle&
    bind: value&
    meta_var: value&
    let: value&
    reinterpret: value& dtype
    """.strip().splitlines())

# access_ptr(base, access_type, ...) and region(buffer, access_type, ...) say themselves what happens to the buffer.
SELF_DESCRIBING: Mapping[str, tuple[int, int]] = {"access_ptr": (0, 1), "region": (0, 1), "tvm_access_ptr": (1, 4)}

# Foreign code: what it does with a pointer is not to be known.
_FOREIGN = re.compile(
    r"call_(extern|packed|cpacked|intrin|llvm_intrin|kernel)(_lowered)?|.*_call_c?packed|tvm_call_.*|shmem_.*|CUDASourceCodeKernel"
)

_DTYPE = re.compile(r"(u?int|t?float|bfloat|bool|half|double|short|long|handle|void|ptr)\d*(_\w+)?(x\d+)?")

# Operations that only read, by family and by name.
_READS = re.compile(
    r"""
    (alloc|allocate|annotate|get|set|is|has|assume|sync|syncthreads|shfl|ballot|warp_reduce|ieee|ptx|tcgen05|wgmma|tma_store|tma_load|mbarrier|barrier
     |cluster|warpgroup|fence|pdl|rng|create|initialize|increase|clc|dec|inc|no_set|named_barrier|wait|match_any|match_all|call_pure|tvm
     |cross|pipe|ascend|bitwise|shift|block|thread|ws|sblock|llvm|q_multiply|cooperative|disable|deallocate|make_\w+_layout|call_llvm_pure
     |anylist_getitem|anylist_resetitem|compute|cp_async|import)(_\w+)?
    | (floor|trunc)(div|mod)? | vector(low|high|combine)? | (lds|ldg)\d+ | WS\w+(\.\w+)* | TVMBackend\w+ | shuffle_elect | mma_store_index_map
    | simd\.\w+
    | (Cast|Select|If|Then|Else|Kernel|ClusterKernel|MixedKernel|Parallel|Persistent|Pipelined|Serial|Unroll|Vectorized|Scope|Cube|Vector|SimdVF
       |SimtVF|Stage|Task|PerCoreTask|WarpSpecialize|Layout|Fragment|PartialFragment|Ramp|Broadcast|Range|Var|And|Or|Not|Max|Min|Add|Sub|Mul|Div
       |Mod|EQ|NE|LT|LE|GT|GE|FloorDiv|FloorMod|Assert|While|GemmWarpPolicy|\w*TileScheduler|\w*Emitter|\w*Frame)(\.\w+)*
    | (abs|abs2|acos|acosh|activemask|add2|align_up|all_of|all_sync|any_of|any_sync|asin|asinh|atan|atan2|atanh|attr|axis|break_loop|cast|cdiv|ceil
       |ceildiv|clamp|clz|comm_reducer|const|continue_loop|copysign|cos|cosh|device_assert|dump_tensor|dtype|dynamic|empty|env_thread|erf
       |evaluate|exp|exp10|exp2|extract_lane|fabs|fast_rcp|fma|fma2|fmod|fmul|func_attr|grid|hypot|if_then_else|ignore_loop_partition|index_map
       |index_to_coordinates|infinity|init|isfinite|isinf|isnan|isnullptr|iter_var|launch_thread|ldexp|likely|log|log10|log1p|log2
       |loop_break|max|max2|max_value|min|min2|min_value|mul2|nearbyint|nextafter|parallel|popcount|pow|print|printf|ramp|reads|ret|round
       |rsqrt|serial|sigmoid|sin|sinh|sqrt|sub2|symbolic|tan|tanh|target|type_annotation|undef|unroll|use_swizzle|validate_gemm_ab_dtypes|var
       |vscale|where|writes|end_profile_intrinsic|start_profile_intrinsic|lookup_param|arg|boolean|broadcast|buffer_var|func_name|func_ret|isnan|vectorized|tma_gather4_bytes|inline|macro|prim_func|meta_class)
    | (__\w+)
    """,
    re.VERBOSE,
)


@cache
def access_of(operation: str) -> Access | None:
    """What an operation does to its arguments; None where that is not known."""
    found = _TABLE.get(operation)
    if found is not None:
        return found
    if operation.startswith("tile."):
        return _DESTINATION_FIRST
    if _READS.fullmatch(operation) or _DTYPE.fullmatch(operation):
        return _NOTHING
    return None


def is_dtype(name: str) -> bool:
    """Is that the name of a scalar type (``float32``, ``float4_e2m1fnx2``)?"""
    return _DTYPE.fullmatch(name) is not None and name not in ("handle", "ptr", "void")


def is_foreign(operation: str) -> bool:
    """Does the operation hand its arguments to code that TileLang does not see?"""
    return operation not in _TABLE and _FOREIGN.fullmatch(operation) is not None


def foreign_reads(function: str) -> bool:
    """Is a foreign function, by its name, one that writes nothing: a prefetch, or a CUDA intrinsic on values?"""
    return "prefetch" in function.lower() or (
        function.startswith("__") and not function.startswith(("__st", "__atomic"))
    )


_NOTHING = Access()
# Every operation of tilelang-ascend's tile namespace takes its destination first.
_DESTINATION_FIRST = Access(("dst",), (0,))
