"""Values of the tiny checkpoint: from a seed and a text, the same on every machine.

The model is made, not trained, yet its choices are clear-cut. A token's embedding lies in the first ``LEXICAL``
dimensions; the head's row of a token holds the embeddings of the tokens that it follows in the text, so that only two
tokens compete after any other. Which of them wins is decided by what n-gram memory, attention and experts write into
the remaining dimensions, read by a random part of the head. The memory, which no rounding touches, writes most, so that
margins are wide beside the rounding noise of the rest.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from porter.demo import layout
from porter.demo.bpe import BOS, EOS, SPECIAL, Tokenizer
from porter.demo.layout import Item, Kind
from porter.demo.rounding import Values

LEXICAL = 192
"""Dimensions that hold which token stands there; the last ``EXPERTS`` of them say which experts are its own."""

_OWN, _OTHER = 2.0, -0.7
_BONUS = 90.0
"""Of a token's followers: what the head gains where the token's embedding is all there is."""

_CONTEXT = 8.0
"""How much of the head's rows is random, and reads what the layers wrote."""

RIVALS = 2
"""Tokens that compete after each token, as equals: the layers decide."""

FOLLOWS_AT_MOST = 12
"""Tokens that one token may follow, so that none wins everywhere."""

_SPARED = 0.1
"""What layers write into the lexical dimensions, in units of what they write into the others."""

_ROUTING = slice(LEXICAL - layout.EXPERTS, LEXICAL)

