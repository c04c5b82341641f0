"""What stands behind the second argument of ``def``: a function, method, lambda or cast of one.

The callable's C++ parameters come from its definition, found by name in the sources; argument names, defaults and
kinds come from ``py::arg`` where the binding gives them. Mirrors pybind11's rules (``pybind11/attr.h``): without
``py::arg`` an argument has no name at run time, so it is positional-only.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tree_sitter import Node

from porter.surface.cpp_frame import (
    ClassHandle,
    Expression,
    Frame,
    callee,
    constant_string,
    meaningful,
    resolve,
    template_arguments,
)
from porter.surface.cpp_index import CppSources, Place
from porter.surface.cpp_parse import Name
from porter.surface.cpp_source import CppFunction, CppParameter, read_parameters, split_name
from porter.surface.cpp_tokens import digest_tokens, one_line
from porter.surface.cpp_types import annotation, is_variadic, parse_type
from porter.surface.cpp_values import Names, python_value
from porter.surface.model import Parameter, ParameterKind, Signature

_UNWRAP = frozenset({
    "wrap_pybind_function", "wrap_pybind_function_no_gil", "cpp_function", "vectorize", "TORCH_FN", "TORCH_BOX", "move",
    "forward", "function", "CppFunction", "makeFromBoxedFunction",
})  # fmt: skip
# Definitions of one name by the types of their parameters.
Groups = dict[tuple[str, ...], list[CppFunction]]
_PY = ("py", "pybind11", "torch")


@dataclass(frozen=True)
class BoundFunction:
    """A C++ callable. ``member``: bound to a member function, which has no parameter for ``self``.

    ``parameters`` is None where they cannot be known (``reason`` says why); ``digest`` of the definition, "" if unfound.
    """

    parameters: tuple[CppParameter, ...] | None
    returns: str = ""
    member: bool = False
    digest: str = ""
    place: Place | None = None
    reason: str = ""
    note: str = ""


@dataclass(frozen=True)
class NamedArgument:
    """One ``py::arg``: name ("" for an unnamed one) and default text, with a note where that is not the value."""

    name: str
    default: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Extras:
    """What follows the callable in a ``def``: arguments with the places of the kind markers among them."""

    arguments: tuple[NamedArgument, ...] = ()
    keyword_only_at: int | None = None
    positional_only_at: int | None = None
    unread: tuple[str, ...] = ()


# -- callables ---------------------------------------------------------------------------------------------------


def describe(node: Node, frame: Frame, sources: CppSources, arity: int | None = None) -> BoundFunction:
    """Describe the callable that an expression denotes; ``arity`` picks among overloads (``self`` left out)."""
    found = resolve(node, frame)
    if found is None:
        return BoundFunction(None, reason=f"`{frame.text(node)}` is not a function that can be followed")
    node, frame = found.node, found.frame
    kind = node.type
    if kind == "lambda_expression":
        return _lambda(node, frame)
    if kind in ("parenthesized_expression", "pointer_expression"):
        inner = meaningful(node)
        return describe(inner[-1], frame, sources, arity)
    if kind == "unary_expression":
        argument = node.child_by_field_name("argument")
        if argument is not None:
            return describe(argument, frame, sources, arity)
    if kind == "cast_expression":
        value, cast = node.child_by_field_name("value"), node.child_by_field_name("type")
        if value is not None and cast is not None:
            return _pick(value, frame, sources, _pointer_types(cast), arity)
    if kind == "call_expression":
        return _call(node, frame, sources, arity)
    if kind in ("identifier", "qualified_identifier", "template_function", "field_identifier", "scoped_identifier"):
        return _pick(node, frame, sources, None, arity)
    if kind == "compound_literal_expression":
        elements = meaningful(node.child_by_field_name("value"))
        if elements:
            return describe(elements[0], frame, sources, arity)
    return BoundFunction(None, reason=f"`{frame.text(node)}` is not a function that can be followed")


def _call(node: Node, frame: Frame, sources: CppSources, arity: int | None) -> BoundFunction:
    function, arguments = node.child_by_field_name("function"), meaningful(node.child_by_field_name("arguments"))
    if function is not None and function.type not in ("field_expression", "call_expression"):
        name = callee(function)
        last = name.rpartition("::")[2]
        if last in ("static_cast", "reinterpret_cast") and arguments:
            written = _template_node(function)
            return _pick(arguments[0], frame, sources, _pointer_types(written) if written is not None else None, arity)
        if last.startswith("overload_cast") and arguments:
            return _pick(arguments[0], frame, sources, tuple(template_arguments(function)), arity)
        if last in _UNWRAP and arguments:
            return describe(arguments[0], frame, sources, arity)
    if function is not None and function.type == "call_expression" and arguments:
        # py::overload_cast<...>{}(&f) and the like.
        inner = function.child_by_field_name("function")
        if inner is not None and callee(inner).rpartition("::")[2].startswith("overload_cast"):
            return _pick(arguments[0], frame, sources, tuple(template_arguments(inner)), arity)
    return BoundFunction(None, reason=f"`{frame.text(node)}` makes the function at run time")


def _template_node(function: Node) -> Node | None:
    for child in function.named_children:
        if child.type == "template_argument_list":
            return next((one for one in child.named_children if one.type == "type_descriptor"), None)
    return None


def _pointer_types(descriptor: Node) -> tuple[str, ...] | None:
    """Parameter types of a function pointer type, None where the type is not one."""
    stack = list(descriptor.named_children)
    while stack:
        node = stack.pop(0)
        if node.type == "parameter_list":
            return tuple(parameter.type for parameter in read_parameters(node))
        stack.extend(node.named_children)
    return None


def _lambda(node: Node, frame: Frame) -> BoundFunction:
    declarator = node.child_by_field_name("declarator")
    parameters: tuple[CppParameter, ...] = ()
    returns = ""
    if declarator is not None:
        parameters = read_parameters(declarator.child_by_field_name("parameters"))
        for child in declarator.named_children:
            if child.type == "trailing_return_type":
                returns = one_line((child.text or b"").removeprefix(b"->"))
    return BoundFunction(
        parameters, returns, digest=digest_tokens([frame.file.source(node), *_captured(node, frame)]), place=frame.place
    )


def _captured(node: Node, frame: Frame) -> list[bytes]:
    """Texts of the expressions that a lambda's free names stand for: they are part of what it does."""
    words: dict[str, bytes] = {}
    stack = [node]
    while stack:
        one = stack.pop()
        if one.type == "identifier":
            found = resolve(one, frame)
            if found is not None and found.node.id != one.id:
                words[frame.text(one)] = found.frame.file.source(found.node)
        stack.extend(one.named_children)
    return [words[word] for word in sorted(words)]


