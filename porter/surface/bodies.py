"""Digests that follow references: what a body does includes what it calls in its own source.

Each definition is a node. Its digest joins its own with, per referenced name, the digest of what the name stands for, so
a changed helper, constant or base class moves every body that uses it, and so does a name that comes to mean something
else. Definitions that refer to each other are digested together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from porter.surface.digest import combine
from porter.surface.model import (
    BindingFacts,
    ClassFacts,
    ConstantFacts,
    Contract,
    Fact,
    FunctionFacts,
    KernelArgument,
    Signature,
)
from porter.surface.namespace import (
    Definition,
    ExtensionName,
    Foreign,
    ModuleReference,
    Program,
    Resolved,
    Target,
    Unknown,
)

type BindingTable = Mapping[str, BindingFacts]


def binding_table(bindings: Mapping[str, Iterable[BindingFacts]]) -> dict[str, BindingFacts]:
    """C++ names by dotted path, the first of each; without submodules and without what stands for unread registrations."""
    table: dict[str, BindingFacts] = {}
    for module in sorted(bindings):
        for binding in bindings[module]:
            if binding.name != "*" and binding.kind != "module":
                table.setdefault(".".join(part for part in (module, binding.scope, binding.name) if part), binding)
    return table


@dataclass(frozen=True)
class _Node:
    """``own``: the body alone. ``label``: the body and how it is called. ``references``: (name, texts or node keys)."""

    own: str
    label: str
    references: tuple[tuple[str, tuple[str | int, ...]], ...]


class Bodies:
    """Body digests of everything that ``program`` defines.

    ``bindings``: C++ names by dotted path (``deep_gemm._C.fp8_einsum``).
    """

    def __init__(self, program: Program, bindings: BindingTable) -> None:
        self._program = program
        self._bindings = bindings
        self._members: dict[str, list[BindingFacts]] = {}
        for path in sorted(bindings):
            parts = path.split(".")
            for length in range(1, len(parts)):
                self._members.setdefault(".".join(parts[:length]), []).append(bindings[path])
        self._nodes: dict[int, _Node] = {}
        self._facts: dict[int, tuple[str, Fact]] = {}
        self._bodies: dict[int, str] = {}
        self._full: dict[int, str] = {}
        self.extension_names: set[ExtensionName] = set()
        for module in program.modules.values():
            facts: tuple[Fact, ...] = (*module.facts.functions, *module.facts.constants, *module.facts.classes)
            for fact in facts:
                self._add(module.name, fact)
            for name in module.facts.references:
                self._seen(program.resolve(module.name, name, history=True))
        for component in _components(self._nodes):
            self._close(component)

    def own(self, fact: Fact) -> str:
        """Digest of the definition's own body."""
        return self._nodes[id(fact)].own

    def body(self, fact: Fact) -> str:
        """Digest of the definition's body and of all that it refers to in its source."""
        return self._bodies[id(fact)]

    def full(self, fact: Fact) -> str:
        """``body`` and how the definition is called: what another body sees of it."""
        return self._full[id(fact)]

    def closure(self, fact: Fact) -> tuple[tuple[str, Fact], ...]:
        """(module, definition) of all that ``body`` digests, the definition itself first."""
        seen = {id(fact): None}
        queue = [id(fact)]
        while queue:
            for target in _edges(self._nodes, queue.pop(0)):
                if target not in seen:
                    seen[target] = None
                    queue.append(target)
        return tuple(self._facts[key] for key in seen)

    def uses(self, module: str, names: Iterable[str]) -> str:
        """Digest of what ``names`` stand for in ``module``, for a body that is no definition of its own."""
        references = [
            self._reference(name, self._program.resolve(module, name, history=True)) for name in sorted(names)
        ]
        return combine([self._text(reference, self._full) for reference in references if reference is not None])

    # Nodes

    def _add(self, module: str, fact: Fact, owners: tuple[ClassFacts, ...] = ()) -> None:
        references = tuple(self._references(module, fact, owners))
        self._facts[id(fact)] = (module, fact)
        if isinstance(fact, ClassFacts):
            inside = (*owners, fact)
            for member in members_of(fact):
                self._add(module, member, inside)
            own = self._class_digest(fact)
            table = dict(references)
            for member in members_of(fact):
                # Own members are part of the class already; what they use outside is not.
                table.update(
                    {
                        name: targets
                        for name, targets in self._nodes[id(member)].references
                        if not name.startswith("self.")
                    }
                )
            self._nodes[id(fact)] = _Node(own, combine([own, _call_text(fact)]), tuple(sorted(table.items())))
            return
        self._nodes[id(fact)] = _Node(fact.digest, combine([fact.digest, _call_text(fact)]), references)

    def _class_digest(self, fact: ClassFacts) -> str:
        parts = [fact.digest]
        for member in sorted(members_of(fact), key=lambda one: (one.name, one.line)):
            parts += [member.name, self._nodes[id(member)].own]
            if isinstance(member, ConstantFacts) or member.name.startswith("_"):
                parts.append(_call_text(member))
        return combine(parts)

    def _references(
        self, module: str, fact: Fact, owners: tuple[ClassFacts, ...]
    ) -> Iterator[tuple[str, tuple[str | int, ...]]]:
        local = dict(fact.local_imports) if isinstance(fact, FunctionFacts) else None
        for name in fact.references:
            if owners and name.startswith("self."):
                member = self._member(module, owners[-1], name.split(".")[1])
                if member is not None and member is not fact:
                    yield name, (id(member),)
                continue
            found = self._reference(name, self._program.resolve(module, name, local, history=True))
            if found is not None:
                yield found

    def _member(self, module: str, owner: ClassFacts, name: str, depth: int = 0) -> Fact | None:
        for member in reversed(members_of(owner)):
            if member.name == name:
                return member
        for base in owner.bases if depth < 20 else ():
            if base.keyword is None:
                found = self._program.resolve(module, base.text, history=True)
                if (
                    found is not None
                    and isinstance(found.target, Definition)
                    and isinstance(found.target.fact, ClassFacts)
                ):
                    inherited = self._member(found.target.module, found.target.fact, name, depth + 1)
                    if inherited is not None:
                        return inherited
        return None

    def _seen(self, found: Resolved | None) -> None:
        for target in () if found is None else (found.target, *found.others):
            if isinstance(target, ExtensionName):
                self.extension_names.add(target)

    def _reference(self, name: str, found: Resolved | None) -> tuple[str, tuple[str | int, ...]] | None:
        if found is None:
            return None
        self._seen(found)
        targets = [self._target(target) for target in (found.target, *found.others)]
        rest = ".".join(found.rest)
        return name, (*(target for target in targets if target is not None), rest)

    def _target(self, target: Target) -> str | int | None:
        target = self._program.follow(target)
        match target:
            case Definition():
                return id(target.fact)
            case Foreign():
                return f"other:{target.path}"
            case ModuleReference():
                return f"module:{target.module}"
            case ExtensionName():
                return self._binding_text(target)
            case Unknown():
                return f"unknown:{target.module}.{target.name}"
            case _:
                return None

    def _binding_text(self, target: ExtensionName) -> str:
        """A C++ name, with all that is bound under it (a class's members) and what it is an alias of."""
        path = f"{target.module}.{target.name}"
        parts = [f"extension:{path}"]
        seen = set()
        while path in self._bindings and path not in seen:
            seen.add(path)
            binding = self._bindings[path]
            rows = [binding, *(self._members.get(path, ()) if binding.kind == "class" else ())]
            parts += [f"{row.name} {row.digest} {signature_label(row.signature)}" for row in rows]
            path = f"{target.module}.{binding.alias_of}" if binding.alias_of else ""
        return " ".join(parts)

    # Closing

    def _text(self, reference: tuple[str, tuple[str | int, ...]], digests: Mapping[int, str]) -> str:
        name, targets = reference
        return " ".join(
            [name, *(digests.get(target, "recursive") if isinstance(target, int) else target for target in targets)]
        )

    def _close(self, component: list[int]) -> None:
        """Digest definitions that refer to each other; all that they refer to beyond is digested already."""
        if len(component) == 1:
            (key,) = component
            node = self._nodes[key]
            # A definition that refers to itself finds no digest of itself yet: "recursive".
            references = [self._text(reference, self._full) for reference in node.references]
            self._bodies[key] = combine([node.own, *references])
            self._full[key] = combine([node.label, *references])
            return
        labels = {key: self._nodes[key].label for key in component}
        for _ in range(2):
            # First outward references, then who refers to whom inside.
            seen = {**self._full, **labels}
            labels = {
                key: combine([labels[key], *(self._text(reference, seen) for reference in self._nodes[key].references)])
                for key in component
            }
        everything = combine(sorted(labels.values()))
        for key in component:
            self._bodies[key] = combine([self._nodes[key].own, labels[key], everything])
        self._full.update({key: combine([labels[key], everything]) for key in component})


