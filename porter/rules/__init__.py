"""Kernel rules: static checks on override files, numbered and documented, one module a rule."""

from __future__ import annotations

from porter.rules import (
    complex_number,
    device_named,
    dynamic_shape,
    expanded_index,
    float8_form,
    host_operator,
    host_sync,
    index_dtype,
    integer_collective,
    integer_matmul,
    integer_power,
    integer_scatter,
    integer_topk,
    missing_docstring,
    narrow_shift,
    rebound_output,
    stale_comment,
    strided_write,
    suppression,
    tensor_unplaced,
    unreadable,
    wide_constant,
    wide_float,
)
from porter.rules.base import Rule

_MODULES = (
    unreadable, device_named, tensor_unplaced, host_sync, stale_comment, index_dtype, missing_docstring, rebound_output,
    wide_float, complex_number, integer_topk, integer_scatter, narrow_shift, integer_matmul, integer_collective, integer_power,
    wide_constant, float8_form, dynamic_shape, strided_write, host_operator, expanded_index, suppression,
)  # fmt: skip

# Every rule by its code.
RULES: dict[str, Rule] = {module.RULE.code: module.RULE for module in _MODULES}

__all__ = ["RULES", "Rule"]
