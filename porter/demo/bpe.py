"""A byte-level BPE tokenizer, trained here so that the same text gives the same files on every machine."""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_BAR, _GAP = "\uff5c", "\u2581"  # the signs of the released tokenizer's own tokens
BOS, EOS, PAD, IMAGE = 0, 1, 2, 3
SPECIAL = (
    f"<{_BAR}begin{_GAP}of{_GAP}sentence{_BAR}>",
    f"<{_BAR}end{_GAP}of{_GAP}sentence{_BAR}>",
    f"<{_BAR}{_GAP}pad{_GAP}{_BAR}>",
    "<image>",
)
# What the byte-level pre-tokenizer of the `tokenizers` package splits by, for ASCII.
_PIECES = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")

Pair = tuple[str, str]


@dataclass(frozen=True)
class Tokenizer:
    """Merges in the order in which they were learnt. Ids: special tokens, the 256 bytes, then one a merge."""

    merges: tuple[Pair, ...]

    @cached_property
    def vocabulary(self) -> Mapping[str, int]:
        """Spelling of every token, special ones included, to its id."""
        words = [*SPECIAL, *_alphabet().values(), *("".join(pair) for pair in self.merges)]
        return {word: index for index, word in enumerate(words)}

    @cached_property
    def _ranks(self) -> Mapping[Pair, int]:
        return {pair: rank for rank, pair in enumerate(self.merges)}

    @cached_property
    def compressed_size(self) -> int:
        """How many tokens are left for the n-gram memory, to which case, accents and outer blanks are nothing."""
        bytes_of = {sign: byte for byte, sign in _alphabet().items()}
        kinds = set()
        for word, index in self.vocabulary.items():
            text = word if index < len(SPECIAL) else bytes(bytes_of[sign] for sign in word).decode(errors="replace")
            kinds.add(word if "\ufffd" in text else _compressed(text))
        return len(kinds)

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` (ASCII), without a first BOS."""
        return [self.vocabulary[symbol] for piece in _spell(text) for symbol in self._split(piece)]

    def _split(self, piece: str) -> list[str]:
        symbols = list(piece)
        while len(symbols) > 1:
            pair = min(itertools.pairwise(symbols), key=lambda p: self._ranks.get(p, len(self._ranks)))
            if pair not in self._ranks:
                break
            symbols = _merge(symbols, pair)
        return symbols

    def files(self) -> Mapping[str, str]:
        """tokenizer.json and tokenizer_config.json, as the ``tokenizers`` and ``transformers`` packages read them."""
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        first = {"id": SPECIAL[BOS], "ids": [BOS], "tokens": [SPECIAL[BOS]]}
        tokenizer: dict[str, Any] = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [_added(index, word) for index, word in enumerate(SPECIAL)],
            "normalizer": None,
            "pre_tokenizer": level,
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [_special(0), _sequence("A", 0)],
                "pair": [_special(0), _sequence("A", 0), _sequence("B", 1)],
                "special_tokens": {SPECIAL[BOS]: first},
            },
            "decoder": level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": dict(self.vocabulary),
                "merges": [" ".join(pair) for pair in self.merges],
            },
        }
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL[BOS],
            "eos_token": SPECIAL[EOS],
            "pad_token": SPECIAL[PAD],
            "clean_up_tokenization_spaces": False,
        }
        return {
            "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n",
            "tokenizer_config.json": json.dumps(config, ensure_ascii=False, indent=1) + "\n",
        }


def train(text: str, vocabulary: int) -> Tokenizer:
    """The most frequent pair of neighbours becomes a token, again and again; of equals, the first in spelling.

    Raises ValueError where the text has too few pairs for ``vocabulary`` tokens.
    """
    words: dict[tuple[str, ...], int] = Counter(tuple(piece) for piece in _spell(text))
    merges: list[Pair] = []
    while len(SPECIAL) + 256 + len(merges) < vocabulary:
        pairs: Counter[Pair] = Counter()
        for symbols, count in words.items():
            for pair in itertools.pairwise(symbols):
                pairs[pair] += count
        if not pairs:
            raise ValueError(f"the text gives {len(merges)} merges only")
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        merged: Counter[tuple[str, ...]] = Counter()
        for symbols, count in words.items():
            merged[tuple(_merge(symbols, best))] += count
        words = merged
    return Tokenizer(tuple(merges))


def _merge(symbols: Sequence[str], pair: Pair) -> list[str]:
    out: list[str] = []
    at = 0
    while at < len(symbols):
        found = tuple(symbols[at : at + 2]) == pair
        out.append("".join(pair) if found else symbols[at])
        at += 2 if found else 1
    return out


def _spell(text: str) -> Iterable[str]:
    alphabet = _alphabet()
    return ("".join(alphabet[byte] for byte in piece.encode()) for piece in _PIECES.findall(text))


def _alphabet() -> Mapping[int, str]:
    """A printable sign for every byte: itself where it is one, else the next of those from U+0100 on."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in plain)
    signs = {byte: chr(0x100 + index) for index, byte in enumerate(others)}
    return {byte: signs.get(byte, chr(byte)) for byte in range(256)}


def _compressed(text: str) -> str:
    decomposed = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    plain = "".join(sign for sign in decomposed if unicodedata.category(sign) != "Mn").lower()
    spaced = re.sub(r"[ \t\r\n]+", " ", plain)
    return spaced if spaced == " " else spaced.strip() or text


def _added(index: int, word: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": index, "content": word, **flags}


def _special(kind: int) -> dict[str, Any]:
    return {"SpecialToken": {"id": SPECIAL[BOS], "type_id": kind}}


def _sequence(name: str, kind: int) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": kind}}
