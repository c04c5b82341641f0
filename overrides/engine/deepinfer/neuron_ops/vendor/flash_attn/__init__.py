"""Name holder for FlashAttention, which only the vision tower uses."""
