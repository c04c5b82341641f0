"""PT104: a ``# NEURON:`` comment speaks of something that is there.

``# NEURON: host sync`` marks the line that follows (or carries it) as one that makes the host wait, and
``# NEURON: 64-bit`` as one that needs 64-bit integers. A comment left behind after the line was changed hides the next
one; so does a ``64-bit`` comment that gives no reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.index_dtype import possible_wides, wide_creations
from porter.rules.source import SourceFile, wide_reason
from porter.rules.syncs import possible_syncs, syncs


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """Comments that mark nothing."""
    places = [*(sync.node for sync in syncs(file)), *possible_syncs(file)]
    used = {mark.line for node in places for mark in file.sync_marks(node)}
    for comment in file.all_sync_marks():
        if comment.line not in used:
            yield Problem(
                "the comment marks a host sync that is not there",
                line=comment.line,
                expected="a line that makes the host wait",
                found=comment.text,
                fix="remove the comment, or move it onto the line it means",
            )
    widening = [*(creation.node for creation in wide_creations(file)), *possible_wides(file)]
    wide = {mark.line for node in widening for mark in file.wide_marks(node)}
    for comment in file.all_wide_marks():
        if not wide_reason(comment):
            yield Problem(
                "the comment gives no reason for 64-bit integers",
                line=comment.line,
                expected="# NEURON: 64-bit <why 32 bits do not do>",
                found=comment.text,
                fix="say why 32 bits do not do",
            )
        elif comment.line not in wide:
            yield Problem(
                "the comment marks 64-bit integers that are not there",
                line=comment.line,
                expected="a line that makes a 64-bit tensor",
                found=comment.text,
                fix="remove the comment, or move it onto the line it means",
            )


RULE = Rule(
    code="PT104",
    name="stale-comment",
    title="A NEURON comment marks nothing, or gives no reason.",
    doc=__doc__,
    check=check,
    valid=examples(
        "# NEURON: host sync: sizes come from the scheduler\nn = x.item()\n",
        "n = x.tolist()  # NEURON: host sync\n",
        "# NEURON: host sync\nn = int(gather(x)[0].max())\n",
        "# NEURON: host sync\ny = table.index_select(0, place).to(x.device)\n",
        "import torch\n# NEURON: 64-bit: torch.gather takes no other index\ny = x.to(torch.int64)\n",
        "import torch\n# NEURON: host sync once for each device\ny = torch.tensor([1, 2], device=x.device)\n",
        "# NEURON: 64-bit: upstream's are\nout.copy_(x)\n",
        "# NEURON: 64-bit: as the caller's are\ny = x.to(out.dtype)\n",
        "# A comment of another kind: NEURON has no host sync here.\ny = x + 1\n",
    ),
    invalid=examples(
        "# NEURON: host sync\ny = x + 1\n",
        "y = x + 1  # NEURON: host sync: gone\n",
        "# NEURON: host sync\n\nn = x.item()\n",
        "# NEURON: host sync\nn = int(3)\n",
        "import torch\n# NEURON: host sync\ny = x.to(torch.float32)\n",
        "import torch\n# NEURON: 64-bit\ny = x.to(torch.int64)\n",
        "# NEURON: 64-bit: no longer\ny = x + 1\n",
        "import torch\n# NEURON: 64-bit: no longer\ntorch.empty(2, dtype=torch.int32).copy_(x)\n",
    ),
)