def _pick(
    node: Node, frame: Frame, sources: CppSources, types: tuple[str, ...] | None, arity: int | None
) -> BoundFunction:
    found = resolve(node, frame)
    if found is None:
        return BoundFunction(None, reason=f"`{frame.text(node)}` is not a function that can be followed")
    node, frame = found.node, found.frame
    while node.type in ("pointer_expression", "parenthesized_expression", "unary_expression") and meaningful(node):
        node = meaningful(node)[-1]
        inner = resolve(node, frame)
        if inner is None:
            break
        node, frame = inner.node, inner.frame
    if node.type in ("lambda_expression", "call_expression", "cast_expression"):
        return describe(node, frame, sources, arity)
    name = _follow_types(frame.text(node, 0), frame)
    candidates = sources.functions(name, frame.place)
    if not candidates:
        return BoundFunction(None, reason=f"no definition of `{'::'.join(split_name(name))}` in the sources")
    groups: Groups = {}
    for one in candidates:
        groups.setdefault(tuple(parameter.type for parameter in one.parameters), []).append(one)
    if types is not None:
        wanted = _same_types(types, groups)
        if wanted:
            groups = {key: groups[key] for key in wanted}
    member = _is_member(candidates[0], sources)
    if arity is not None and len(groups) > 1:
        counts = {arity} if member else {arity, arity + 1}
        fitting = {key: one for key, one in groups.items() if len([t for t in key if not is_variadic(t)]) in counts}
        groups = fitting or groups
    if len(groups) > 1:
        groups = _nearest(groups, frame.file.name)
    chosen = [one for group in groups.values() for one in group]
    digest = _digest(chosen)
    first = chosen[0]
    place = Place(first.file, first.qualified[:-1])
    returned = {one.returns for one in chosen}
    returns = first.returns if len(returned) == 1 else ""
    if len(groups) == 1:
        return BoundFunction(first.parameters, returns, member, digest, place)
    names = {tuple(parameter.name for parameter in one.parameters) for one in chosen}
    if len(names) == 1:
        merged = tuple(
            replace(parameter, type="" if len({one.parameters[index].type for one in chosen}) > 1 else parameter.type)
            for index, parameter in enumerate(first.parameters)
        )
        return BoundFunction(merged, returns, member, digest, place)
    reason = f"{len(groups)} C++ definitions of `{'::'.join(split_name(name))}` take different arguments"
    return BoundFunction(None, "", member, digest, place, reason)


