"""Number formats of the cached and quantised tensors, shared by the kernels and the vendor packages.

- ``formats``: the formats as frozen data: values (e4m3, e2m1), scales (fp32, power of two, ue8m0, e4m3), their pairing.
- ``e2m1``: FP4 codes, two a byte.
- ``scales``: from the largest magnitude of a group to its scale and the exact factor that quantises by it.
- ``casts``: quantise and dequantise, per token, per block and per channel.
- ``layouts``: how scales lie in memory: packed bytes, column-major views.

Everything is pure torch on the inputs' device, with static shapes and no host sync.
"""
