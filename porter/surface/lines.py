"""Line numbers of libcst nodes, from one pass that writes the module out and counts newlines.

libcst's own position provider does the same at four times the cost, because it also tracks columns and ends.
"""

from __future__ import annotations

import re
from contextlib import nullcontext

import libcst as cst
from libcst._nodes.internal import CodegenState

_NEWLINE = re.compile(r"\r\n?|\n")
_NOTHING = nullcontext()


class _Counter(CodegenState):
    """Code generation that keeps no text, only the line on which each node starts."""

    def __init__(self, module: cst.Module) -> None:
        super().__init__(default_indent=module.default_indent, default_newline=module.default_newline)
        self.line = 1
        self.lines: dict[int, int] = {}

    def add_indent_tokens(self) -> None:
        return

    def add_token(self, value: str) -> None:
        if "\n" in value or "\r" in value:
            self.line += len(_NEWLINE.findall(value))

    def before_codegen(self, node: cst.CSTNode) -> None:
        self.lines[id(node)] = self.line

    def record_syntactic_position(  # type: ignore[override]
        self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None, end_node: cst.CSTNode | None = None
    ) -> nullcontext[None]:
        # Called past the comments, blank lines and decorators that libcst counts as part of the node. One context object
        # serves all calls, where libcst makes a generator each.
        self.lines[id(node)] = self.line
        return _NOTHING


class Lines:
    """The 1-based first line of any node of ``module``, computed on the first question."""

    def __init__(self, module: cst.Module) -> None:
        self._module = module
        self._lines: dict[int, int] | None = None

    def __call__(self, node: cst.CSTNode) -> int:
        """Line of ``node``; 1 for a node that is not part of the module."""
        if self._lines is None:
            counter = _Counter(self._module)
            self._module._codegen(counter)
            self._lines = counter.lines
        return self._lines.get(id(node), 1)
