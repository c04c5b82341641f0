"""The decorator of ``tilelang.jit``: it takes a kernel factory and keeps it, and raises when a kernel is asked for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn


class JITImpl:
    """A kernel factory with its options; asking it for a kernel raises NotImplementedError."""

    def __init__(
        self,
        out_idx: list[int] | int | None,
        execution_backend: str | None,
        target: Any,
        target_host: Any,
        verbose: bool | None,
        pass_configs: dict[str, Any] | None,
        debug_root_path: str | None,
        compile_flags: list[str] | str | None,
        func_source: str,
        signature: inspect.Signature,
        mode: str,
        func: Callable[..., Any],
    ) -> None:
        """Keep the factory and its options."""
        self.out_idx, self.execution_backend, self.target, self.target_host = (
            out_idx,
            execution_backend,
            target,
            target_host,
        )
        self.verbose, self.pass_configs, self.debug_root_path = verbose, pass_configs, debug_root_path
        self.compile_flags, self.func_source, self.signature = compile_flags, func_source, signature
        self.mode, self.func = mode, func
        functools.update_wrapper(self, func)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not here: there is no compiler.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"{self.func.__name__}: not supported on Neuron (basic mode)")


def jit(
    func: Callable[..., Any] | None = None,
    *,
    out_idx: list[int] | int | None = None,
    target: Any = None,
    target_host: Any = None,
    execution_backend: str | None = None,
    verbose: bool | None = None,
    pass_configs: dict[str, Any] | None = None,
    debug_root_path: str | None = None,
    compile_flags: list[str] | str | None = None,
) -> Any:
    """Make a ``JITImpl`` of a kernel factory, with or without options. The factory is not run."""

    def decorated(func: Callable[..., Any]) -> JITImpl:
        signature = inspect.signature(func)
        return JITImpl(
            out_idx,
            execution_backend,
            target,
            target_host,
            verbose,
            pass_configs,
            debug_root_path,
            compile_flags,
            "",
            signature,
            "auto",
            func,
        )

    return decorated if func is None else decorated(func)
