"""Which names of a module stand for TileLang.

TileLang is imported under many names (``import tilelang.language as T``, ``from tilelang.ascend.language import simd as
S``, ``from tilelang import jit``). A ``Dialect`` maps the names of one module to canonical paths: ``T.copy`` for a name of
any of TileLang's languages (``T.simd.vsts``, ``T.tile.add``), ``tilelang.jit`` for one of its tools.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import libcst as cst

from porter.surface.text import dotted

LANGUAGE = "T"
# A function named so is a factory by the backend's own rule.
FACTORY_SUFFIX = "_tl"
FACTORY_DECORATORS = frozenset({"tilelang.jit", "tilelang.lazy_jit", "T.jit", "T.lazy_jit"})
KERNEL_DECORATORS = frozenset({"T.prim_func", "tilelang.prim_func"})
MACRO_DECORATORS = frozenset({"T.macro", "T.inline", "tilelang.macro"})
TOOLS = frozenset(
    f"tilelang.{name}" for name in ("jit", "lazy_jit", "autotune", "compile", "par_compile", "prim_func", "macro")
)
# Names that TileLang code gives the language by custom, believed where a star import or a project's own module brings them.
_CUSTOMARY = {"T": "T", "S": "T.simd", "tilelang": "tilelang"}


@dataclass(frozen=True)
class Dialect:
    """TileLang's names in one module.

    ``names``: local name to canonical path. ``packages``: other imported local names to the dotted path they stand for.
    """

    names: Mapping[str, str]
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def speaks(self) -> bool:
        """Does the module know TileLang at all?"""
        return bool(self.names)

    def resolve(self, name: str) -> str | None:
        """Canonical path of a dotted name as written, None where it is not TileLang's."""
        root, _, rest = name.partition(".")
        base = self.names.get(root)
        if base is None:
            return None
        return canonical(f"{base}.{rest}") if rest else base

    def of(self, node: cst.CSTNode) -> str | None:
        """``resolve`` of an expression; a call stands for what it calls."""
        name = dotted(node.func if isinstance(node, cst.Call) else node)
        return None if name is None else self.resolve(name)


def canonical(path: str) -> str:
    """``T.x`` for a name of a language, ``tilelang.x`` for a tool, else the path itself."""
    if not path.startswith("tilelang"):
        return path
    parts = path.split(".")
    if "language" in parts[:3]:
        return ".".join([LANGUAGE, *parts[parts.index("language") + 1 :]])
    tool = f"tilelang.{parts[-1]}"
    return tool if tool in TOOLS else path


@lru_cache(maxsize=4)
def dialect_of(module: cst.Module) -> Dialect:
    """TileLang's names as the module-level imports and plain aliases bind them."""
    names: dict[str, str] = {}
    packages: dict[str, str] = {}
    stars = False
    for statement in small_statements(module.body):
        if isinstance(statement, (cst.Import, cst.ImportFrom)):
            stars |= isinstance(statement, cst.ImportFrom) and isinstance(statement.names, cst.ImportStar)
            for local, path in imported(statement):
                if path.split(".")[0] == "tilelang":
                    names[local] = canonical(path)
                elif local in _CUSTOMARY and path.startswith(".") and path.rpartition(".")[2] == local:
                    names[local] = _CUSTOMARY[local]
                else:
                    packages[local] = path
                    names.pop(local, None)
        elif names and isinstance(statement, cst.Assign) and len(statement.targets) == 1:
            target = statement.targets[0].target
            found = _alias(Dialect(names, packages), statement.value)
            if isinstance(target, cst.Name) and found is not None:
                names[target.value] = found
    if stars and not any(path == LANGUAGE for path in names.values()):
        missing = {name: path for name, path in _CUSTOMARY.items() if name not in packages and name not in names}
        if _decorates(module, Dialect({**missing, **names})):
            names.update(missing)
    return Dialect(names, packages)


def decorated(function: cst.FunctionDef, dialect: Dialect, paths: frozenset[str]) -> bool:
    """Does a function carry one of these decorators, under whatever name?"""
    return any(dialect.of(decorator.decorator) in paths for decorator in function.decorators)


def _decorates(module: cst.Module, dialect: Dialect) -> bool:
    """Does any top-level function carry one of TileLang's decorators?"""
    ours = FACTORY_DECORATORS | KERNEL_DECORATORS | MACRO_DECORATORS
    return any(
        isinstance(statement, cst.FunctionDef) and decorated(statement, dialect, ours) for statement in module.body
    )


def _alias(dialect: Dialect, value: cst.BaseExpression) -> str | None:
    """Canonical path that ``name = value`` gives a name: an alias, or a decorator made from TileLang's."""
    if isinstance(value, (cst.Name, cst.Attribute)):
        return dialect.of(value)
    if isinstance(value, cst.Call):
        path = dialect.of(value)
        if path in FACTORY_DECORATORS:
            return path
        called = dotted(value.func)
        if called in ("partial", "functools.partial") and value.args:
            path = dialect.of(value.args[0].value)
            return path if path in FACTORY_DECORATORS else None
    return None


def imported(statement: cst.Import | cst.ImportFrom) -> Iterator[tuple[str, str]]:
    """(local name, dotted path) of each name an import binds; relative dots are kept, a star binds none."""
    if isinstance(statement, cst.Import):
        for alias in statement.names:
            path = dotted(alias.name) or ""
            if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
                yield alias.asname.name.value, path
            else:
                yield path.partition(".")[0], path.partition(".")[0]
        return
    if isinstance(statement.names, cst.ImportStar):
        return
    base = "." * len(statement.relative) + (dotted(statement.module) or "" if statement.module is not None else "")
    for alias in statement.names:
        name = dotted(alias.name) or ""
        local = (
            alias.asname.name.value if alias.asname is not None and isinstance(alias.asname.name, cst.Name) else name
        )
        yield local, base + name if base.endswith(".") else f"{base}.{name}"


def small_statements(body: Sequence[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    """Module-level small statements, those under ``if``, ``try`` and ``with`` included."""
    for statement in body:
        if isinstance(statement, cst.SimpleStatementLine):
            yield from statement.body
        elif isinstance(statement, (cst.If, cst.Try, cst.TryStar, cst.With, cst.Else, cst.Finally, cst.ExceptHandler)):
            yield from small_statements(statement.body.body)
            for name in ("handlers", "orelse", "finalbody"):
                part = getattr(statement, name, None)
                if isinstance(part, cst.CSTNode):
                    yield from small_statements([part])
                elif part:
                    yield from small_statements(part)
