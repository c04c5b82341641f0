"""PT106: a module says which upstream API it supplies.

An override's module docstring is short and names the upstream module it mirrors, as a dotted path:
``tilelang_ops.asc.gather`` for ``tilelang_ops/gather.py``, a path that begins with the package's name for a vendor module.
A helper (a module whose name begins with an underscore, or a shared one) only needs a docstring.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from porter.rules.base import Example, Problem, Rule, RuleContext, examples
from porter.rules.source import SourceFile


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """The module docstring, and the name in it."""
    doc = file.module.get_docstring()
    if doc is None or not doc.strip():
        if file.module.body or not file.path.endswith("__init__.py"):
            yield Problem(
                "the module has no docstring",
                line=1,
                expected="a short docstring that names the upstream API",
                found="no docstring",
                fix="begin the module with a docstring",
            )
        return
    wanted = _upstream(file.path)
    if wanted is None or re.search(wanted, doc):
        return
    yield Problem(
        "the docstring names no upstream API",
        line=1,
        expected=_shown(file.path),
        found=doc.strip().splitlines()[0],
        fix="name the upstream module that this one mirrors",
    )


def _parts(path: str) -> list[str]:
    parts = path.removesuffix(".py").split("/")
    for root in ("tilelang_ops", "vendor"):
        if root in parts:
            return parts[parts.index(root) :]
    return []


def _upstream(path: str) -> str | None:
    """What the docstring has to hold: a pattern, or None where any docstring does."""
    parts = _parts(path)
    if len(parts) < 2 or (parts[-1] == "__init__" and parts[0] == "tilelang_ops"):
        return None
    if parts[0] == "vendor":
        return rf"\b{re.escape(parts[1])}\b"
    if parts[-1].startswith("_"):
        return None
    return rf"\btilelang_ops(?:\.\w+)*\.{re.escape(parts[-1])}\b"


def _shown(path: str) -> str:
    parts = _parts(path)
    return (
        f"a path such as {parts[1]}.{'.'.join(parts[2:])}" if parts[0] == "vendor" else f"tilelang_ops.asc.{parts[-1]}"
    )


RULE = Rule(
    code="PT106",
    name="missing-docstring",
    title="A module does not say which upstream API it supplies.",
    doc=__doc__,
    check=check,
    valid=examples(
        Example('"""Row gather, after ``tilelang_ops.asc.gather``."""\n', "overrides/tilelang_ops/gather.py"),
        Example('"""After ``tilelang_ops.asc.moe.gate``."""\n', "overrides/tilelang_ops/moe/gate.py"),
        Example('"""Sums of segments."""\n', "overrides/tilelang_ops/_segments.py"),
        Example('"""Casts of ``tile_kernels.quant``."""\n', "overrides/vendor/tile_kernels/quant/cast.py"),
        Example('"""Number formats."""\n', "overrides/shared/neuron_numerics/formats.py"),
        Example("", "overrides/tilelang_ops/__init__.py"),
    ),
    invalid=examples(
        Example("import torch\n", "overrides/tilelang_ops/gather.py"),
        Example('"""Row gather."""\n', "overrides/tilelang_ops/gather.py"),
        Example('"""Like ``tilelang_ops.asc.norm``."""\n', "overrides/tilelang_ops/gather.py"),
        Example('"""Casts."""\n', "overrides/vendor/tile_kernels/quant/cast.py"),
        Example('"""  """\n', "overrides/shared/neuron_numerics/formats.py"),
    ),
)