def _nearest(groups: Groups, path: str) -> Groups:
    """Definitions in the file that binds the name, or in its folder, where only some are: others are never linked in."""
    folder = path.rpartition("/")[0]
    names = {one.file.name for group in groups.values() for one in group}
    for close in ({path}, {name for name in names if name.rpartition("/")[0] == folder}):
        near = {key: [one for one in group if one.file.name in close] for key, group in groups.items()}
        near = {key: group for key, group in near.items() if group}
        if near:
            return near
    return groups


def _follow_types(name: str, frame: Frame) -> str:
    parts = name.split("::")
    if len(parts) > 1 and parts[0] in frame.types:
        return "::".join([frame.type_text(parts[0]), *parts[1:]])
    return name


def _same_types(types: tuple[str, ...], groups: Groups) -> list[tuple[str, ...]]:
    def bare(text: str, *, tail: bool) -> str:
        squeezed = text.replace(" ", "")
        return squeezed.rpartition("::")[2] if tail and "<" not in squeezed else squeezed

    for tail in (False, True):
        wanted = [bare(one, tail=tail) for one in types]
        found = [key for key in groups if [bare(one, tail=tail) for one in key] == wanted]
        if found:
            return found
    return []


def _is_member(function: CppFunction, sources: CppSources) -> bool:
    if len(function.qualified) < 2:
        return False
    if function.in_class:
        return not function.is_static
    static = sources.declared_static(function.qualified, function.file)
    return False if static is None else not static


def _digest(functions: Sequence[CppFunction]) -> str:
    digests = sorted({digest_tokens([one.file.source(one.node)]) for one in functions if one.body is not None})
    return digests[0] if len(digests) == 1 else digest_tokens([one.encode() for one in digests]) if digests else ""


def constructor(handle: ClassHandle, types: Sequence[str], frame: Frame, sources: CppSources) -> BoundFunction:
    """The constructor behind ``py::init<types...>()``: types as written, names as the class declares them."""
    parameters = tuple(CppParameter("", one) for one in types)
    pending = list(sources.classes(frame.type_text(handle.cpp), frame.place))
    seen: set[Name] = set()
    while pending:
        owner = pending.pop(0)
        if owner.qualified in seen:
            continue
        seen.add(owner.qualified)
        fitting = [one for one in sources.constructors(owner) if len(one.parameters) == len(types)]
        if len(fitting) > 1:
            groups: Groups = {}
            for one in fitting:
                groups.setdefault(tuple(parameter.type for parameter in one.parameters), []).append(one)
            wanted = _same_types(tuple(types), groups)
            fitting = [one for key in wanted for one in groups[key]] or fitting
        names = {tuple(parameter.name for parameter in one.parameters) for one in fitting}
        defined = [one for one in fitting if one.body is not None]
        if len(names) > 1 and len({tuple(p.name for p in one.parameters) for one in defined}) == 1:
            fitting = defined
            names = {tuple(p.name for p in defined[0].parameters)}
        if len(names) == 1:
            named = next(iter(names))
            parameters = tuple(replace(one, name=name) for one, name in zip(parameters, named, strict=True))
            return BoundFunction(parameters, "void", True, _digest(fitting), Place(owner.file, owner.qualified))
        for base in owner.bases:
            pending.extend(sources.classes(base, Place(owner.file, owner.qualified[:-1])))
    return BoundFunction(parameters, "void", True, place=frame.place)


