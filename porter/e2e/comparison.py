"""Engine and oracle side by side: the tokens that each chooses, and what each module gives for the same input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    Rows = Mapping[str, torch.Tensor]

ROW_LIMIT = 0.1
"""Largest difference of a row, relative to its length. One FP8 value that falls to the other side of a boundary moves
by 1/16, and a module rounds up to three times."""

SAME, SAME_SHARE = 2e-3, 0.97
"""Rows nearer than ``SAME`` (half of bfloat16's last place) count as the same; at least this share must be."""

TIE = 0.05
"""Index scores nearer than this, in standard deviations of a query's scores, may be chosen either way."""


@dataclass(frozen=True)
class Disagreement:
    """A position where the greedy tokens differ. ``margin``: the oracle's best logit minus its second best."""

    prompt: int
    step: int
    engine: int
    oracle: int
    margin: float


@dataclass(frozen=True)
class Tokens:
    """Greedy tokens of one number format, every position given the engine's own tokens before it.

    ``noise``: largest change of a margin between the oracle's two arithmetics of that format (no engine involved).
    ``clear``: share of positions whose margin is above ``noise``.
    """

    positions: int
    noise: float
    clear: float
    disagreements: Sequence[Disagreement]

    @property
    def passed(self) -> bool:
        """Every position with a clear margin has the oracle's token."""
        return all(each.margin <= self.noise for each in self.disagreements)


@dataclass(frozen=True)
class Module:
    """One module's output over all tokens. ``worst``: largest relative difference of a row, at token ``at``."""

    name: str
    rows: int
    same: float
    worst: float
    at: int

    @property
    def passed(self) -> bool:
        """Within the limits for all tokens."""
        return self.worst <= ROW_LIMIT and self.same >= SAME_SHARE


def tokens(
    chosen: Sequence[Sequence[int]], logits: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
) -> Tokens:
    """Compare the engine's ``chosen`` tokens with the oracle's ``logits`` f32[steps, V] at the same positions.

    ``others``: the same logits in the format's other arithmetic, for the noise.
    """
    import torch

    disagreements, noise, margins = [], 0.0, []
    for prompt, (ours, scores, again) in enumerate(zip(chosen, logits, others, strict=True)):
        best = scores.topk(2, -1)
        margin = best.values[:, 0] - best.values[:, 1]
        second = again.gather(1, best.indices)
        noise = max(noise, (margin - (second[:, 0] - second[:, 1])).abs().max().item())
        margins.append(margin)
        for step in (best.indices[:, 0] != torch.tensor(ours)).nonzero().flatten().tolist():
            disagreements.append(
                Disagreement(prompt, step, int(ours[step]), int(best.indices[step, 0]), margin[step].item())
            )
    every = torch.cat(margins)
    return Tokens(every.numel(), noise, (every > noise).float().mean().item(), tuple(disagreements))


def modules(engine: Rows, oracle: Rows) -> tuple[Module, ...]:
    """Compare every module in the order of the forward pass, each of which was given the engine's input."""
    names = [key for key in oracle if key in engine]
    found = [_module(key, engine[key], oracle[key]) for key in sorted(names, key=_place)]
    scored = [key for key in oracle if key.endswith(".index.scores")]
    found += [_selection(key.removesuffix(".scores"), engine, oracle) for key in scored]
    return tuple(sorted(found, key=lambda module: _place(module.name)))


_ORDER = ("trunk", "mix", "engram", "attn.in", "index", "attn.out", "middle", "ffn.in", "ffn.out")


def _place(key: str) -> tuple[int, int]:
    """Layer and place in it; what a layer gives is behind everything in it."""
    layer, _, part = key.partition(".")
    if not part:
        return 1_000_000, 0
    return int(layer), _ORDER.index(part)


def _module(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> Module:
    import torch

    left, right = ours.float().flatten(1), theirs.float().flatten(1)
    different = torch.linalg.vector_norm(left - right, dim=1)
    relative = different / torch.linalg.vector_norm(right, dim=1).clamp_min(1e-20)
    relative = relative.nan_to_num(nan=torch.inf)
    at = int(relative.argmax())
    return Module(name, len(relative), (relative <= SAME).float().mean().item(), relative[at].item(), at)


def _selection(name: str, engine: Rows, oracle: Rows) -> Module:
    """The entries that an index chose: as many as it should, and none that the scores put clearly behind another.

    ``worst`` is then how far a chosen entry is behind one that was left, in units of the row's scores (times
    ``ROW_LIMIT / TIE``, so that one limit serves all); infinite where the number is wrong. Ties count as the same.
    """
    import torch

    scores, chosen = oracle[f"{name}.scores"], engine[name].long()
    width = scores.shape[1]
    mask = torch.zeros(len(scores), width + 1, dtype=torch.bool)
    mask.scatter_(1, torch.where(chosen >= 0, chosen, width), True)
    mask = mask[:, :width]
    visible, behind = scores.isfinite(), torch.zeros(len(scores))
    spread = torch.where(visible, scores, torch.nan)
    spread = ((spread - spread.nanmean(1, keepdim=True)) ** 2).nanmean(1).sqrt().nan_to_num(nan=1.0).clamp_min(1e-20)
    doubtful = _doubtful_blocks(name, engine, oracle, width)
    least = torch.where(mask & visible & ~doubtful, scores, torch.inf).amin(1)
    most = torch.where(~mask & visible & ~doubtful, scores, -torch.inf).amax(1)
    behind = ((most - least) / spread).clamp_min(0).nan_to_num(nan=0.0, posinf=torch.inf)
    wanted = torch.minimum(visible.sum(1), torch.tensor(chosen.shape[1]))
    wrong = (mask.sum(1) != wanted) | (mask & ~visible & ~doubtful).any(1) | ((chosen >= 0).sum(1) != mask.sum(1))
    behind = torch.where(wrong, torch.inf, behind * (ROW_LIMIT / TIE))
    at = int(behind.argmax()) if len(behind) else 0
    return Module(name, len(behind), (behind <= ROW_LIMIT).float().mean().item(), behind[at].item(), at)


def _doubtful_blocks(name: str, engine: Rows, oracle: Rows, width: int) -> torch.Tensor:
    """Entries bool[T, C] of candidate blocks at the border: either side may have kept them.

    Blocks are chosen by the scores of an earlier layer, of which the recording has the choice of entries alone: where
    a later layer sees fewer entries than the earlier one, blocks near the least kept one are in doubt.
    """
    import torch

    none = torch.zeros(len(engine[name]), width, dtype=torch.bool)
    sources = [key for key in oracle if key.endswith(".index.scores") and _place(key[:-7]) < _place(name)]
    sources = [key for key in sources if oracle[key].shape[1] == width]
    if not sources:
        return none
    source, scores = oracle[sources[-1]], oracle[f"{name}.scores"]
    cut = source.isfinite() & ~scores.isfinite()
    if not bool(cut.any()):
        return none
    block = 8
    padded = torch.nn.functional.pad(source, (0, -width % block), value=-torch.inf).unflatten(1, (-1, block))
    best = padded.amax(2)
    kept = torch.nn.functional.pad(scores.isfinite(), (0, -width % block)).unflatten(1, (-1, block)).any(2)
    seen = best.isfinite()
    spread = torch.where(source.isfinite(), source, torch.nan)
    spread = ((spread - spread.nanmean(1, keepdim=True)) ** 2).nanmean(1, keepdim=True).sqrt()
    border = torch.where(seen & ~kept, best, -torch.inf).amax(1, keepdim=True)
    lowest = torch.where(kept, best, torch.inf).amin(1, keepdim=True)
    near = seen & cut.any(1, keepdim=True) & (best <= border + TIE * spread) & (best >= lowest - TIE * spread)
    return near.repeat_interleave(block, 1)[:, :width]
