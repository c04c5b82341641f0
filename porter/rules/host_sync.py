"""PT103: a kernel does not make the host wait, unless a comment says so.

Reading a tensor's value costs a round trip to the device (0.7 to 3.5 ms), and a shape that depends on values cannot be
compiled. Refused are ``.item()``, ``.tolist()``, ``.cpu()``, ``.numpy()``, ``nonzero``, ``argwhere``, ``masked_select``,
``unique``, ``bincount``, ``torch.equal`` and ``allclose``, ``repeat_interleave`` by a tensor without ``output_size``, a
boolean mask as index, a slice bounded by a tensor, and a tensor where Python wants a number or a truth value.
``x[mask] = number`` is a masked fill and accepted.

Where it cannot be avoided, the line carries ``# NEURON: host sync`` with the reason, or the line above does.
"""

from __future__ import annotations

from collections.abc import Iterator

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.source import SourceFile
from porter.rules.syncs import syncs


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """Synchronisations without the comment."""
    for sync in syncs(file):
        if not file.sync_marks(sync.node):
            yield Problem(
                "the host waits for the device",
                sync.node,
                "static shapes and no host sync, or a `# NEURON: host sync` comment with the reason",
                sync.found,
                sync.fix,
            )


_HEAD = "import torch\ndef kernel(x: torch.Tensor, n: int, lengths: torch.Tensor) -> None:\n"


def _body(*lines: str) -> str:
    return _HEAD + "".join(f"    {line}\n" for line in lines)


RULE = Rule(
    code="PT103",
    name="host-sync",
    title="A kernel makes the host wait for the device.",
    doc=__doc__,
    check=check,
    valid=examples(
        _body("if n > 0 and x.shape[0] > 1:", "    x.zero_()"),
        _body("# NEURON: host sync: the bound of the loop", "count = x.sum().item()"),
        _body("count = x.sum().item()  # NEURON: host sync: the bound of the loop"),
        _body("x[x < 0] = 0.0"),
        _body("mask = x < 0", "y = torch.where(mask, 0.0, x)"),
        _body("y = x.repeat_interleave(n, 1)", "z = x.repeat_interleave(lengths, output_size=n)"),
        _body("y = x[:n]", "assert x.dtype == torch.float32", "z = int(n)"),
        _body("y = x[lengths]"),
        "table = {1: 2}\nfor key in table:\n    value = table[key]\nprint(dict(a=1).items())\n",
        _body("names = [one.item for one in (1, 2)]"),
    ),
    invalid=examples(
        _body("count = x.sum().item()"),
        _body("for row in lengths.tolist():", "    pass"),
        _body("rows = x.nonzero()"),
        _body("rows = torch.nonzero(x)"),
        _body("rows = torch.where(x > 0)"),
        _body("y = x[x > 0]"),
        _body("mask = lengths >= 3", "y = x[mask]"),
        _body("mask = lengths >= 3", "x[mask] = x[mask] * 2"),
        _body("y = torch.masked_select(x, x > 0)"),
        _body("y = x.cpu()"),
        _body("y = x.numpy()"),
        _body("y = torch.unique(x)"),
        _body("y = torch.repeat_interleave(x, lengths)"),
        _body("y = x.repeat_interleave(lengths)"),
        _body("if torch.equal(x, lengths):", "    pass"),
        _body("if torch.allclose(x, lengths):", "    pass"),
        _body("if (x > 0).any():", "    pass"),
        _body("while x.max() > 1:", "    x.mul_(0.5)"),
        _body("assert (lengths >= 0).all()"),
        _body("count = int(lengths.max())"),
        _body("y = float(x[0])"),
        _body("y = x[: lengths[0]]"),
        _body("y = 1 if x.sum() > 0 else 2"),
        _body("flag = not x.any()"),
        _body("if n and x.any():", "    pass"),
        _body('print(f"{x}")'),
        _body("if 3 in lengths:", "    pass"),
        _body("torch.cuda.synchronize()"),
    ),
)
