"""Puts the drop-in vendor packages (deep_gemm, flash_mla, ...) in front of the module search path."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

VENDOR_FOLDER = Path(__file__).resolve().parent / "vendor"


def packages(folder: Path = VENDOR_FOLDER) -> tuple[str, ...]:
    """Names of the packages in the vendor folder."""
    if not folder.is_dir():
        return ()
    return tuple(sorted(path.name for path in folder.iterdir() if (path / "__init__.py").is_file()))


def put_first(folder: Path = VENDOR_FOLDER) -> None:
    """Make ``folder`` the first entry of ``sys.path``. Warns of a package that something else already imported."""
    text = str(folder)
    sys.path[:] = [text, *(entry for entry in sys.path if entry != text)]
    for name in packages(folder):
        module = sys.modules.get(name)
        origin = getattr(module, "__file__", None)
        if origin is not None and folder not in Path(origin).resolve().parents:
            warnings.warn(
                f"{name} was imported from {origin} before deepinfer; its Neuron drop-in is not used", stacklevel=2
            )
