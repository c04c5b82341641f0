"""Prompts of mixed lengths: shorter and longer than the window, than what an index selects from, than all candidates."""

from __future__ import annotations

import random
from collections.abc import Sequence

from porter.demo import checkpoint, corpus, layout
from porter.demo.bpe import BOS, SPECIAL

LENGTHS = (
    *(2, 3, 5, 8, 9, 13, 17, 24, 31, 33, 40, 48, 57, 63, 64, 65),
    *(71, 80, 96, 111, 126, 127, 128, 129, 130, 131, 144, 160, 191, 193),
    *(255, 257, 258, 300, 385, 512, 515, 600),
)
"""The window and a cache block are 128 tokens; a ratio-1 index selects from 65 on, a ratio-2 one from 130, and from 513
entries on candidate blocks are left out."""

LONGEST = 600


def prompts(count: int = 64, seed: int = 0) -> list[list[int]]:
    """``count`` prompts, each BOS and pieces of text or drawn tokens; the lengths above first, then short ones."""
    draw = random.Random(seed)
    text = checkpoint.tokenizer().encode(corpus.TEXT)
    lengths = [*LENGTHS, *(draw.randrange(4, 60) for _ in range(count))][:count]
    return [[BOS, *_body(draw, text, length - 1, index % 3 == 0)] for index, length in enumerate(lengths)]


def prompt(length: int, seed: int = 0) -> list[int]:
    """One prompt of ``length`` tokens, text."""
    draw = random.Random(seed)
    return [BOS, *_body(draw, checkpoint.tokenizer().encode(corpus.TEXT), length - 1, drawn=False)]


def _body(draw: random.Random, text: Sequence[int], length: int, drawn: bool) -> list[int]:
    if drawn:
        return [draw.randrange(len(SPECIAL), layout.VOCABULARY) for _ in range(length)]
    start = draw.randrange(len(text))
    return [text[(start + index) % len(text)] for index in range(length)]
