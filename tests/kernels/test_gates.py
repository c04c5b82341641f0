"""Every factory meets the static gates: some test here gives its kernel to ``check_kernel`` with the gates on, or to each gate."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
FACTORY = re.compile(r"^def (\w+_tl)\(", re.MULTILINE)
GATES = ("check_fake(", "check_fullgraph(", "check_mutations(")


def functions(path: Path) -> dict[str, str]:
    """The text of each function of a test file, decorators included."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return {
        node.name: "\n".join(lines[min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1 : node.end_lineno])
        for node in found
    }


def with_helpers(name: str, texts: dict[str, str]) -> str:
    """A function's text and that of the file's other functions that it calls."""
    called = [text for other, text in texts.items() if other != name and re.search(rf"\b{other}\(", texts[name])]
    return "\n".join([texts[name], *called])


def is_gated(text: str) -> bool:
    """Whether a test runs the gates, by ``check_kernel`` or one by one."""
    by_kernel = "check_kernel(" in text and "gates=False" not in text
    return by_kernel or all(gate in text for gate in GATES)


def gated_names(path: Path) -> set[str]:
    """The factories that are named in tests of ``path`` that run the gates."""
    texts = functions(path)
    whole = [with_helpers(name, texts) for name in texts if name.startswith("test_")]
    return {word for text in whole if is_gated(text) for word in re.findall(r"\w+_tl\b", text)}


def test_every_factory_meets_the_gates() -> None:
    sources = (HERE.parents[1] / "overrides" / "tilelang_ops").glob("*.py")
    factories = {name for path in sources for name in FACTORY.findall(path.read_text(encoding="utf-8"))}
    tested: set[str] = set().union(*(gated_names(path) for path in HERE.glob("test_*.py")))
    assert len(factories) >= 42
    assert not factories - tested, f"no test with the static gates: {sorted(factories - tested)}"
