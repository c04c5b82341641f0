"""overrides/: the hand-written bodies, and the pins that say which upstream body each was written against.

The folder mirrors the emitted tree::

    overrides/tilelang_ops/norm.py            bodies of the factories of upstream's tilelang_ops/asc/norm.py
    overrides/tilelang_ops/_helper.py         emitted beside them, as it is
    overrides/vendor/deep_gemm/_C.py          bodies of names of that vendor module
    overrides/vendor/deep_gemm/_C.pyi         declarations of names whose arguments upstream does not tell
    overrides/shared/neuron_numerics/fp8.py   emitted as a package of its own beside the vendor packages
    overrides/engine/deepinfer/...            new files of the engine's own tree, emitted as they are
    overrides/pins.toml                       written by `porter new` and `porter ack`
"""

from __future__ import annotations

import ast
import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from porter.errors import OverrideError, UnreadableFileError
from porter.surface.model import ModuleFacts

PINS_NAME = "pins.toml"
# What a skeleton's NotImplementedError says: while it stands, the name is pending, not implemented.
UNWRITTEN = "override not written yet"
BACKEND_SURFACE = "tilelang_ops.asc"
_SKIPPED = {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


@dataclass(frozen=True)
class OverrideFile:
    """One hand-written file.

    ``path``: relative to overrides/, posix. ``module``: dotted upstream module whose names it supplies
    (``tilelang_ops.asc.norm``, ``deep_gemm._C``); "" for a file that is emitted as it is.
    ``facts``: what it defines; None for a file that is not Python or is emitted as it is.
    ``unwritten``: names that are still the skeleton that `porter new` wrote.
    """

    path: str
    data: bytes
    module: str = ""
    facts: ModuleFacts | None = None
    unwritten: frozenset[str] = frozenset()

    @property
    def digest(self) -> str:
        """sha256 of the bytes."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class Pin:
    """The promise of one override: the upstream digests it was written or last reviewed against.

    ``body``: of what upstream's definition does; ``interface``: of its signature and tensor contract.
    ``source`` is the upstream version then (``deepinfer==0.1.0``), ``reason`` what the reviewer said.
    """

    symbol: str
    body: str
    interface: str
    source: str
    reason: str


@dataclass(frozen=True)
class Overrides:
    """All of overrides/."""

    folder: str
    files: tuple[OverrideFile, ...] = ()
    pins: Mapping[str, Pin] = field(default_factory=dict)

    def for_module(self, module: str) -> OverrideFile | None:
        """The file that supplies names of that upstream module."""
        return next((file for file in self.files if file.module == module and file.path.endswith(".py")), None)


def module_of(path: str) -> str:
    """The upstream module that an override file serves, "" when it is emitted as it is.

    >>> module_of("tilelang_ops/norm.py")
    'tilelang_ops.asc.norm'
    >>> module_of("vendor/deep_gemm/mega/__init__.py")
    'deep_gemm.mega'
    """
    parts = path.rsplit(".", 1)[0].split("/")
    if parts[0] == "tilelang_ops" and len(parts) == 2 and not parts[1].startswith("_"):
        return f"{BACKEND_SURFACE}.{parts[1]}"
    if parts[0] == "vendor" and len(parts) > 2:
        return ".".join(parts[1:-1] if parts[-1] == "__init__" else parts[1:])
    return ""


def override_path(module: str, *, is_package: bool = False) -> str:
    """The override file that serves an upstream module: the inverse of ``module_of``."""
    prefix = f"{BACKEND_SURFACE}."
    if module.startswith(prefix):
        return f"tilelang_ops/{module.removeprefix(prefix)}.py"
    return "vendor/" + module.replace(".", "/") + ("/__init__.py" if is_package else ".py")


def list_files(folder: Path) -> tuple[tuple[str, Path], ...]:
    """Every file of overrides/ as (relative posix path, path), sorted. Hidden files and caches are left out.

    Raises:
        OverrideError: the folder is missing.
    """
    if not folder.is_dir():
        raise OverrideError(
            "is not a folder",
            path=folder.name,
            fix=f"create {folder.name}/ or correct [output] overrides in porter.toml",
        )
    found = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not any(part in _SKIPPED or part.startswith(".") for part in relative.parts):
            found.append((relative.as_posix(), path))
    return tuple(found)


def load_overrides(folder: Path) -> Overrides:
    """Read overrides/ and its pins.

    Raises:
        OverrideError: a file cannot be read or parsed.
    """
    from porter.surface.python import extract

    files = []
    pins: Mapping[str, Pin] = {}
    for relative, path in list_files(folder):
        try:
            data = path.read_bytes()
        except OSError as error:
            raise OverrideError(
                f"cannot be read: {error.strerror}",
                path=f"{folder.name}/{relative}",
                fix="check the file's permissions",
            ) from error
        if relative == PINS_NAME:
            pins = read_pins(data, f"{folder.name}/{relative}")
            continue
        file = OverrideFile(relative, data, module_of(relative))
        if file.module and relative.endswith(".py"):
            try:
                file = replace(file, facts=extract(f"{folder.name}/{relative}", data), unwritten=_unwritten(data))
            except UnreadableFileError as error:
                raise OverrideError(error.message, path=error.path, line=error.line, fix="mend the file") from error
        files.append(file)
    return Overrides(folder.name, tuple(files), pins)


def _unwritten(data: bytes) -> frozenset[str]:
    if UNWRITTEN.encode() not in data:
        return frozenset()
    return frozenset(
        node.name
        for node in ast.parse(data).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        and any(
            isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.endswith(UNWRITTEN)
            for part in ast.walk(node)
        )
    )


def read_pins(data: bytes, path: str) -> Mapping[str, Pin]:
    """Pins by symbol.

    Raises:
        OverrideError: not TOML, or an entry without the known fields.
    """
    try:
        rows = tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OverrideError(
            f"is not valid TOML: {error}", path=path, fix="restore the file, or delete it and run `porter ack --all`"
        ) from error
    pins: dict[str, Pin] = {}
    for symbol, row in rows.items():
        if (
            not isinstance(row, dict)
            or set(row) != {"body", "interface", "source", "reason"}
            or not all(isinstance(v, str) for v in row.values())
        ):
            raise OverrideError(
                f"[{symbol!r}] needs body, interface, source and reason, each a string",
                path=path,
                fix=f"run `porter ack {symbol} --reason TEXT`",
            )
        pins[symbol] = Pin(symbol, row["body"], row["interface"], row["source"], row["reason"])
    return pins


def write_pins(pins: Mapping[str, Pin]) -> str:
    """Text of pins.toml, sorted by symbol."""
    import json

    rows = ["# Which upstream body each override was written against. Written by `porter new` and `porter ack`.\n"]
    for symbol in sorted(pins):
        pin = pins[symbol]
        rows.append(
            f"\n[{json.dumps(symbol)}]\n"
            f"body = {json.dumps(pin.body)}\ninterface = {json.dumps(pin.interface)}\nsource = {json.dumps(pin.source)}\nreason = {json.dumps(pin.reason, ensure_ascii=False)}\n"
        )
    return "".join(rows)