def members_of(fact: ClassFacts) -> tuple[Fact, ...]:
    """All that a class's body defines."""
    return (*fact.classes, *fact.attributes, *fact.methods)


def signature_label(signature: Signature | None) -> str:
    """A signature as one text, for digests."""
    if signature is None:
        return "?"
    parts = [f"{p.kind} {p.name} {p.annotation} {p.default}" for p in signature.parameters]
    return f"{'; '.join(parts)} -> {signature.returns}"


def contract_label(contract: Contract | None) -> str:
    """A contract as one text, for digests: what a caller of the kernels sees."""
    if contract is None:
        return ""

    def one(argument: KernelArgument) -> str:
        spec = argument.spec
        return f"{argument.name} {spec.form} {spec.shape} {spec.dtype} {spec.strides} {spec.text} {argument.default}"

    kernels = [
        f"{kernel.name} {kernel.style} {kernel.condition} {kernel.delegate} {[one(a) for a in (*kernel.arguments, *kernel.outputs)]}"
        for kernel in contract.kernels
    ]
    return f"{contract.out_idx} {kernels}"


def _call_text(fact: Fact) -> str:
    """How a definition is called or declared: the part of it that its own digest leaves out."""
    match fact:
        case FunctionFacts():
            return f"{signature_label(fact.signature)} {contract_label(fact.contract)}"
        case ConstantFacts():
            return fact.annotation or ""
        case ClassFacts():
            return " | ".join(f"{method.name} {_call_text(method)}" for method in fact.methods)


def _components(nodes: Mapping[int, _Node]) -> Iterator[list[int]]:
    """Strongly connected components, each after those it refers to (Tarjan, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in nodes:
        if root in index:
            continue
        work: list[tuple[int, Iterator[int]]] = [(root, _edges(nodes, root))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            key, edges = work[-1]
            for target in edges:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, _edges(nodes, target)))
                    break
                if target in on_stack:
                    low[key] = min(low[key], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[key])
                if low[key] == index[key]:
                    component = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.append(member)
                        if member == key:
                            break
                    yield component


def _edges(nodes: Mapping[int, _Node], key: int) -> Iterator[int]:
    return (
        target
        for _, targets in nodes[key].references
        for target in targets
        if isinstance(target, int) and target in nodes
    )
