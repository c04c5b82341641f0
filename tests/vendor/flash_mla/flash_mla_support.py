"""Modules that stand in for others while an upstream file is loaded."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def package(name: str, **names: Any) -> types.ModuleType:
    """A module that holds ``names`` and nothing else."""
    made = types.ModuleType(name)
    vars(made).update(names)
    return made


@contextmanager
def modules(names: Mapping[str, types.ModuleType]) -> Iterator[None]:
    """Put these modules into ``sys.modules`` for a while; what else is imported meanwhile stays."""
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update(names)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
