"""Which operators have a device kernel, and what to write where one has none.

The list is data (``operators.txt``, one name a line) and can be replaced by that of an SDK.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from porter.sim.errors import SimError

DEFAULT = Path(__file__).with_name("operators.txt")

# Not kernels: they move no data on the device, or have their own finding.
_PLUMBING = frozenset({
    "alias", "detach", "resize", "set", "is_pinned", "record_stream", "lift_fresh", "nonzero", "masked_select", "item",
    "equal", "is_same_size", "unique_dim", "_unique2", "unique_consecutive", "unique_dim_consecutive", "bincount",
    "view_as_real", "view_as_complex", "is_set_to", "_local_scalar_dense",
})  # fmt: skip
# Names under which torch dispatches what the list calls otherwise.
_SAME = {
    "lshift": "bitwise_left_shift", "ilshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
    "irshift": "bitwise_right_shift", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "rsub": "sub", "_to_copy": "_to_copy", "index_put": "_index_put_impl_", "_index_put_impl": "_index_put_impl_",
    "_safe_softmax": "_softmax", "fill": "fill_", "zero": "zero_", "_unsafe_view": "view", "linalg_vector_norm": "linalg_vector_norm",
    "native_dropout": "native_dropout", "upsample": "upsample", "_cumsum": "cumsum",
}  # fmt: skip
# With an index of the extremum there is no kernel; without there is.
_NO_OVERLOAD = frozenset({("max", "dim"), ("max", "dim_max"), ("min", "dim"), ("min", "dim_min")})

_EXTREMUM = "topk(1) of a float tensor, or amax and amin when the place does not matter"
INSTEAD = {
    "sort": "topk(k=n) of a float tensor, n static",
    "argsort": "topk(k=n) of a float tensor, n static",
    "argmax": "topk(1) of a float tensor",
    "argmin": "topk(1, largest=False) of a float tensor",
    "max": _EXTREMUM,
    "min": _EXTREMUM,
    "kthvalue": "topk",
    "median": "topk",
    "mode": "compare and sum",
    "searchsorted": "compare with every boundary and sum",
    "bucketize": "compare with every boundary and sum",
    "isin": "compare with every element, then any()",
    "maximum": "torch.where(a > b, a, b)",
    "minimum": "torch.where(a < b, a, b)",
    "fmax": "torch.where(a > b, a, b)",
    "fmin": "torch.where(a < b, a, b)",
    "aminmax": "amin and amax",
    "floor": "trunc, corrected for negative numbers, or floor_divide by 1",
    "frac": "x - trunc(x)",
    "round": "add 0.5 and trunc; mind ties",
    "exp2": "exp(x * ln 2), or the exponent's bits in int32",
    "log2": "log(x) / ln 2, or the exponent's bits in int32",
    "log10": "log(x) / ln 10",
    "log1p": "log(1 + x)",
    "expm1": "exp(x) - 1",
    "prod": "exp of a sum of logs, or a loop over a static axis",
    "cumprod": "exp of a cumsum of logs, or a loop over a static axis",
    "cummax": "amax over a triangular mask",
    "cummin": "amin over a triangular mask",
    "std": "sqrt of the mean of squares",
    "var": "mean of squares",
    "var_mean": "means of x and of x * x",
    "logsumexp": "amax, exp, sum and log",
    "logaddexp": "exp and log around the larger one",
    "roll": "cat of two slices",
    "scatter_reduce": "scatter_add of floats, or a comparison and amax",
    "index_fill": "index_put_ or masked_fill_",
    "index_reduce": "a comparison and a reduction",
    "masked_scatter": "torch.where",
    "nan_to_num": "torch.where(x != x, 0, x)",
    "baddbmm": "bmm and add",
    "addbmm": "bmm and sum",
    "take": "flatten and index_select",
    "put": "flatten and index_put_",
    "atan2": "a polynomial, or the host",
    "frexp": "the bits in int32",
    "ldexp": "the bits in int32",
    "_scaled_mm": "widen to bfloat16 and matmul",
    "multinomial": "Gumbel noise from the host and topk(1)",
}
_NOISE = "noise from the host, uploaded"
for _name in (
    "normal",
    "uniform",
    "exponential",
    "random",
    "bernoulli",
    "randperm",
    "geometric",
    "cauchy",
    "log_normal",
):
    INSTEAD[_name] = _NOISE


def read_operators(path: Path | None = None) -> frozenset[str]:
    """Names in a list of operators: one a line, ``aten::`` and overloads dropped, ``#`` starts a comment.

    Raises:
        SimError: the file cannot be read or holds no name.
    """
    return _default() if path is None else _read(path)


@cache
def _default() -> frozenset[str]:
    return _read(DEFAULT)


def _read(source: Path) -> frozenset[str]:
    try:
        lines = source.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SimError(f"the list of operators cannot be read: {error}", path=str(source)) from error
    names = {line.partition("#")[0].strip() for line in lines}
    found = frozenset(name.removeprefix("aten::").partition(".")[0] for name in names if name)
    if not found:
        raise SimError("the list of operators holds no name", path=str(source), fix="one ATen name a line")
    return found


@cache
def has_kernel(listed: frozenset[str], namespace: str, base: str, overload: str) -> bool:
    """Does the device have a kernel for an operation?"""
    if namespace != "aten":
        return f"{namespace}::{base}" in listed
    if base in _PLUMBING:
        return True
    if (base, overload) in _NO_OVERLOAD:
        return False
    names = {base, base + "_", _SAME.get(base, base), base.lstrip("_"), "_" + base}
    return not names.isdisjoint(listed)


def rewrite_of(base: str) -> str:
    """What to write instead of an operation without a kernel."""
    return INSTEAD.get(base, "compose it of operators with a device kernel, or do it once on the host")
