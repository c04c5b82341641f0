"""Names that C++ binds into an extension module, read from pybind11 and ``TORCH_LIBRARY`` sources.

Nothing is compiled or executed: the sources are parsed with tree-sitter and the registration code is followed from
``PYBIND11_MODULE`` on. See ``cpp_reader`` for what is followed, ``cpp_callable`` for how arguments are found.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tree_sitter import Node

from porter.errors import SourceError, UnreadableFileError
from porter.surface.cpp_frame import Frame
from porter.surface.cpp_index import CppSources
from porter.surface.cpp_parse import Name
from porter.surface.cpp_reader import RegistrationReader
from porter.surface.cpp_record import UNRESOLVED
from porter.surface.cpp_source import PREPROCESSOR, CppFile, node_name
from porter.surface.cpp_tokens import one_line
from porter.surface.cpp_types import split_arguments
from porter.surface.digest import combine
from porter.surface.model import BindingFacts, Parameter, ParameterKind, Signature

_MODULES = ("PYBIND11_MODULE", "PYBIND11_EMBEDDED_MODULE")
_LIBRARIES = (
    "TORCH_LIBRARY", "TORCH_LIBRARY_FRAGMENT", "STABLE_TORCH_LIBRARY", "STABLE_TORCH_LIBRARY_FRAGMENT",
)  # fmt: skip
_IMPLEMENTATIONS = ("TORCH_LIBRARY_IMPL", "STABLE_TORCH_LIBRARY_IMPL")
_MARKS = tuple(mark.encode() for mark in (*_MODULES, "TORCH_LIBRARY"))


def read_extension(root: Path, module: str, *, sources: Sequence[Path] | None = None) -> tuple[BindingFacts, ...]:
    """Bindings of extension ``module`` (dotted, ``deep_gemm._C``) in registration order.

    ``root`` is the unpacked source; ``sources`` narrows where the module macro and operator blocks are looked for, to
    these files (relative to ``root`` or absolute), while definitions are found in the whole tree. A module macro fits
    by the module's last name, by ``TORCH_EXTENSION_NAME``, or by another macro that the build defines.

    A name bound several times with the same arguments is one binding, its digest that of all definitions. Bound with
    different arguments (overloads, platforms) it has no signature and ``opaque`` lists them. What could not be
    followed is a binding named ``*`` (see ``unresolved``); so is a tree that holds no source of the module.

    Raises SourceError when ``root`` or one of ``sources`` does not exist, UnreadableFileError when a file cannot be read.
    """
    if not root.is_dir():
        raise SourceError(
            "is not a folder with an unpacked source", path=str(root), fix="fetch the source with `porter sources`"
        )
    tree = CppSources(root)
    chosen = _chosen(tree, root, sources)
    last = module.rpartition(".")[2]
    modules = _module_blocks(tree, chosen, last)
    readings: list[tuple[str, list[BindingFacts]]] = []
    for file, block in modules:
        reader = RegistrationReader(tree)
        variable = block.words[1] if len(block.words) > 1 else "m"
        with _depth_of(file):
            reader.read_module(_frame(file, block), variable, block.body)
        readings.append((file.name, _merge(reader.record.bindings)))
    operators = _operators(tree, chosen, last)
    found = _combine(readings)
    if not found and not operators:
        return (_absent(root, module, last, tree),)
    return (*found, *operators)


@contextmanager
def _depth_of(file: CppFile) -> Iterator[None]:
    """Turn a walk that runs out of stack into an error that names the file."""
    try:
        yield
    except RecursionError as error:
        raise UnreadableFileError("is nested too deeply to be read", path=file.name) from error


def unresolved(bindings: Iterable[BindingFacts]) -> tuple[BindingFacts, ...]:
    """Registrations that could not be followed: names may be missing in their ``scope``."""
    return tuple(one for one in bindings if one.name == UNRESOLVED)


def opaque(bindings: Iterable[BindingFacts]) -> tuple[BindingFacts, ...]:
    """Bindings that need a declaration: a callable without a signature, or a registration not followed."""
    return tuple(one for one in bindings if one.opaque and (one.signature is None and one.kind != "constant"))


# -- finding the module ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Block:
    """A macro with a body, ``PYBIND11_MODULE(words...) { body }``, and the namespaces it stands in."""

    name: str
    words: tuple[str, ...]
    node: Node
    body: Node
    scope: Name


def _chosen(tree: CppSources, root: Path, sources: Sequence[Path] | None) -> tuple[CppFile, ...] | None:
    if sources is None:
        return None
    by_path = {file.path.resolve(): file for file in tree.files}
    found: list[CppFile] = []
    for source in sources:
        path = (source if source.is_absolute() else root / source).resolve()
        if not path.is_file():
            raise SourceError("no such C++ source", path=str(source), fix="mend the source list in porter.toml")
        name = path.relative_to(root.resolve()).as_posix() if path.is_relative_to(root.resolve()) else path.name
        found.append(by_path.get(path) or CppFile(path, name))
    return tuple(found)


def _blocks(tree: CppSources, file: CppFile) -> list[_Block]:
    found: list[_Block] = []
    stack = [(piece.scope, piece.root) for piece in tree.expanded(file).pieces]
    while stack:
        scope, node = stack.pop(0)
        for child in node.named_children:
            if child.type == "namespace_definition":
                name = child.child_by_field_name("name")
                inner = scope + (node_name(name) if name is not None else ())
                stack.append((inner, child.child_by_field_name("body") or child))
            elif child.type in PREPROCESSOR or child.type in ("declaration_list", "linkage_specification", "ERROR"):
                stack.append((scope, child))
            elif child.type == "function_definition":
                block = _block(child, scope)
                found.extend([block] if block is not None else [])
    return sorted(found, key=lambda block: block.node.start_byte)


def _block(node: Node, scope: Name) -> _Block | None:
    declarator, body = node.child_by_field_name("declarator"), node.child_by_field_name("body")
    if declarator is None or body is None or declarator.type != "function_declarator":
        return None
    name = one_line((declarator.child_by_field_name("declarator") or declarator).text or b"")
    if name not in (*_MODULES, *_LIBRARIES, *_IMPLEMENTATIONS):
        return None
    listed = declarator.child_by_field_name("parameters")
    words = split_arguments(one_line(listed.text or b"")[1:-1]) if listed is not None else []
    return _Block(name, tuple(words), node, body, scope)


def _module_blocks(tree: CppSources, chosen: tuple[CppFile, ...] | None, last: str) -> list[tuple[CppFile, _Block]]:
    tiers = (chosen,) if chosen is not None else (tree.own, tree.foreign)
    for index, tier in enumerate(tiers):
        exact: list[tuple[CppFile, _Block]] = []
        loose: list[tuple[CppFile, _Block]] = []
        for file in tier:
            if not any(mark in file.data for mark in _MARKS):
                continue
            for block in _blocks(tree, file):
                if block.name not in _MODULES or not block.words:
                    continue
                word = block.words[0]
                meant = _defined(file, word)
                if word == last or meant == last:
                    exact.append((file, block))
                elif word == "TORCH_EXTENSION_NAME" or (meant is None and re.fullmatch(r"[A-Z][A-Z0-9_]+", word)):
                    loose.append((file, block))
        # A build-time name in a third party's tree or a test says nothing about this module.
        found = exact or (loose if index == 0 else [])
        if found:
            return found
    return []


def _defined(file: CppFile, word: str) -> str | None:
    values = {macro.body.decode() for macro in file.macros if macro.name == word.encode() and macro.parameters is None}
    return next(iter(values)) if len(values) == 1 and word != "TORCH_EXTENSION_NAME" else None


def _frame(file: CppFile, block: _Block) -> Frame:
    guard = file.guard(file.line(block.node))
    return Frame(file, block.scope, guards=(guard,) if guard else ())


# -- operators ---------------------------------------------------------------------------------------------------


def _operators(tree: CppSources, chosen: tuple[CppFile, ...] | None, last: str) -> list[BindingFacts]:
    reader = RegistrationReader(tree)
    for file in chosen if chosen is not None else tree.own:
        if b"TORCH_LIBRARY" not in file.data:
            continue
        for block in _blocks(tree, file):
            if block.name in _MODULES or len(block.words) < 2:
                continue
            namespace = last if block.words[0] == "TORCH_EXTENSION_NAME" else block.words[0]
            with _depth_of(file):
                reader.read_library(
                    _frame(file, block),
                    block.words[-1],
                    namespace,
                    block.body,
                    implements=block.name in _IMPLEMENTATIONS,
                )
    given: dict[tuple[str, str], set[str]] = {}
    for one in reader.record.implementations:
        if one.digest:
            given.setdefault((f"torch.ops.{one.namespace}", one.name.partition(".")[0]), set()).add(one.digest)
    out: list[BindingFacts] = []
    for binding in reader.record.bindings:
        digests = given.get((binding.scope, binding.name), set()) | ({binding.digest} if binding.digest else set())
        out.append(replace(binding, digest=_one_digest(digests)))
    return _merge(out)


# -- merging -----------------------------------------------------------------------------------------------------


def _one_digest(digests: set[str]) -> str:
    if not digests:
        return ""
    return next(iter(digests)) if len(digests) == 1 else combine(sorted(digests))


def _merge(bindings: Sequence[BindingFacts]) -> list[BindingFacts]:
    """One binding a name, in order of first registration; aliases take what their target is."""
    groups: dict[tuple[str, str], list[BindingFacts]] = {}
    order: list[list[BindingFacts]] = []
    for binding in bindings:
        if binding.name == UNRESOLVED:
            order.append([binding])
            continue
        key = (binding.scope, binding.name)
        if key not in groups:
            groups[key] = []
            order.append(groups[key])
        groups[key].append(binding)
    merged = [_join(group) for group in order]
    return _follow_aliases(merged)


def _join(group: Sequence[BindingFacts]) -> BindingFacts:
    first = group[0]
    if len(group) == 1:
        return first
    guards = tuple(dict.fromkeys(one.guard for one in group))
    guard = "" if "" in guards else " or ".join(guards)
    digest = _one_digest({one.digest for one in group if one.digest})
    notes = tuple(dict.fromkeys(note for one in group for note in one.notes))
    joined = replace(first, guard=guard, digest=digest, notes=notes)
    if len({one.kind for one in group}) > 1:
        kinds = ", ".join(dict.fromkeys(one.kind for one in group))
        return replace(joined, signature=None, value=None, opaque=f"bound several times, as {kinds}")
    if first.kind == "property":
        types = {one.signature for one in group}
        writable = any(bool(one.writable) for one in group)
        return replace(joined, signature=first.signature if len(types) == 1 else Signature(), writable=writable)
    signatures = tuple(dict.fromkeys(_bare(one.signature) for one in group if one.signature is not None))
    unknown = [one for one in group if one.signature is None and one.opaque]
    if unknown:
        return replace(joined, signature=None, value=None, opaque=unknown[0].opaque)
    if len(signatures) > 1:
        return replace(joined, signature=None, opaque=f"{len(signatures)} overloads: {' and '.join(signatures)}")
    values = {one.value for one in group}
    if len(values) > 1:
        return replace(joined, value=None, opaque="bound several times, to different values")
    if first.signature is not None:
        return replace(joined, signature=_common(group))
    return joined


def _bare(signature: Signature) -> str:
    """What a caller sees of the arguments: names (of those that have one), kinds and defaults."""
    words: list[str] = []
    marks = {ParameterKind.VAR_POSITIONAL: "*", ParameterKind.VAR_KEYWORD: "**"}
    star = False
    for index, one in enumerate(signature.parameters):
        if one.kind is ParameterKind.KEYWORD_ONLY and not star:
            star = True
            words.append("*")
        star = star or one.kind is ParameterKind.VAR_POSITIONAL
        default = f"={one.default}" if one.default is not None else ""
        words.append(f"{marks.get(one.kind, '')}{one.name}{default}")
        following = signature.parameters[index + 1].kind if index + 1 < len(signature.parameters) else None
        if one.kind is ParameterKind.POSITIONAL_ONLY and following is not ParameterKind.POSITIONAL_ONLY:
            words.append("/")
    return f"({', '.join(words)})"


def _common(group: Sequence[BindingFacts]) -> Signature:
    """The signature that all of a group share, without the annotations in which they differ."""
    signatures = [one.signature for one in group if one.signature is not None]
    first = signatures[0]
    parameters: list[Parameter] = []
    for index, parameter in enumerate(first.parameters):
        shown = {one.parameters[index].annotation for one in signatures}
        parameters.append(replace(parameter, annotation=parameter.annotation if len(shown) == 1 else None))
    returns = {one.returns for one in signatures}
    return Signature(tuple(parameters), first.returns if len(returns) == 1 else None)


def _follow_aliases(bindings: list[BindingFacts]) -> list[BindingFacts]:
    known = {f"{one.scope}.{one.name}" if one.scope else one.name: one for one in bindings}
    out: list[BindingFacts] = []
    for binding in bindings:
        target, seen = binding, set[str]()
        while target.alias_of and target.alias_of in known and target.alias_of not in seen:
            seen.add(target.alias_of)
            target = known[target.alias_of]
        if target is binding:
            missing = binding.alias_of and binding.alias_of not in known
            out.append(
                replace(binding, opaque=f"`{binding.alias_of}` is not bound in the sources") if missing else binding
            )
            continue
        out.append(
            replace(
                binding, kind=target.kind, signature=target.signature, opaque=target.opaque, value=target.value,
                bases=target.bases, digest=target.digest, docs=target.docs, notes=target.notes, writable=target.writable,
            )
        )  # fmt: skip
    return out


def _combine(readings: Sequence[tuple[str, list[BindingFacts]]]) -> list[BindingFacts]:
    """One surface of several modules of the same name (one a platform): what not all bind is guarded by its file."""
    if not readings:
        return []
    if len(readings) == 1:
        return readings[0][1]
    holders: dict[tuple[str, str], list[str]] = {}
    for name, bindings in readings:
        for binding in bindings:
            holders.setdefault((binding.scope, binding.name), []).append(name)
    every: list[BindingFacts] = []
    for name, bindings in readings:
        for binding in bindings:
            if len(holders[binding.scope, binding.name]) < len(readings):
                place = f"module in {name}"
                binding = replace(binding, guard=f"{place} and {binding.guard}" if binding.guard else place)
            every.append(binding)
    return _merge(every)


def _absent(root: Path, module: str, last: str, tree: CppSources) -> BindingFacts:
    compiled = ""
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith("."))
        for name in sorted(files):
            if name.partition(".")[0] == last and name.endswith((".so", ".pyd", ".dylib")):
                compiled = compiled or (Path(folder) / name).relative_to(root).as_posix()
    where = (
        f"only its compiled form {compiled} is there" if compiled else f"none of {len(tree.files)} C++ files binds it"
    )
    return BindingFacts(
        "",
        UNRESOLVED,
        "function",
        compiled,
        0,
        opaque=f"no source of `{module}` in the tree: {where}; declare its names in overrides/",
    )
