"""PT123: an index of ``gather`` or ``scatter`` is not a broadcast one.

``gather``, ``scatter`` and ``scatter_add`` by an index that is expanded (stride 0) over the last axis cost 8 to 2500 times
what they cost otherwise, and ``.contiguous()`` does not help. Rows are taken by ``index_select`` or ``x[index]`` and added
by ``index_add_``, which take the small index itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from porter.rules.base import Problem, Rule, RuleContext, examples
from porter.rules.operands import operation
from porter.rules.source import SourceFile

_BY_INDEX = frozenset(
    {
        "gather",
        "scatter",
        "scatter_",
        "scatter_add",
        "scatter_add_",
        "scatter_reduce",
        "scatter_reduce_",
        "take_along_dim",
    }
)


def check(file: SourceFile, context: RuleContext) -> Iterator[Problem]:
    """Expanded indices of gather and scatter."""
    for node in file.calls():
        word, operands = operation(node, file)
        if word not in _BY_INDEX:
            continue
        keyed = [
            one.value for one in node.args if one.keyword is not None and one.keyword.value in ("index", "indices")
        ]
        if any(file.value(one).expanded for one in (*operands[1:3], *keyed)):
            yield Problem(
                f"{word} by an expanded index is slow by orders of magnitude",
                node,
                "index_select, advanced indexing or index_add_ by rows",
                f"{word} with .expand()",
                "take whole rows by the index itself",
            )


RULE = Rule(
    code="PT123",
    name="expanded-index",
    title="gather or scatter by an expanded index is slow by orders of magnitude.",
    doc=__doc__,
    check=check,
    valid=examples(
        "import torch\ndef f(x: torch.Tensor, i: torch.Tensor) -> None:\n    y = x.index_select(0, i)\n    z = x.gather(1, i)\n",
    ),
    invalid=examples(
        "import torch\ndef f(x: torch.Tensor, i: torch.Tensor) -> None:\n    y = x.gather(0, i.unsqueeze(1).expand(-1, 64))\n",
        "import torch\ndef f(x: torch.Tensor, i: torch.Tensor) -> None:\n    wide = i[:, None].expand_as(x).contiguous()\n    y = torch.gather(x, 0, wide)\n",
        "import torch\ndef f(x: torch.Tensor, i: torch.Tensor) -> None:\n    x.scatter_add_(0, index=i.view(-1, 1).expand(-1, 4), src=x)\n",
    ),
)