# -- extras ------------------------------------------------------------------------------------------------------


def read_extras(nodes: Sequence[Expression], names: Callable[[Frame], Names]) -> Extras:
    """Read what follows the callable: ``py::arg``, ``"x"_a``, ``py::kw_only`` and so on; docstrings say nothing."""
    arguments: list[NamedArgument] = []
    keyword_only: int | None = None
    positional_only: int | None = None
    unread: list[str] = []
    for one in nodes:
        found = resolve(one.node, one.frame) or one
        node, frame = found.node, found.frame
        if node.type in ("string_literal", "concatenated_string", "raw_string_literal"):
            continue
        argument = _argument(node, frame, names)
        if argument is not None:
            arguments.append(argument)
            continue
        name = _marker(node)
        if name == "kw_only":
            keyword_only = len(arguments)
        elif name == "pos_only":
            positional_only = len(arguments)
        elif name in ("arg", "arg_v"):
            unread.append(frame.text(node))
    return Extras(tuple(arguments), keyword_only, positional_only, tuple(unread))


def _marker(node: Node) -> str:
    function = node.child_by_field_name("function") if node.type == "call_expression" else node
    if function is None or function.type == "field_expression":
        return ""
    return callee(function).rpartition("::")[2]


def _argument(node: Node, frame: Frame, names: Callable[[Frame], Names]) -> NamedArgument | None:
    if node.type == "assignment_expression":
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        if left is None or right is None:
            return None
        bare = _argument(left, frame, names)
        if bare is None:
            return None
        value = python_value(right, names(frame))
        return replace(bare, default=value.text, note=value.note)
    if node.type == "user_defined_literal":
        text = (node.text or b"").decode("utf-8", "replace")
        return NamedArgument(text[1 : text.rindex('"')]) if text.endswith("_a") else None
    if node.type != "call_expression":
        return None
    function, arguments = node.child_by_field_name("function"), meaningful(node.child_by_field_name("arguments"))
    if function is None:
        return None
    if function.type == "field_expression":
        # py::arg("x").noconvert(), .none(false)
        inner = function.child_by_field_name("argument")
        return _argument(inner, frame, names) if inner is not None else None
    space, _, last = callee(function).rpartition("::")
    if last == "arg" and (not space or space.split("::")[-1] in _PY):
        if not arguments:
            return NamedArgument("")
        word = constant_string(arguments[0], frame)
        return NamedArgument(word) if word is not None else None
    if last == "arg_v" and len(arguments) >= 2:
        word = constant_string(arguments[0], frame)
        if word is None:
            return None
        value = python_value(arguments[1], names(frame))
        shown = constant_string(arguments[2], frame) if len(arguments) > 2 else None
        note = value.note if value.known or shown is None else f"{shown} ({value.note})"
        return NamedArgument(word, value.text, note)
    return None


# -- signatures --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Read:
    """A signature, or why there is none, with notes on what it leaves out."""

    signature: Signature | None
    opaque: str = ""
    notes: tuple[str, ...] = ()


def signature_of(what: BoundFunction, extras: Extras, sources: CppSources, *, drops_self: bool) -> Read:
    """Signature of a bound callable. ``drops_self``: it is a method, so a non-member's first parameter is ``self``."""
    notes = [*([what.note] if what.note else []), *(f"argument not read: {one}" for one in extras.unread)]
    if extras.unread:
        return Read(None, f"argument `{extras.unread[0]}` has no literal name", tuple(notes))
    parameters = what.parameters
    if parameters is not None and drops_self and not what.member:
        if not parameters:
            return Read(None, "a method's function takes no argument for self", tuple(notes))
        parameters = parameters[1:]
    if parameters is None:
        if not extras.arguments:
            return Read(None, what.reason, tuple(notes))
        notes.append(f"{what.reason}; names are those of py::arg")
    if parameters is not None and any(parameter.pack for parameter in parameters):
        return Read(None, "the C++ function takes a parameter pack", tuple(notes))
    return _build(what, parameters, extras, sources, notes)


