"""The reference side: the real tile-kernels distribution, never the emitted drop-in of the same name.

Upstream's ``*_ref`` functions call a handful of tile_kernels entry points that compile for a device. Here those run the
distribution's own torch references; everything else of it stays as it is.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from porter.verify.errors import HarnessError

_ASCEND_NODE = "/dev/davinci_manager"
_NEEDED = (("tilelang", "tilelang"), ("tile_kernels", "tile-kernels"))


@contextmanager
def _ascend_node(present: bool) -> Iterator[None]:
    """Let ``os.path.exists`` report the Ascend device node as present or absent."""
    original = os.path.exists

    def exists(path: Any) -> bool:
        return present if path == _ASCEND_NODE else original(path)

    os.path.exists = exists
    try:
        yield
    finally:
        os.path.exists = original


def needs_references(ops: Path) -> bool:
    """Do the interface modules in this folder import tile_kernels or tilelang at all?"""
    return any(name in path.read_text(encoding="utf-8") for path in ops.glob("*.py") for name, _ in _NEEDED)


def install_references(flavour: str, workspace: Path) -> str:
    """Import the real distributions, make tile_kernels agree with the flavour about scale packing, and route the device
    entry points to its torch references. Gives the version of tile-kernels.

    Must run before anything else imports tile_kernels: the packing decision is cached and bound by name in its modules.

    Raises:
        HarnessError: a distribution is missing, or the one found lies in the tree under test.
    """
    for module_name, distribution in _NEEDED:
        try:
            spec = importlib.util.find_spec(module_name)
        except (ImportError, ValueError):
            spec = None
        if spec is None or spec.origin is None:
            raise HarnessError(
                f"upstream's tests need the real {distribution}", fix=f"pip install {distribution} scipy"
            )
        if workspace.resolve() in Path(spec.origin).resolve().parents:
            raise HarnessError(
                f"{module_name} comes from the tree under test, not from {distribution}", path=spec.origin
            )
    with _ascend_node(flavour == "npu"):
        try:
            package: Any = importlib.import_module("tile_kernels")
        except ImportError as error:
            raise HarnessError(
                f"the real tile-kernels cannot be imported: {error}", fix="pip install tile-kernels tilelang"
            ) from error
        ascend = importlib.import_module("tile_kernels.config").is_ascend()
    if ascend is not (flavour == "npu"):
        raise HarnessError("tile_kernels was imported before the flavour was decided")
    _route(package)
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tile-kernels")
    except PackageNotFoundError:
        return "unknown"


def _route(package: Any) -> None:
    reference = importlib.import_module("tile_kernels.torch")

    def per_token_cast(
        x: Any,
        fmt: str,
        num_per_channels: int,
        x_block_size: tuple[int, int] | None = None,
        use_tma_aligned_col_major_sf: bool = False,
        round_sf: bool = False,
        use_packed_ue8m0: bool = False,
        use_e4m3_sf: bool = False,
    ) -> Any:
        return reference.cast(
            x,
            fmt,
            block_size=(1, num_per_channels),
            x_block_size=x_block_size,
            round_sf=round_sf,
            use_tma_aligned_col_major_sf=use_tma_aligned_col_major_sf,
            use_packed_ue8m0=use_packed_ue8m0,
            use_e4m3_sf=use_e4m3_sf,
        )

    def per_token_cast_back(x: Any, fmt: str, num_per_channels: int, x_special_fmt: str | None = None) -> Any:
        return reference.cast_back(x, fmt, block_size=(1, num_per_channels))

    def per_token_cast_and_cast_back(
        x: Any, fmt: str, num_per_channels: int, round_sf: bool = False, use_e4m3_sf: bool = False
    ) -> None:
        encoded = reference.cast(x, fmt, block_size=(1, num_per_channels), round_sf=round_sf, use_e4m3_sf=use_e4m3_sf)
        decoded = reference.cast_back(
            encoded, "bf16" if x.element_size() == 2 else "fp32", block_size=(1, num_per_channels)
        )
        x.copy_(decoded)

    def apply_rotary(
        query: Any,
        cos_sin_cache: Any,
        key: Any = None,
        positions: Any = None,
        interleaved: bool = False,
        conjugate: bool = False,
        seqlen_offset: int = 0,
    ) -> None:
        cosine, sine = cos_sin_cache.chunk(2, dim=-1)
        for x in (query, key):
            if x is not None:
                x.copy_(
                    reference.rotary_embedding_ref(x, cosine, sine, positions, seqlen_offset, interleaved, conjugate)
                )

    package.quant.per_token_cast = per_token_cast
    package.quant.per_token_cast_back = per_token_cast_back
    package.quant.per_token_cast_and_cast_back = per_token_cast_and_cast_back
    package.transform.apply_rotary = apply_rotary
