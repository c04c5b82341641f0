"""Decorators of ``tilelang.language.eager.builder``: they take a function and keep it, and raise when it would be built."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn


class Macro:
    """A function that kernels may be built from. ``name``, ``orig_func``: the function; calling it raises NotImplementedError."""

    def __init__(self, name: str, orig_func: Callable[..., Any], ir_gen: Any, annotations: dict[str, Any]) -> None:
        """Keep the function; ``ir_gen`` is None, for nothing is generated."""
        self.name, self.orig_func, self.ir_gen, self.annotations = name, orig_func, ir_gen, annotations
        functools.update_wrapper(self, orig_func)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not here: it adds to a kernel.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"{self.name}: not supported on Neuron (basic mode)")

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def macro(func: Callable[..., Any] | None = None) -> Any:
    """Make a ``Macro`` of a function, with or without parentheses."""
    return _macro if func is None else _macro(func)


def _macro(func: Callable[..., Any]) -> Macro:
    return Macro(func.__name__, func, None, dict(func.__annotations__))


class JITFunc:
    """A kernel that was written and is never built. ``orig_func``: the function; calling it raises NotImplementedError."""

    def __init__(self, orig_func: Callable[..., Any]) -> None:
        """Keep the function and its parameters' names; which of them are tensors is not looked into."""
        self.orig_func = orig_func
        self.signature = inspect.signature(orig_func)
        self.arg_names = list(self.signature.parameters)
        self.tensor_args: dict[str, Any] = {}
        self.tensor_args_defaults: dict[str, Any] = {}
        self.ir_gen = None
        self.mode = "auto"
        functools.update_wrapper(self, orig_func)

    def __getattr__(self, name: str) -> Any:
        """What the function itself answers for its code, its closure and its globals."""
        if name in ("__closure__", "__code__", "__globals__"):
            return getattr(self.__dict__["orig_func"], name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not here: there is no compiler.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"{self.orig_func.__name__}: not supported on Neuron (basic mode)")

    def get_tir(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not here: there is no compiler.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"{self.orig_func.__name__}: not supported on Neuron (basic mode)")

    def set_mode(self, mode: str) -> None:
        """Remember the mode."""
        self.mode = mode


def prim_func(func: Callable[..., Any] | None = None, *, eager_jit: bool = False) -> Any:
    """Make a ``JITFunc`` of a function, with or without parentheses."""
    return JITFunc if func is None else JITFunc(func)
