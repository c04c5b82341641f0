"""How alike two bodies are, from their sketches alone. ``digest.py`` makes the sketches."""

from __future__ import annotations

# How many token runs a sketch keeps, eight hex digits each.
SKETCH = 24


def similarity(first: str, second: str) -> float:
    """Estimated Jaccard similarity (0 to 1) of the bodies behind two sketches: bottom-k sketch over token runs."""
    a = {first[i : i + 8] for i in range(0, len(first), 8)}
    b = {second[i : i + 8] for i in range(0, len(second), 8)}
    if not a or not b:
        return 0.0
    union = sorted(a | b)[:SKETCH]
    return sum(1 for value in union if value in a and value in b) / len(union)
