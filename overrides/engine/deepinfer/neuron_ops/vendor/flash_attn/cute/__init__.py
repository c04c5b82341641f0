"""Name holder for FlashAttention's CuTe kernels."""
