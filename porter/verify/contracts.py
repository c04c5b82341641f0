"""Write masks out of the tensor contracts that porter.lock holds."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from porter.surface.model import Contract, Kernel, Symbol, SymbolKind


def _outputs(contract: Contract, kernel: Kernel) -> set[int] | None:
    """Positions of the arguments that the call does not take, None where they are not literal."""
    if contract.out_idx is None:
        return set()
    try:
        value = ast.literal_eval(contract.out_idx)
    except (SyntaxError, ValueError):
        return None
    if value is None:
        return set()
    positions = [value] if isinstance(value, int) else list(value)
    return {position % len(kernel.arguments) for position in positions if kernel.arguments}


def _kernels(
    symbol: Symbol, by_name: Mapping[str, Symbol], seen: frozenset[str]
) -> list[dict[str, bool | None]] | None:
    contract = symbol.contract
    if contract is None or not contract.kernels:
        return None
    masks: list[dict[str, bool | None]] = []
    for kernel in contract.kernels:
        if kernel.delegate and not kernel.arguments:
            target = by_name.get(kernel.delegate.rpartition(".")[2])
            found = None if target is None or target.id in seen else _kernels(target, by_name, seen | {target.id})
            if found is None:
                return None
            masks += found
            continue
        outputs = _outputs(contract, kernel)
        if not kernel.arguments or outputs is None:
            return None
        masks.append(
            {argument.name: argument.written for index, argument in enumerate(kernel.arguments) if index not in outputs}
        )
    return masks


def masks_from_symbols(symbols: Iterable[Symbol]) -> dict[str, list[dict[str, bool | None]]]:
    """Masks in the form that ``masks.py`` documents, for every factory whose contract names its kernels' arguments.

    A factory that returns another factory's kernel has that one's masks. One with a kernel whose arguments are not known
    statically is left out: its calls are then reported as unmasked.
    """
    factories = [symbol for symbol in symbols if symbol.kind is SymbolKind.FACTORY]
    by_name = {symbol.qualname.rpartition(".")[2]: symbol for symbol in factories}
    masks: dict[str, list[dict[str, bool | None]]] = {}
    for symbol in sorted(factories, key=lambda symbol: symbol.id):
        found = _kernels(symbol, by_name, frozenset({symbol.id}))
        if found is not None:
            masks[symbol.qualname] = found
    return masks
