# What upstream's interface passes to its C++ module, whose arguments have no names there.

import torch

def get_alignment_requirement() -> tuple[int, int]: ...
def topk(
    input: torch.Tensor,
    topk: int,
    begin: torch.Tensor | None,
    end: torch.Tensor | None,
    sorted: bool,
    sorted_index: bool,
    output_val: torch.Tensor | None,
    output_idx: torch.Tensor,
    output_idx_offset: torch.Tensor | None,
    idx_oob_fill_value: int,
    value_oob_fill_value: float,
    return_value: bool,
    abort_when_nan_found: bool,
    /,
) -> None: ...
