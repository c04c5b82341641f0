"""Text of every emitted file, from the plan."""