def _build(
    what: BoundFunction,
    parameters: tuple[CppParameter, ...] | None,
    extras: Extras,
    sources: CppSources,
    notes: list[str],
) -> Read:
    named = list(extras.arguments)
    plain = [one for one in parameters or () if not is_variadic(one.type)]
    if parameters is not None and named and len(named) != len(plain):
        notes.append(f"py::arg names {len(named)} arguments, the C++ function takes {len(plain)}")
        parameters = None
    if parameters is None:
        parameters = tuple(CppParameter(one.name, "") for one in named)
    follow = alias_follower(sources, what.place)
    found: list[Parameter] = []
    position = 0
    keyword_only = False
    for parameter in parameters:
        variadic = is_variadic(parameter.type)
        if variadic:
            kind = ParameterKind.VAR_POSITIONAL if variadic == "args" else ParameterKind.VAR_KEYWORD
            found.append(Parameter(variadic, kind))
            keyword_only = keyword_only or variadic == "args"
            continue
        argument = named[position] if named else NamedArgument("")
        word = argument.name or parameter.name or f"arg{position}"
        kind = ParameterKind.POSITIONAL if argument.name else ParameterKind.POSITIONAL_ONLY
        if extras.positional_only_at is not None and position < extras.positional_only_at:
            kind = ParameterKind.POSITIONAL_ONLY
        if keyword_only or (extras.keyword_only_at is not None and position >= extras.keyword_only_at):
            kind = ParameterKind.KEYWORD_ONLY
        if argument.note:
            notes.append(f"default of {word}: {argument.note}")
        if argument.name and not _is_name(argument.name):
            return Read(None, f"argument name `{argument.name}` is not one Python can spell", tuple(notes))
        if not _is_name(word):
            word = f"{word}_" if _is_name(f"{word}_") else f"arg{position}"
        shown = annotation(parameter.type, follow) if parameter.type else None
        found.append(Parameter(word, kind, argument.default, shown))
        position += 1
    returns = annotation(what.returns, follow) if what.returns and parse_type(what.returns).name != "auto" else None
    problem = _problem(found)
    if problem:
        return Read(None, problem, tuple(notes))
    return Read(Signature(_ordered(_distinct(found)), returns), "", tuple(notes))


def _is_name(word: str) -> bool:
    return word.isidentifier() and not keyword.iskeyword(word)


def _distinct(parameters: list[Parameter]) -> list[Parameter]:
    seen: set[str] = set()
    out: list[Parameter] = []
    for parameter in parameters:
        word = parameter.name
        while word in seen:
            word += "_"
        seen.add(word)
        out.append(replace(parameter, name=word))
    return out


def _ordered(parameters: list[Parameter]) -> tuple[Parameter, ...]:
    """Nameless arguments after named ones make those positional-only too: Python has no other way to say it."""
    last = max((i for i, one in enumerate(parameters) if one.kind is ParameterKind.POSITIONAL_ONLY), default=-1)
    return tuple(
        replace(one, kind=ParameterKind.POSITIONAL_ONLY) if i < last and one.kind is ParameterKind.POSITIONAL else one
        for i, one in enumerate(parameters)
    )


def _problem(parameters: list[Parameter]) -> str:
    had_default = ""
    for parameter in parameters:
        if parameter.kind not in (ParameterKind.POSITIONAL, ParameterKind.POSITIONAL_ONLY):
            continue
        if parameter.default is not None:
            had_default = parameter.name
        elif had_default:
            return f"`{parameter.name}` has no default and follows `{had_default}`, which has one"
    return ""


def alias_follower(sources: CppSources, place: Place | None) -> Callable[[str], str | None]:
    """A lookup of the type behind an alias, as seen from a place."""

    def follow(name: str) -> str | None:
        if place is None or not name or not name.replace("::", "").replace("_", "a").isalnum() or name[0].isdigit():
            return None
        found = {alias.type for alias in sources.aliases(name, place)}
        return next(iter(found)) if len(found) == 1 else None

    return follow