# Standard deviations, each in units of what keeps its module's output at the size of its input.
_GAINS = {
    "attn.wq_b": 1.5, "attn.wo_a": 1.5, "attn.wo_b": 0.08, "w2": 0.1, "engram.wkv": 3.0,
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """What makes a checkpoint's values: the seed of its random part, and who may follow whom."""

    seed: int
    followers: Mapping[int, Sequence[int]]
    """Likeliest first."""

    def values(self, item: Item) -> Values:
        """Values of one tensor before it is rounded to its format."""
        name, shape = item.name, item.shape
        if name == "embed.weight":
            return self._embedding()
        if name == "head.weight":
            return self._head()
        part = name.split(".", 2)[-1] if item.layer is not None else name
        if part.endswith("norm.weight") or part in ("engram.q_weight", "engram.k_weight"):
            return 1 + 0.15 * self.normal(name, shape)
        if part.endswith("_base"):
            return self._mixing_base(name)
        if part.endswith("_fn"):
            return self.normal(name, shape) / math.sqrt(shape[1])
        if part.endswith("_scale"):
            return 0.3 + 0.05 * self.normal(name, shape)
        if part == "attn.attn_sink":
            return 3 + self.normal(name, shape)  # some twenty keys' worth
        if part in ("ffn.gate.bias", "ffn.gate.bias_vl"):
            return 0.1 * self.normal(name, shape)
        if part == "ffn.gate.weight":
            return self._gate(name, shape)
        if part == "engram.embed.weight":
            return self._blocks(name, shape, (1, 32))
        gain = next((gain for key, gain in _GAINS.items() if key in part), 1.0)
        spread = self.normal(name, shape) if item.kind is Kind.BF16 else self._blocks(name, shape, _block(item.kind))
        return gain / math.sqrt(shape[1]) * spread * _writing(part, shape[0])[:, None]

    def normal(self, name: str, shape: tuple[int, ...]) -> Values:
        """Nearly normal numbers: sums of four 16-bit integers, so that no library's logarithm has a say."""
        seed = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        generator = np.random.PCG64(int.from_bytes(seed, "little"))
        raw = np.asarray(generator.random_raw(math.prod(shape)), dtype="<u8").view("<u2").reshape(-1, 4)
        total = raw.astype(np.int64).sum(1)
        return ((total - 2 * 65535) / (65536 / math.sqrt(3))).reshape(shape)

    def _blocks(self, name: str, shape: tuple[int, ...], block: tuple[int, int]) -> Values:
        """Normal numbers whose blocks differ in size by powers of two, so that each scale is one of several."""
        sizes = self.normal(f"{name}/sizes", (shape[0] // block[0], shape[1] // block[1]))
        steps = np.where(sizes < -0.5, 0.5, np.where(sizes > 0.5, 2.0, 1.0)) / 1.3
        return self.normal(name, shape) * steps.repeat(block[0], 0).repeat(block[1], 1)

    def _mixing_base(self, name: str) -> Values:
        noise = 0.4 * self.normal(name, ((2 + layout.STREAMS) * layout.STREAMS,))
        noise[2 * layout.STREAMS :] += 2 * np.eye(layout.STREAMS).reshape(-1)
        return noise

    def _embedding(self) -> Values:
        table = self.normal("embed.weight", (layout.VOCABULARY, layout.HIDDEN))
        table[:, LEXICAL:] *= 0.1
        table[:, _ROUTING] = _OTHER
        draws = self.normal("embed.weight/experts", (layout.VOCABULARY, layout.EXPERTS))
        own = np.argsort(draws, axis=1, kind="stable")[:, : layout.EXPERTS_PER_TOKEN]
        np.put_along_axis(table[:, _ROUTING], own, _OWN, axis=1)
        return table

    def _gate(self, name: str, shape: tuple[int, ...]) -> Values:
        """Each expert looks at its own dimension of the embedding, and a little at everything else."""
        gate = 0.3 / math.sqrt(layout.HIDDEN) * self.normal(name, shape)
        gate[:, _ROUTING] += np.eye(layout.EXPERTS)
        return gate

    def _head(self) -> Values:
        lexical = self._embedding()[:, :LEXICAL]
        head = np.zeros((layout.VOCABULARY, layout.HIDDEN))
        for token, following in self.followers.items():
            for follower in following:
                head[follower, :LEXICAL] += lexical[token] * (_BONUS / LEXICAL)
        head[:, _ROUTING] = 0
        context = self.normal("head.weight", (layout.VOCABULARY, layout.HIDDEN - LEXICAL))
        head[:, LEXICAL:] = context * (_CONTEXT / math.sqrt(layout.HIDDEN - LEXICAL))
        for special in range(len(SPECIAL)):
            if special != EOS:
                head[special] = 0
        return head


def recipe(seed: int, tokenizer: Tokenizer, text: str) -> Recipe:
    """The likeliest followers of each token in ``text``; one with too few gets words that follow few others."""
    counts: dict[int, Counter[int]] = {token: Counter() for token in range(layout.VOCABULARY)}
    for paragraph in text.split("\n\n"):
        tokens = [BOS, *tokenizer.encode(paragraph.strip()), EOS]
        for token, follower in itertools.pairwise(tokens):
            counts[token][follower] += 1
    pairs = [(count, token, follower) for token, seen in counts.items() for follower, count in seen.items()]
    used: Counter[int] = Counter()
    followers: dict[int, list[int]] = {token: [] for token in counts}
    for _, token, follower in sorted(pairs, key=lambda pair: (-pair[0], pair[1:])):
        if len(followers[token]) < RIVALS and used[follower] < FOLLOWS_AT_MOST:
            followers[token].append(follower)
            used[follower] += 1
    words = sorted({follower for _, _, follower in pairs} - {EOS})
    for chosen in followers.values():
        while len(chosen) < RIVALS:
            least = min((word for word in words if word not in chosen), key=lambda word: (used[word], word))
            chosen.append(least)
            used[least] += 1
    return Recipe(seed, followers)


def _writing(part: str, rows: int) -> Values:
    """How strongly each row writes: what goes to the streams spares the dimensions that hold the token."""
    gains = np.ones(rows)
    if part == "attn.wo_b.weight" or part.endswith("w2.weight") or part == "engram.wkv.weight":
        gains[rows - layout.HIDDEN : rows - layout.HIDDEN + LEXICAL] = _SPARED
    return gains


def _block(kind: Kind) -> tuple[int, int]:
    return (32, 32) if kind is Kind.BLOCK_FP8 else (1, 32)
