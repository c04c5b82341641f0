"""What strict mode finds: every code, what it says, and the rewrite that avoids it.

``NCC_`` codes are those of the device's compiler, as its documentation lists them. ``SIM`` codes are costs and limits of the
device that no compiler reports.
"""

from __future__ import annotations

from dataclasses import dataclass

HOST_SYNC, WIDE = "host sync", "64-bit"


@dataclass(frozen=True)
class Code:
    """``mark``: the NEURON comment that allows it, "" for none. ``source``: who says so."""

    code: str
    title: str
    rewrite: str
    source: str
    mark: str = ""


_COMPILER = "neuronx-cc error codes (AWS Neuron documentation, compiler/error-codes)"
_EAGER = "torch-neuronx pre-release source, April 2026"
_MEASURED = "measured on trn2.3xlarge, torch-neuronx 2.12 pre-releases (xpu_perf, Neuron notes)"

CODES: dict[str, Code] = {
    one.code: one
    for one in (
        Code(
            "SIM101", "the host waits for the device to read a value",
            "keep the value in a tensor; choose with torch.where", _MEASURED, HOST_SYNC,
        ),
        Code(
            "SIM102", "a tensor is copied from the device to the host",
            "stay on the device, or copy once outside the step", _MEASURED, HOST_SYNC,
        ),
        Code(
            "SIM103", "a tensor is copied from the host to the device",
            "make it on the device (torch.arange, torch.full with device=), or upload it once and keep it", _MEASURED,
            HOST_SYNC,
        ),
        Code("SIM104", "the operator has no device kernel and falls back to the CPU", "", _EAGER, HOST_SYNC),
        Code(
            "SIM105", "64-bit integers: the device computes 32 bits and casts on the CPU",
            "int32: dtype=torch.int32 where tensors are made and in sum and cumsum; int32 indices", _EAGER, WIDE,
        ),
        Code(
            "SIM106", "float64: the device computes float32 and casts on the CPU", "float32", _EAGER, WIDE,
        ),
        Code(
            "SIM107", "a write into a strided view copies the whole buffer",
            "keep caches as [rows, width] and write rows with index_put_ or index_copy_; build a whole row and write it once",
            _MEASURED,
        ),
        Code(
            "SIM108", "the shape of the result depends on values: it syncs and cannot be compiled",
            "masks: torch.where, masked_fill_; nonzero_static(size=...); output_size= in repeat_interleave", _EAGER, HOST_SYNC,
        ),
        Code(
            "SIM109", "all_to_all with parts of different sizes", "pad every part to the same number of rows", _EAGER,
        ),
        Code(
            "SIM110", "gather or scatter by a broadcast int64 index costs 8 to 2500 times as much",
            "index_select, x[index] or index_add_ with the small int32 index", _MEASURED,
        ),
        Code(
            "SIM111", "send and recv were not in the device's backend of April 2026",
            "broadcast or all_gather, or check your SDK", _EAGER,
        ),
        Code(
            "SIM112", "the runtime was started before init_process_group", "call init_process_group before any tensor is made",
            _EAGER,
        ),
        Code(
            "SIM113",
            "the caller's own tensor is strided: a write of it copies the whole buffer",
            "callers keep outputs and caches in one piece",
            _MEASURED,
        ),
        Code(
            "SIM114", "a compiled function is compiled again for other inputs",
            "one compiled callable a shape, warmed up before serving", _MEASURED,
        ),
        Code("NCC_EMOD025", "a dynamic dimension in a compiled graph", "torch.compile(..., dynamic=False)", _COMPILER),
        Code("NCC_EVRF013", "topk of integers", "cast to float32 first", _COMPILER),
        Code(
            "NCC_EVRF016", "a reduction by index (scatter, index_add) of integers or booleans",
            "reduce in float32, exact up to 2**24, or compare with every bin and sum", _COMPILER,
        ),
        Code("NCC_EVRF022", "a right shift of integers that are not 32 bits wide", "cast with .to(torch.int32) first", _COMPILER),
        Code("NCC_EVRF035", "a matrix product of integers", "cast to float first", _COMPILER),
        Code("NCC_EVRF061", "all_reduce of 32 or 64-bit integers", "cast to float32 before the reduction", _COMPILER),
        Code("NCC_EVRF063", "reduce_scatter of 32 or 64-bit integers", "cast to float32 before the reduction", _COMPILER),
        Code("NCC_EVRF062", "a power of 64-bit integers", "int32, or repeated products", _COMPILER),
        Code(
            "NCC_ESFH002", "a 64-bit constant beyond 32 bits", "a sentinel that fits int32, or a mask", _COMPILER,
        ),
        Code("NCC_EVRF004", "complex numbers", "real and imaginary parts in real arithmetic", _COMPILER),
        Code(
            "NCC_EVRF051", "an operand of float8_e4m3fn: Trainium 2 has no such type",
            "widen with .to(torch.bfloat16), which is lossless, before computing", _COMPILER,
        ),
        Code("NCC_EVRF005", "an fp8 type of the fnuz kind", "float8_e4m3fn, kept as bytes", _COMPILER),
        Code(
            "NCC_EOOM001", "tensors beyond the memory of one core", "shard, or free before allocating", _COMPILER,
        ),
    )
}  # fmt: skip
