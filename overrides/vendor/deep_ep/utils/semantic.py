"""Small language helpers of ``deep_ep.utils.semantic``."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any


def value_or(value: Any | None, default: Any) -> Any:
    """``value``, or ``default`` where it is None."""
    return value if value is not None else default


def weak_lru(maxsize: int | None = 128, typed: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``functools.lru_cache`` for methods, which does not keep the object alive."""

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.lru_cache(maxsize=maxsize, typed=typed)
        def cached(owner: Any, *args: Any, **kwargs: Any) -> Any:
            return method(owner(), *args, **kwargs)

        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return cached(weakref.ref(self), *args, **kwargs)

        return call

    return decorate
