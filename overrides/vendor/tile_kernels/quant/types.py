"""The pair that ``tile_kernels.quant.types`` names."""

from __future__ import annotations

import torch

QuantTensor = tuple[torch.Tensor, torch.Tensor]
