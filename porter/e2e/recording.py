"""What the engine's modules take and give in one run, token by token, recorded by torch's own module hooks.

Runs inside the engine's process; imports nothing of porter and changes no value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

Rows = dict[str, torch.Tensor]


class Recorder:
    """Rows of every recorded tensor, in the order of the forward passes; one sequence at a time.

    Rows that stand for no token (placeholders of idle steps) are left out. Keys, for layer ``i`` of an engine with
    hidden size H, T tokens and 4 streams:

    - ``{i}.trunk`` bf16[T, 4, H] and ``{i}.mix`` f32[T, 4]: what the layer takes; ``{i+1}.*`` is what it gives.
    - ``{i}.engram`` bf16[T, 4, H]: the trunk behind the n-gram memory.
    - ``{i}.attn.in``, ``{i}.attn.out``, ``{i}.ffn.in``, ``{i}.ffn.out`` bf16[T, H].
    - ``{i}.middle`` bf16[T, 4, H]: the trunk between attention and experts.
    - ``{i}.index`` i32[T, k]: chosen compressed entries by their place in the sequence, -1 for none.
    - ``final`` bf16[T, H]: what the head reads. ``positions`` i32[T].
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._parts: dict[str, list[torch.Tensor]] = defaultdict(list)
        self._keep: torch.Tensor | None = None

    def rows(self) -> Rows:
        """Everything recorded, each key's rows joined."""
        return {key: torch.cat(parts).contiguous() for key, parts in self._parts.items()}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Hooks are there inside."""
        handles = [handle for index, layer in enumerate(self._model.layers) for handle in self._watch(index, layer)]
        handles.append(self._model.output_norm.register_forward_hook(self._plain("final")))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _watch(self, index: int, layer: Any) -> Iterator[Any]:
        yield layer.register_forward_pre_hook(self._before(index), with_kwargs=True)
        yield layer.register_forward_hook(self._after(index), with_kwargs=True)
        for name, norm in (("attn", layer.attn_layernorm), ("ffn", layer.ffn_layernorm)):
            yield norm.register_forward_hook(self._normed(f"{index}.{name}.in"))
        yield layer.self_attn.register_forward_hook(self._plain(f"{index}.attn.out"))
        yield layer.mlp.register_forward_hook(self._plain(f"{index}.ffn.out"))
        if layer.engram is not None:
            yield layer.engram.register_forward_hook(self._plain(f"{index}.engram"))
        if layer.self_attn.index_attn is not None:
            yield layer.self_attn.index_attn.register_forward_hook(self._index(index), with_kwargs=True)

    def _add(self, key: str, value: torch.Tensor) -> None:
        kept = value.detach().to("cpu", copy=True)
        self._parts[key].append(kept if self._keep is None else kept[self._keep])

    def _plain(self, key: str) -> Any:
        return lambda module, args, output: self._add(key, output)

    def _normed(self, key: str) -> Any:
        return lambda module, args, output: self._add(key, output[1])

    def _before(self, index: int) -> Any:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden, metadata, lazy = args[0], args[2], args[3]
            hidden = getattr(hidden, "_value", hidden)
            if index == 0:
                mask = metadata.valid_token_mask
                self._keep = None if mask is None else mask.detach().to("cpu", copy=True)[: hidden.shape[0]]
                self._add("positions", metadata.positions[: hidden.shape[0]])
                self._add("0.trunk", hidden.unsqueeze(1).expand(-1, module.hc_mult, -1))
                mix = torch.zeros(hidden.shape[0], module.hc_mult)
                mix[:, 0] = 1
                self._add("0.mix", mix)
            else:
                self._give(index, module, hidden, lazy)

        return hook

    def _after(self, index: int) -> Any:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: tuple[Any, Any]) -> None:
            hidden, lazy = output
            self._add(f"{index}.middle", lazy.residual.squeeze(0))
            if index == len(self._model.layers) - 1:
                self._give(index + 1, module, hidden, lazy)

        return hook

    def _give(self, index: int, module: Any, hidden: torch.Tensor, lazy: Any) -> None:
        self._add(f"{index}.trunk", module.hc_post(hidden, lazy))
        self._add(f"{index}.mix", lazy.pre_layer_mix.reshape(hidden.shape[0], -1))

    def _index(self, index: int) -> Any:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor) -> None:
            metadata, chosen = kwargs["input_metadata"], output.detach().to("cpu", copy=True)
            if not metadata.is_prompt:
                chosen = _places(chosen, metadata.block_tables.detach().to("cpu"), kwargs["kv_cache"].shape[1])
            self._add(f"{index}.index", chosen)

        return hook


def _places(slots: torch.Tensor, tables: torch.Tensor, block: int) -> torch.Tensor:
    """Slots i32[T, k] of a paged cache as places in their sequences. ``tables`` i32[T, blocks]."""
    slots = slots.reshape(slots.shape[0], -1)
    found = (tables[: slots.shape[0]].unsqueeze(1) == (slots // block).unsqueeze(2)).int().argmax(2)
    return torch.where(slots < 0, slots, found.int() * block + slots % block)
