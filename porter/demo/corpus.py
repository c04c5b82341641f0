"""The text that the tiny checkpoints' tokenizer and word order are made from, and the demo's prompts."""

from __future__ import annotations

TEXT = """\
The harbour wakes before the town does. A porter walks along the quay, counts the crates, and writes the numbers in a small book.
The first boat comes in with the tide. It brings salt, rope, lamp oil and letters, and it leaves with grain, wool and paper.
A porter carries what others have packed. He does not open the crates, but he reads every label, and he knows which crate is late.

When the wind turns to the north, the captain waits. The crew mends the sails, the cook salts the fish, and the harbour is quiet.
When the wind turns to the south, every boat leaves at once. The porter runs, the crane turns, and the bell rings until noon.

A map is not the sea. The map shows the coast, the depth and the lights, but it does not show the weather or the ice.
The pilot reads the water. He sees the colour of the shoal, the line of the current and the birds above the reef.
The captain asks the pilot, the pilot asks the sea, and the sea answers slowly.

In the old warehouse there are nine floors. The first floor holds grain, the second holds wool, the third holds paper and ink.
On the fourth floor there are clocks that do not agree. On the fifth floor there are maps of places that have changed their names.
The porter carries a crate from the first floor to the ninth floor, and the crate is lighter when he arrives.

At night the lamps are lit. The keeper climbs the tower, cleans the glass, and turns the light toward the sea.
A ship far away sees the light, changes its course, and comes home. The keeper writes the time in the book and waits for the morning.
In the morning the harbour wakes, the porter counts the crates, and the first boat comes in with the tide.

What is a port? A port is a place where things change hands and keep their shape.
What is a porter? A porter is a person who moves things and changes nothing.
What is a good port? A good port is one that the cargo does not notice.
"""

PROMPTS = (
    "The porter",
    "When the wind turns to the north,",
    "In the old warehouse there are",
    "What is a good port?",
)
