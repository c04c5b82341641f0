"""Runs in the oracle's own environment: NeMo AutoModel's DeepSeek-V4.1, told what to compute over a pipe.

Called by path with two file descriptors, one to read commands from and one to answer to, each a JSON object a line;
tensors go through safetensors files. It imports nothing of porter, and porter imports nothing of it. The model's own
code runs as it is; the number format's rounding of activations, which that code leaves out, is put in front of its
linear layers by torch's module hooks.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

GROUP = 32
"""Activation values that share a scale."""


def fp8(values: torch.Tensor) -> torch.Tensor:
    """e4m3 and back, along the last axis in groups of 32, each scaled by the smallest power of two that holds it.

    The scale is the power of two not below ``max(|x|, 1e-4) / 448``, the product with 1/448 taken in float32.
    """
    groups = values.float().unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(-1, keepdim=True).clamp_min(1e-4) * (1 / 448)
    mantissa, exponent = torch.frexp(largest)
    scale = torch.ldexp(torch.ones_like(largest), torch.where(mantissa == 0.5, exponent - 1, exponent))
    rounded = (groups / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
    return rounded.flatten(-2).to(values.dtype)


def fp4(values: torch.Tensor) -> torch.Tensor:
    """e2m1 and back, along the last axis in groups of 16, the scale e4m3 of ``max(|x|) / 6``.

    As cache kernels do it: both divisions are products with a reciprocal in float32, which decides ties.
    """
    groups = values.float().unflatten(-1, (-1, 16))
    largest = groups.abs().amax(-1, keepdim=True).clamp_min(6 * 2**-9) * torch.tensor(1 / 6)
    scale = largest.clamp_max(448).to(torch.float8_e4m3fn).float()
    scaled = groups * (1 / scale)
    levels = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    between = (levels[1:] + levels[:-1]) / 2
    code = torch.bucketize(scaled.abs(), between)  # a tie is the lower code's
    code += (scaled.abs() == between[code.clamp_max(6)]) & (code % 2 == 1)
    return (torch.copysign(levels[code], scaled) * scale).flatten(-2).to(values.dtype)


class Oracle:
    """One model in one number format.

    Parameters:
        folder: checkpoint in the released format, or one of its plain variants.
        dtype: of weights and arithmetic, ``float32`` or ``bfloat16``.
        quantised: round activations to FP8 where the released format does.
    """

    def __init__(self, folder: Path, dtype: str, quantised: bool) -> None:
        from nemo_automodel.components.models.common import BackendConfig
        from nemo_automodel.components.models.deepseek_v41.config import DeepseekV41Config
        from nemo_automodel.components.models.deepseek_v41.model import DeepseekV41ForCausalLM
        from safetensors.torch import load_file
        from transformers import PreTrainedTokenizerFast

        content = json.loads((folder / "config.json").read_text())
        text = {**content["text_config"], "dtype": dtype}
        tensors = {
            name: value
            for path in sorted(folder.glob("*.safetensors"))
            if not path.name.startswith("vision")
            for name, value in load_file(path).items()
        }
        text["engram_num_embeddings"] = [
            tensors[f"layers.{layer}.engram.embed.weight"].shape[0] for layer in text["engram_layer_ids"]
        ]
        text["rope_scaling"] = {"rope_type": "yarn", **text["rope_scaling"]}
        config = DeepseekV41Config(
            text_config=text, vision_config={"num_hidden_layers": 0}, dtype=dtype, image_token_id=content["image_token_id"]
        )
        backend = BackendConfig(
            attn="eager", linear="torch", rms_norm="torch_fp32", rope_fusion=False, experts="torch", dispatcher="torch",
            gate_precision="float32", enable_hf_state_dict_adapter=True,
        )  # fmt: skip
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder))
        self.model: Any = DeepseekV41ForCausalLM(config, backend=backend, tokenizer=tokenizer).eval()
        native = self.model.state_dict_adapter.from_hf(tensors)
        wanted = self.model.state_dict()
        missing = sorted(set(wanted) - set(native))
        if missing or set(native) - set(wanted):
            raise ValueError(f"checkpoint and oracle differ: {missing} missing, {sorted(set(native) - set(wanted))} left")
        self.model.load_state_dict({name: value.to(wanted[name].dtype) for name, value in native.items()})
        self._quantised = quantised
        if quantised:
            self._round_activations()

    @property
    def layers(self) -> list[Any]:
        """Decoder layers in order."""
        return list(self.model.model.layers.values())

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Inside, the compressed cache is rounded as this form has it."""
        from nemo_automodel.components.models.deepseek_v41 import attention as module

        released = module.quantize_cache

        def quantize_cache(values: torch.Tensor, *, format: str, block_size: int) -> torch.Tensor:
            return fp4(values) if format == "nvfp4" else released(values, format=format, block_size=block_size)

        if self._quantised:
            module.quantize_cache = quantize_cache
        try:
            yield
        finally:
            module.quantize_cache = released

    def _round_activations(self) -> None:
        """FP8 in front of every linear layer whose weights are FP8 or FP4; a gate reads what is not rounded.

        An expert's product of gate and value is rounded to FP8 as it is in float32.
        """

        def first(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (fp8(args[0]), *args[1:])

        for layer in self.layers:
            attention, experts, shared = layer.attn, layer.ffn.experts, layer.ffn.shared_experts
            linears = [attention.wq_a, attention.wq_b, attention.wkv, attention.wo_a, attention.wo_b]
            linears += [shared.gate_proj, shared.up_proj]
            if attention.indexer is not None:
                linears.append(attention.indexer.wq_b)
            for linear in linears:
                linear.register_forward_pre_hook(first)
            experts.register_forward_pre_hook(first)
            experts.expert_activation_grouped = _rounded(experts.expert_activation_grouped)
            _round_product(shared)

    @torch.inference_mode()
    def logits(self, sequences: list[list[int]], first: list[int]) -> dict[str, torch.Tensor]:
        """Logits f32[T - first, V] of each sequence from position ``first`` on, by its number."""
        found = {}
        for number, (tokens, start) in enumerate(zip(sequences, first, strict=True)):
            out = self.model(torch.tensor([tokens]))
            found[str(number)] = out.logits[0, start:].float().contiguous()
        return found

    @torch.inference_mode()
    def modules(self, tokens: list[int], rows: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What each module gives for the engine's own input to it; see porter.e2e.recording for ``rows``.

        Keys are those of ``rows`` that a module gives, with ``{i}.index.scores`` f32[T, C] beside: the index scores of
        every compressed entry, -inf where it cannot be chosen. Attention uses the engine's choice of entries.
        """
        from nemo_automodel.components.models.deepseek_v41.attention import DeepseekV41AttentionState

        model = self.model.model
        ids = torch.tensor([tokens])
        count = ids.shape[1]
        positions = torch.arange(count).unsqueeze(0)
        hashes = model.engram_hash(ids) if model.engram_hash is not None else None
        dtype = model.embed_tokens.weight.dtype
        found = {"0.trunk": model.embed_tokens(ids)[0].unsqueeze(1).expand(-1, rows["0.trunk"].shape[1], -1)}

        def given(key: str) -> torch.Tensor:
            value = rows[key].unsqueeze(0)
            return value if value.dtype == torch.float32 and key.endswith("mix") else value.to(dtype)

        state = DeepseekV41AttentionState()
        scores: dict[str, torch.Tensor] = {}
        for index, layer in enumerate(self.layers):
            trunk, mix = given(f"{index}.trunk"), given(f"{index}.mix")
            if layer.engram is not None:
                found[f"{index}.engram"] = layer.engram(trunk, hashes[:, :, layer.engram.layer_hash_index])[0]
                trunk = given(f"{index}.engram")
            attn_mix = layer.attn_hc(trunk)
            found[f"{index}.attn.in"] = layer.attn_norm(layer.attn_hc.collapse(trunk, mix))[0]
            with _chosen(layer.attn.indexer, rows.get(f"{index}.index"), scores, f"{index}.index.scores"):
                attended = layer.attn(given(f"{index}.attn.in"), position_ids=positions, state=state)
            state = attended.state
            found[f"{index}.attn.out"] = attended.hidden_states[0]
            middle = layer.attn_hc.expand(given(f"{index}.attn.out"), trunk, attn_mix)
            found[f"{index}.middle"] = middle[0]
            middle = given(f"{index}.middle")
            ffn_mix = layer.ffn_hc(middle)
            found[f"{index}.ffn.in"] = layer.ffn_norm(layer.ffn_hc.collapse(middle, attn_mix.pre))[0]
            layer.ffn.gate.set_routing_context(None, None)
            found[f"{index}.ffn.out"] = layer.ffn(given(f"{index}.ffn.in"))[0]
            found[f"{index + 1}.trunk"] = layer.ffn_hc.expand(given(f"{index}.ffn.out"), middle, ffn_mix)[0]
            found[f"{index + 1}.mix"] = ffn_mix.pre[0]
        last = len(self.layers)
        collapsed = self.layers[-1].ffn_hc.collapse(given(f"{last}.trunk"), given(f"{last}.mix"))
        found["final"] = model.norm(collapsed)[0]
        found["logits"] = self.model.lm_head(given("final").to(self.model.lm_head.weight.dtype))[0]
        return {key: value.float().contiguous() for key, value in {**found, **scores}.items()}


def _rounded(activation: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``activation`` of bfloat16 values, its result rounded before it is bfloat16 again."""
    return lambda values, *rest: fp8(activation(values.float(), *rest)).to(values.dtype)


def _round_product(shared: Any) -> None:
    """Round what the shared expert's last layer reads, from the float32 product of its first two."""
    kept: dict[str, torch.Tensor] = {}
    for name in ("gate_proj", "up_proj"):
        getattr(shared, name).register_forward_hook(lambda module, args, out, name=name: kept.update({name: out.float()}))
    limit = shared.swiglu_limit

    def product(module: nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        gate, up = kept["gate_proj"].clamp(max=limit), kept["up_proj"].clamp(-limit, limit)
        return (fp8(nn.functional.silu(gate) * up).to(args[0].dtype),)

    shared.down_proj.register_forward_pre_hook(product)


@contextlib.contextmanager
def _chosen(
    indexer: Any, choice: torch.Tensor | None, scores: dict[str, torch.Tensor], key: str
) -> Iterator[None]:
    """Inside, ``indexer`` chooses ``choice``, and what it would have chosen by is kept in ``scores``."""
    if indexer is None or choice is None:
        yield
        return
    topk = torch.Tensor.topk

    def spied(values: torch.Tensor, k: int, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("sorted") is False:  # the choice of entries; candidate blocks are sorted
            scores[key] = values[0].float()
        return topk(values, k, *args, **kwargs)

    def replaced(module: Any, args: Any, output: Any) -> Any:
        width = output.topk_indices.shape[-1]
        chosen = choice.long()
        if width < chosen.shape[1]:
            chosen = chosen.sort(1, descending=True).values[:, :width].sort(1).values
        return replace(output, topk_indices=chosen.unsqueeze(0))

    handle = indexer.register_forward_hook(replaced)
    torch.Tensor.topk = spied  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        torch.Tensor.topk = topk  # type: ignore[method-assign]
        handle.remove()


@contextlib.contextmanager
def broken(oracle: Oracle, name: str | None) -> Iterator[None]:
    """Inside, the oracle is wrong in one way, to see whether the comparison notices."""
    undo: list[Callable[[], None]] = []

    def put(owner: Any, attribute: str, value: Any) -> None:
        old = getattr(owner, attribute)
        undo.append(lambda: setattr(owner, attribute, old))
        setattr(owner, attribute, value)

    def write(tensor: torch.Tensor, value: torch.Tensor) -> None:
        old = tensor.detach().clone()
        undo.append(lambda: _copy(tensor, old))
        _copy(tensor, value)

    if name is not None:
        FAULTS[name](oracle, put, write)
    try:
        yield
    finally:
        for step in reversed(undo):
            step()


@torch.no_grad()
def _copy(tensor: torch.Tensor, value: torch.Tensor) -> None:
    tensor.copy_(value)


Put = Callable[[Any, str, Any], None]
Write = Callable[[torch.Tensor, torch.Tensor], None]


def _no_sink(oracle: Oracle, put: Put, write: Write) -> None:
    for layer in oracle.layers:
        write(layer.attn.sinks_param.weight, torch.full_like(layer.attn.sinks_param.weight, -1e30))


def _no_engram(oracle: Oracle, put: Put, write: Write) -> None:
    for layer in oracle.layers:
        if layer.engram is not None:
            write(layer.engram.wkv.weight, torch.zeros_like(layer.engram.wkv.weight))


def _engram_pad(oracle: Oracle, put: Put, write: Write) -> None:
    put(oracle.model.model.engram_hash, "pad_id", oracle.model.model.engram_hash.pad_id + 1)


def _experts_swapped(oracle: Oracle, put: Put, write: Write) -> None:
    experts = oracle.layers[2].ffn.experts
    order = torch.arange(experts.down_projs.shape[0])
    order[:2] = torch.tensor([1, 0])
    write(experts.gate_and_up_projs, experts.gate_and_up_projs[order].clone())
    write(experts.down_projs, experts.down_projs[order].clone())


def _no_shared_expert(oracle: Oracle, put: Put, write: Write) -> None:
    weight = oracle.layers[3].ffn.shared_experts.down_proj.weight
    write(weight, torch.zeros_like(weight))


def _routing_bias(oracle: Oracle, put: Put, write: Write) -> None:
    for layer in oracle.layers:
        bias = layer.ffn.gate.e_score_correction_bias
        write(bias, bias.roll(1))


def _route_scale(oracle: Oracle, put: Put, write: Write) -> None:
    for layer in oracle.layers:
        put(layer.ffn.gate, "route_scale", 1.0)


def _plain_rope(oracle: Oracle, put: Put, write: Write) -> None:
    for layer in oracle.layers:
        put(layer.attn.rotary_emb, "original_length", 0)


def _one_rope(oracle: Oracle, put: Put, write: Write) -> None:
    for layer in oracle.layers:
        put(layer.attn.rotary_emb, "theta", 10000.0)


def _window(oracle: Oracle, put: Put, write: Write) -> None:
    for layer in oracle.layers:
        put(layer.attn, "window_size", layer.attn.window_size - 1)


def _top_k(oracle: Oracle, put: Put, write: Write) -> None:
    for layer in oracle.layers:
        if layer.attn.indexer is not None:
            put(layer.attn.indexer, "topk", layer.attn.indexer.topk - 8)


def _no_candidates(oracle: Oracle, put: Put, write: Write) -> None:
    for layer in oracle.layers:
        if layer.attn.indexer is not None:
            put(layer.attn.indexer, "uses_candidates", False)


def _pooling(oracle: Oracle, put: Put, write: Write) -> None:
    for layer in oracle.layers:
        if layer.attn.compressor is not None and layer.attn.compressor.ratio > 1:
            weight = layer.attn.compressor.wgate.weight
            write(weight, torch.zeros_like(weight))


def _streams(oracle: Oracle, put: Put, write: Write) -> None:
    for layer in oracle.layers:
        weight = layer.attn_hc.fn
        write(weight, torch.zeros_like(weight))


def _sinkhorn(oracle: Oracle, put: Put, write: Write) -> None:
    for layer in oracle.layers:
        put(layer.attn_hc, "iterations", 1)


def _groups(oracle: Oracle, put: Put, write: Write) -> None:
    weight = oracle.layers[4].attn.wo_a.weight
    write(weight, weight.roll(weight.shape[0] // oracle.layers[4].attn.num_groups, 0).clone())


FAULTS: dict[str, Callable[[Oracle, Put, Write], None]] = {
    "attention sinks left out": _no_sink,
    "n-gram memory left out": _no_engram,
    "n-gram padding is another token": _engram_pad,
    "two experts of layer 2 swapped": _experts_swapped,
    "shared expert of layer 3 left out": _no_shared_expert,
    "routing bias of a neighbour": _routing_bias,
    "routed experts not scaled": _route_scale,
    "rotary frequencies without YaRN": _plain_rope,
    "one rotary base for all layers": _one_rope,
    "window shorter by one": _window,
    "eight fewer entries chosen": _top_k,
    "candidate blocks ignored": _no_candidates,
    "pooling without its gate": _pooling,
    "stream mixes without their input": _streams,
    "one Sinkhorn step instead of twenty": _sinkhorn,
    "output groups of layer 4 swapped": _groups,
}


class Forms:
    """The checkpoint's models, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[str, bool], Oracle] = {}

    def serve(self, command: dict[str, Any]) -> dict[str, Any]:
        """Compute what ``command`` asks for into its ``out`` file."""
        from safetensors.torch import load_file, save_file

        form = (command["dtype"], command["quantised"])
        if form not in self._made:
            self._made[form] = Oracle(self._folder, *form)
        oracle = self._made[form]
        with oracle.working(), broken(oracle, command.get("fault")):
            if command["kind"] == "logits":
                save_file(oracle.logits(command["sequences"], command["first"]), command["out"])
            else:
                save_file(oracle.modules(command["tokens"], load_file(command["rows"])), command["out"])
        return {}


def main(commands_fd: int, answers_fd: int) -> None:
    """Take the checkpoint that the first line names, then serve commands until the pipe closes."""
    torch.set_num_threads(1)
    with os.fdopen(commands_fd) as commands, os.fdopen(answers_fd, "w", buffering=1) as answers:
        try:
            forms = Forms(Path(json.loads(commands.readline())["model"]))
            answers.write(json.dumps({"faults": [*FAULTS]}) + "\n")
            for line in commands:
                answers.write(json.dumps(forms.serve(json.loads(line))) + "\n")
        except Exception:
            answers.write(json.dumps({"error": traceback.format_exc()}) + "\n")
            raise


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
