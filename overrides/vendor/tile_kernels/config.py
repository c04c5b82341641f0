"""Run-time settings of ``tile_kernels.config``, with the answers an Ascend process would give.

Settings are kept and returned; nothing on this device depends on them but the token alignment and the clamps.
"""

from __future__ import annotations

import functools

import torch

_DEFAULT_NUM_SMS = 0
_DEFAULT_USE_PDL = False
_DEFAULT_DETERMINISTIC = False
_DEFAULT_TOKEN_ALIGNMENT = 128
_DEFAULT_CLAMP_MIN_VALUES = {
    ("e4m3", False): 1e-4,
    ("e4m3", True): 448.0 * 2.0**-9,
    ("e2m1", False): 6.0 * 2.0**-126,
    ("e2m1", True): 6.0 * 2.0**-9,
}
# Callers hand out compute units by number, as they do on Ascend; there is nothing here to hand out, so the number is only
# large enough for any share that they keep back for communication.
_DEVICE_NUM_SMS = 64
_UB_SIMT = 216 * 1024
_UB_SIMD = 248 * 1024

_num_sms = _DEFAULT_NUM_SMS
_use_pdl = _DEFAULT_USE_PDL
_deterministic_algorithms = _DEFAULT_DETERMINISTIC
_token_alignment = _DEFAULT_TOKEN_ALIGNMENT
_clamp_min_values = _DEFAULT_CLAMP_MIN_VALUES.copy()


@functools.lru_cache(maxsize=1)
def is_ascend() -> bool:
    """True: this backend keeps Ascend's contracts (two ue8m0 bytes an int16, one GEMM partial, unpadded scales)."""
    return True


@functools.lru_cache(maxsize=1)
def get_device() -> str:
    """Type of the accelerator that torch found, or of torch's default device when it found none."""
    # porter: ignore[PT101] it asks which device there is
    found = torch.accelerator.current_accelerator(check_available=True)
    return torch.get_default_device().type if found is None else found.type


@functools.cache
def get_device_num_sms() -> int:
    """How many units callers may share out; see ``set_num_sms``."""
    return _DEVICE_NUM_SMS


def set_num_sms(num_sms: int) -> None:
    """Remember how many units kernels may use: more than 0, at most ``get_device_num_sms()``. It changes no result."""
    global _num_sms
    assert 0 < num_sms <= get_device_num_sms(), f"expected 1 to {get_device_num_sms()} units, got {num_sms}"
    _num_sms = num_sms


def get_num_sms() -> int:
    """What ``set_num_sms`` was given, all units before that."""
    return _num_sms or get_device_num_sms()


def get_num_vec_cores() -> int:
    """Two vector units for each of ``get_num_sms()``, as on Ascend."""
    return get_num_sms() * 2


@functools.cache
def get_max_ub_per_vector_core(use_simt: bool = True) -> int:
    """Bytes of a vector unit's buffer as Ascend states them; kernels here do not tile by it."""
    return _UB_SIMT if use_simt else _UB_SIMD


def set_token_alignment(token_alignment: int) -> None:
    """Set the row alignment of experts in the expanded layout (``psum_num_tokens_per_expert``)."""
    global _token_alignment
    _token_alignment = token_alignment


def get_token_alignment() -> int:
    """The row alignment of experts in the expanded layout; 128 until it is set."""
    return _token_alignment


def reset_runtime_config() -> None:
    """Bring every setting back to its default."""
    global _num_sms, _use_pdl, _deterministic_algorithms, _token_alignment, _clamp_min_values
    _num_sms = _DEFAULT_NUM_SMS
    _use_pdl = _DEFAULT_USE_PDL
    _deterministic_algorithms = _DEFAULT_DETERMINISTIC
    _token_alignment = _DEFAULT_TOKEN_ALIGNMENT
    _clamp_min_values = _DEFAULT_CLAMP_MIN_VALUES.copy()


def set_pdl(use_pdl: bool) -> None:
    """Remember whether dependent launches were asked for; there are none here."""
    global _use_pdl
    _use_pdl = use_pdl


def get_pdl() -> bool:
    """What ``set_pdl`` was given."""
    return _use_pdl


def use_deterministic_algorithms(enabled: bool) -> None:
    """Remember whether repeatable results were asked for; every function of this package repeats its results anyway."""
    global _deterministic_algorithms
    _deterministic_algorithms = bool(enabled)


def get_deterministic_algorithms() -> bool:
    """What ``use_deterministic_algorithms`` was given."""
    return _deterministic_algorithms


def set_amax_clamp_for_quant(fmt: str, use_e4m3_sf: bool, clamp_min_value: float) -> None:
    """Set the least magnitude that a group of values of ``fmt`` is taken to have.

    Raises:
        ValueError: ``fmt`` is neither ``e4m3`` nor ``e2m1``.
    """
    _validate_quant_fmt(fmt)
    _clamp_min_values[(fmt, use_e4m3_sf)] = clamp_min_value


def get_amax_clamp_for_quant(fmt: str, use_e4m3_sf: bool) -> float:
    """The least magnitude that a group of values of ``fmt`` is taken to have, for e4m3 or other scales.

    Raises:
        ValueError: ``fmt`` is neither ``e4m3`` nor ``e2m1``.
    """
    _validate_quant_fmt(fmt)
    return _clamp_min_values[(fmt, use_e4m3_sf)]


def _validate_quant_fmt(fmt: str) -> None:
    if fmt not in ("e4m3", "e2m1"):
        raise ValueError(f"{fmt!r} is no quantised format: expected 'e4m3' or 'e2m1'")
