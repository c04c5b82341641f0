"""Small language helpers of ``deep_ep.utils.semantic``."""

from __future__ import annotations

import functools
import weakref
from typing import Any, Callable, Optional


def value_or(value: Optional[Any], default: Any) -> Any:
    """``value``, or ``default`` where it is None."""
    return value if value is not None else default


def weak_lru(maxsize: Optional[int] = 128, typed: bool = False) -> Callable[[Callable], Callable]:
    """``functools.lru_cache`` for methods, which does not keep the object alive."""

    def decorate(method: Callable) -> Callable:
        @functools.lru_cache(maxsize=maxsize, typed=typed)
        def cached(owner: Any, *args: Any, **kwargs: Any) -> Any:
            return method(owner(), *args, **kwargs)

        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return cached(weakref.ref(self), *args, **kwargs)

        return call

    return decorate
