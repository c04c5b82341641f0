"""Pure-torch bodies of the ``tilelang_ops/asc`` factories; each module mirrors the upstream module of the same name."""
