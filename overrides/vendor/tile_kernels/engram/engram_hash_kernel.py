"""Hashes of n-grams, from ``tile_kernels.engram.engram_hash_kernel``."""

from __future__ import annotations

import torch

from neuron_numerics import wide_integers


def engram_hash(
    ngram_token_ids: torch.Tensor,
    multipliers: torch.Tensor,
    vocab_sizes: torch.Tensor,
    offsets: torch.Tensor,
    image_token_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rows of the embedding tables for each token's n-grams, int32 [layers, tokens, (N - 1) * tables].

    ``ngram_token_ids``: int32 [tokens, N], the token itself first. ``multipliers``: contiguous int64 [layers, N].
    ``vocab_sizes``: int32 [layers, N - 1, tables]. ``offsets``: int32 [layers, (N - 1) * tables]. The n-gram of n tokens hashes
    to the exclusive or of their 64-bit products, modulo each table's size, plus its offset. Tokens of ``image_token_mask``
    (bool [tokens]) give -1.
    """
    layers, orders, tables = vocab_sizes.shape
    tokens = ngram_token_ids.shape[0]
    # A 64-bit multiplier is seen as two words: the device computes with 32 bits.
    factors = multipliers.contiguous().view(torch.int32).view(layers, 1, orders + 1, 2)
    high, low = wide_integers.multiply(ngram_token_ids.unsqueeze(0), (factors[..., 1], factors[..., 0]))
    hashes = []
    for words in (high, low):
        running = words[:, :, 0]
        seen = []
        for order in range(1, orders + 1):
            running = running ^ words[:, :, order]
            seen.append(running)
        hashes.append(torch.stack(seen, 2).unsqueeze(-1))
    rows = wide_integers.remainder((hashes[0], hashes[1]), vocab_sizes.unsqueeze(1))
    result = rows.reshape(layers, tokens, orders * tables) + offsets.unsqueeze(1)
    return result if image_token_mask is None else result.masked_fill(image_token_mask.view(1, -1, 1), -1)
