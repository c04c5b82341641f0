"""What one Python file says on its own: ``extract`` gives its ``ModuleFacts``. Nothing is executed or imported."""

from __future__ import annotations

import dataclasses
import io
import keyword
import sys
import threading
import tokenize
from collections.abc import Collection, Iterable, Iterator, Sequence

import libcst as cst

from porter.errors import UnreadableFileError
from porter.surface import callsites, docs, tilelang
from porter.surface.digest import combine, digest_of, fingerprint
from porter.surface.lines import Lines
from porter.surface.model import (
    Argument,
    ClassFacts,
    ConstantFacts,
    Decorator,
    FunctionFacts,
    ImportFacts,
    ModuleFacts,
    Parameter,
    ParameterKind,
    Signature,
)
from porter.surface.nesting import check_nesting
from porter.surface.scopes import Uses, function_uses, imported_names, target_names, uses
from porter.surface.text import augmented_operator, dotted, grouped, string_value, text_of

# A deeply nested file needs more of Python's stack and of the thread's than they start with.
_DEEP_RECURSION = 120_000
_DEEP_STACK = 1 << 29
# CPython refuses more ("too many nested parentheses"); counted as bytes, all other bytes dropped.

_OLDEST_PYTHON = (3, 12)

# Decorators that change how a method binds, not what it does.
_BINDERS = frozenset({"property", "staticmethod", "classmethod"})


def extract(path: str, data: bytes) -> ModuleFacts:
    """Facts of one file.

    Parameters:
        path: name of the file in errors.
        data: its bytes; an encoding cookie and a byte order mark are respected.

    Raises:
        UnreadableFileError: the bytes are no Python that can be parsed, decoded or walked.
    """
    check_nesting(path, data)
    facts: list[ModuleFacts] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            facts.append(_extract(path, data))
        except BaseException as error:
            errors.append(error)

    # libcst's parser recurses in native code, where too small a stack ends the process: hence a thread with a large one.
    limit, stack = sys.getrecursionlimit(), threading.stack_size(_DEEP_STACK)
    try:
        sys.setrecursionlimit(max(limit, _DEEP_RECURSION))
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(stack)
        sys.setrecursionlimit(limit)
    for error in errors:
        if isinstance(error, (RecursionError, MemoryError)):
            raise UnreadableFileError("is nested too deeply to be read", path=path, line=1) from error
        raise error
    return facts[0]


def _parse(data: bytes) -> cst.Module:
    try:
        return cst.parse_module(data)
    except (cst.CSTValidationError, TypeError):
        # libcst wants spaces where Python needs none: ``(a)if b else(lambda: c)``.
        spaced = _spaced(data)
        if spaced is None:
            raise
        return cst.parse_module(spaced)


def _spaced(data: bytes) -> bytes | None:
    """The same program with a space on both sides of each keyword; None when Python's tokenizer cannot read it either."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        lines = list(io.StringIO(data.decode(encoding)))
        tokens = list(tokenize.generate_tokens(iter(lines).__next__))
    except (tokenize.TokenError, SyntaxError, UnicodeError):
        return None
    for token in reversed(tokens):
        if token.type == tokenize.NAME and keyword.iskeyword(token.string):
            row, start, end = token.start[0] - 1, token.start[1], token.end[1]
            line = lines[row]
            before = " " if start and not line[start - 1].isspace() else ""
            after = " " if end < len(line) and not line[end].isspace() else ""
            lines[row] = line[:start] + before + token.string + after + line[end:]
    return "".join(lines).encode(encoding)


def _extract(path: str, data: bytes) -> ModuleFacts:
    try:
        module = _parse(data)
        return _Reader(module, has_walrus=b":=" in data).read()
    except cst.ParserSyntaxError as error:
        raise UnreadableFileError(_syntax_message(error, data), path=path, line=error.raw_line) from error
    except UnicodeError as error:
        raise _encoding_error(error, data, path) from error
    except (TypeError, SyntaxError, ValueError, LookupError) as error:
        line = getattr(error, "lineno", None) or 1
        raise UnreadableFileError(f"cannot be read as Python: {error}", path=path, line=line) from error


def _syntax_message(error: cst.ParserSyntaxError, data: bytes) -> str:
    lines = data.decode("utf-8", "replace").splitlines()
    shown = lines[error.raw_line - 1].strip() if 0 < error.raw_line <= len(lines) else ""
    told = " ".join(error.message.split())
    _, _, expected = told.rpartition("expected ")
    if expected == told:
        # The tokenizer gives up without a place.
        return f"is not valid Python: {told.rpartition('tokenizer error: ')[2]}; expected whole tokens and matching indentation"
    expected = expected if len(expected) <= 160 else expected[:157] + "..."
    return f"is not valid Python at column {error.raw_column + 1}: expected {expected}; found `{shown}`"


def _encoding_error(error: UnicodeError, data: bytes, path: str) -> UnreadableFileError:
    if not isinstance(error, UnicodeDecodeError):
        return UnreadableFileError(f"cannot be decoded: {error}", path=path, line=1)
    line = data.count(b"\n", 0, error.start) + 1
    found = data[error.start : error.start + 1].hex()
    message = f"is not {error.encoding} text: byte 0x{found} ({error.reason}); expected {error.encoding} or an encoding cookie"
    return UnreadableFileError(message, path=path, line=line)


# -- signatures ------------------------------------------------------------------------------------------------------


def signature_of(function: cst.FunctionDef, owner: str = "") -> Signature:
    """Parameters and return annotation as the definition writes them.

    In a class (``owner``) a parameter called ``__x`` is really ``_Owner__x``, as Python names it.
    """
    given = function.params
    out = [_parameter(one, ParameterKind.POSITIONAL_ONLY, owner) for one in given.posonly_params]
    out += [_parameter(one, ParameterKind.POSITIONAL, owner) for one in given.params]
    if isinstance(given.star_arg, cst.Param):
        out.append(_parameter(given.star_arg, ParameterKind.VAR_POSITIONAL, owner))
    out += [_parameter(one, ParameterKind.KEYWORD_ONLY, owner) for one in given.kwonly_params]
    if given.star_kwarg is not None:
        out.append(_parameter(given.star_kwarg, ParameterKind.VAR_KEYWORD, owner))
    return Signature(tuple(out), _annotation(function.returns))


def _parameter(node: cst.Param, kind: ParameterKind, owner: str) -> Parameter:
    default = text_of(node.default) if node.default is not None else None
    name = node.name.value
    if owner.strip("_") and name.startswith("__") and not name.endswith("__"):
        name = f"_{owner.lstrip('_')}{name}"
    return Parameter(name, kind, default, _annotation(node.annotation))


def _annotation(node: cst.Annotation | None) -> str | None:
    return text_of(node.annotation) if node is not None else None


def decorator_of(node: cst.Decorator) -> Decorator:
    """Name and arguments of a decorator; the whole text is the name of one that is no dotted name or call of one."""
    target = node.decorator
    if isinstance(target, cst.Call):
        name = dotted(target.func)
        if name is not None:
            return Decorator(name, _call_arguments(target.args))
    return Decorator(dotted(target) or text_of(target))


def _call_arguments(arguments: Sequence[cst.Arg]) -> tuple[Argument, ...]:
    return tuple(
        Argument(
            argument.star + text_of(argument.value), argument.keyword.value if argument.keyword is not None else None
        )
        for argument in arguments
    )


def _docstring(body: cst.BaseSuite | cst.Module) -> str | None:
    statements = body.body
    if not statements:
        return None
    first = statements[0]
    if isinstance(first, cst.SimpleStatementLine):
        first = first.body[0]
    return string_value(first.value) if isinstance(first, cst.Expr) else None


# -- statements ------------------------------------------------------------------------------------------------------


def _is_type_checking(test: cst.BaseExpression) -> bool:
    """``TYPE_CHECKING`` under whatever name ``typing`` was imported."""
    return (dotted(test) or "").rpartition(".")[2] == "TYPE_CHECKING"


def _version_verdict(test: cst.BaseExpression) -> bool | None:
    """Truth of ``sys.version_info >= (3, 9)`` and the like on every Python that runs porter; None where they differ."""
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return None
    (target,) = test.comparisons
    if (dotted(test.left) or "").rpartition(".")[2] != "version_info" or not isinstance(target.comparator, cst.Tuple):
        return None
    numbers = [element.value for element in target.comparator.elements]
    if not all(isinstance(number, cst.Integer) for number in numbers):
        return None
    version = tuple(int(number.value) for number in numbers if isinstance(number, cst.Integer))
    if version > _OLDEST_PYTHON:
        return None
    if isinstance(target.operator, (cst.GreaterThanEqual, cst.GreaterThan)):
        return True
    return False if isinstance(target.operator, cst.LessThan) else None


def _is_main_only(test: cst.BaseExpression) -> bool:
    """``__name__ == "__main__"``, alone or with more conditions."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return _is_main_only(test.left) or _is_main_only(test.right)
    return text_of(test) in ('__name__ == "__main__"', '"__main__" == __name__')


def _join(outer: str, inner: str) -> str:
    return f"{outer} / {inner}" if outer and inner else outer or inner


def _suite(body: cst.BaseSuite | cst.Module) -> Iterator[cst.CSTNode]:
    """Statements of a block, simple ones one by one."""
    for item in body.body:
        if isinstance(item, cst.SimpleStatementLine):
            yield from item.body
        else:
            yield item


def _root(node: cst.CSTNode) -> str | None:
    """The name at the left end of ``a.b[c](d).e``."""
    while True:
        if isinstance(node, (cst.Attribute, cst.Subscript)):
            node = node.value
        elif isinstance(node, cst.Call):
            node = node.func
        else:
            return node.value if isinstance(node, cst.Name) else None


def _walruses(node: cst.CSTNode) -> Iterator[cst.NamedExpr]:
    """Walrus expressions that bind in the scope of ``node`` itself."""
    if isinstance(node, cst.NamedExpr):
        yield node
    for child in node.children:
        if not isinstance(child, (cst.Lambda, cst.BaseSuite, cst.FunctionDef, cst.ClassDef)):
            yield from _walruses(child)


class _Block:
    """Collects what the statements of a module or of a class body bind, whatever branch they stand in."""

    def __init__(self, reader: _Reader, owner: str = "") -> None:
        self.reader = reader
        self.owner = owner
        self.in_class = bool(owner)
        self.functions: list[FunctionFacts] = []
        self.classes: list[ClassFacts] = []
        self.constants: list[ConstantFacts] = []
        self.imports: list[ImportFacts] = []
        self.exports: str | None = None
        self.exports_line = 0
        self.bound: dict[str, None] = {}
        self.deleted: dict[str, None] = {}
        self.touched: dict[str, list[str]] = {}
        self.touched_uses: dict[str, set[str]] = {}
        self.loose: list[cst.CSTNode] = []

    # Which name is bound where

    def bind(self, name: str) -> None:
        self.bound.pop(name, None)
        self.bound[name] = None
        self.deleted.pop(name, None)

    def note(self, node: cst.CSTNode, what: str) -> None:
        self.reader.note(node, what)

    def constant(
        self,
        node: cst.CSTNode,
        name: str,
        value: cst.CSTNode | None,
        guard: str,
        *,
        text: str | None = None,
        salt: str = "",
        annotation: str | None = None,
    ) -> None:
        if name == "__all__" and not self.in_class:
            self.set_exports(node, text if text is not None else text_of(value) if value is not None else "()", guard)
            return
        self.bind(name)
        shown = text if text is not None else text_of(value) if value is not None else ""
        found = uses([value]).names if value is not None else ()
        digest = digest_of(value, salt=salt)
        self.constants.append(ConstantFacts(name, self.reader.line(node), shown, digest, annotation, found, guard))

    def set_exports(self, node: cst.CSTNode, text: str, guard: str) -> None:
        self.exports_line = self.reader.line(node)
        if guard and self.exports is not None:
            self.note(node, f"__all__ is set again under `{guard}`")
            text = f"{grouped(self.exports, '+')} + {grouped(text, '+')}"
        self.exports = text

    def add_exports(self, node: cst.CSTNode, text: str, guard: str) -> None:
        self.exports_line = self.reader.line(node)
        if guard:
            self.note(node, f"__all__ grows under `{guard}`")
        self.exports = text if self.exports is None else f"{self.exports} + {grouped(text, '+')}"

    # Statements

    def read(self, statements: Iterable[cst.CSTNode], guard: str = "", loop: cst.CSTNode | None = None) -> None:
        for statement in statements:
            self.statement(statement, guard, loop)

    def statement(self, node: cst.CSTNode, guard: str, loop: cst.CSTNode | None) -> None:
        match node:
            case cst.FunctionDef():
                self.bind(node.name.value)
                if loop is not None:
                    self.note(node, f"{node.name.value} is defined in a loop")
                if not self.in_class and node.name.value in ("__getattr__", "__dir__"):
                    self.note(node, f"module-level {node.name.value} may give names that no statement binds")
                self.functions.append(self.reader.function(node, guard, owner=self.owner))
            case cst.ClassDef():
                self.bind(node.name.value)
                self.classes.append(self.reader.class_(node, guard))
            case cst.If():
                self.branch(node, guard, loop)
            case cst.Try() | cst.TryStar():
                self.read(_suite(node.body), _join(guard, "try"), loop)
                for handler in node.handlers:
                    self.read(_suite(handler.body), _join(guard, "except"), loop)
                if node.orelse is not None:
                    self.read(_suite(node.orelse.body), _join(guard, "try"), loop)
                if node.finalbody is not None:
                    self.read(_suite(node.finalbody.body), guard, loop)
            case cst.With():
                for item in node.items:
                    if item.asname is not None:
                        for name in target_names(item.asname.name):
                            self.constant(node, name, item.item, _join(guard, "with"), salt="with")
                    else:
                        self.expression(item.item, item.item, guard, loop)
                self.read(_suite(node.body), guard, loop)
            case cst.For():
                inner = _join(guard, f"for {_bare(text_of(node.target))} in {text_of(node.iter)}")
                for name in target_names(node.target):
                    self.constant(node, name, node.iter, inner, salt="for")
                self.read(_suite(node.body), inner, loop or node)
                if node.orelse is not None:
                    self.read(_suite(node.orelse.body), guard, loop)
            case cst.While():
                self.read(_suite(node.body), _join(guard, f"while {text_of(node.test)}"), loop or node)
                if node.orelse is not None:
                    self.read(_suite(node.orelse.body), guard, loop)
            case cst.Match():
                self.note(node, "a match statement decides what is bound")
                for case in node.cases:
                    self.read(_suite(case.body), _join(guard, f"if <match {text_of(node.subject)}>"), loop)
            case cst.Import() | cst.ImportFrom():
                self.import_(node, guard, loop)
            case cst.Assign():
                self.assign(node, guard, loop)
            case cst.AnnAssign():
                self.annotated(node, guard, loop)
            case cst.AugAssign():
                self.augmented(node, guard, loop)
            case cst.TypeAlias():
                self.constant(node, node.name.value, node.value, guard, salt="type")
            case cst.Del():
                self.delete(node, loop)
            case cst.Expr():
                self.expression(node, node.value, guard, loop)
            case cst.Assert():
                self.loose.append(node)
                self.bind_walruses(node, guard)
            case _:
                pass

    def branch(self, node: cst.If, guard: str, loop: cst.CSTNode | None) -> None:
        self.bind_walruses(node.test, guard)
        test = text_of(node.test)
        if _is_main_only(node.test):
            # Never taken on import.
            if node.orelse is not None and isinstance(node.orelse, cst.Else):
                self.read(_suite(node.orelse.body), guard, loop)
            return
        self.loose.append(node.test)
        verdict = _version_verdict(node.test)
        if verdict is not None:
            if verdict:
                self.read(_suite(node.body), guard, loop)
            elif isinstance(node.orelse, cst.If):
                self.statement(node.orelse, guard, loop)
            elif node.orelse is not None:
                self.read(_suite(node.orelse.body), guard, loop)
            return
        positive, negative = f"if {test}", f"else {test}"
        if _is_type_checking(node.test):
            positive, negative = "TYPE_CHECKING", "else TYPE_CHECKING"
        elif isinstance(node.test, cst.UnaryOperation) and _is_type_checking(node.test.expression):
            positive, negative = "else TYPE_CHECKING", "TYPE_CHECKING"
        self.read(_suite(node.body), _join(guard, positive), loop)
        if isinstance(node.orelse, cst.If):
            self.statement(node.orelse, _join(guard, negative), loop)
        elif node.orelse is not None:
            self.read(_suite(node.orelse.body), _join(guard, negative), loop)

    def import_(self, node: cst.Import | cst.ImportFrom, guard: str, loop: cst.CSTNode | None) -> None:
        if loop is not None:
            self.note(node, f"an import stands under `{guard}`")
        if self.in_class:
            self.note(node, "an import stands in a class body")
        line = self.reader.line(node)
        for one in imported_names(node):
            if one.bound:
                self.bind(one.bound)
            if one.bound == "__all__":
                self.exports, self.exports_line = None, line
            explicit = one.renamed and one.bound == (one.name or one.module)
            self.imports.append(ImportFacts(one.module, one.name, one.bound, line, guard, explicit))

    def assign(self, node: cst.Assign, guard: str, loop: cst.CSTNode | None) -> None:
        self.bind_walruses(node.value, guard)
        for target in node.targets:
            self.assign_to(node, target.target, node.value, guard, loop)

    def assign_to(
        self, node: cst.CSTNode, target: cst.CSTNode, value: cst.BaseExpression, guard: str, loop: cst.CSTNode | None
    ) -> None:
        if isinstance(target, cst.Name):
            self.constant(node, target.value, value, guard)
        elif isinstance(target, (cst.Tuple, cst.List)):
            elements = list(target.elements)
            parts = list(value.elements) if isinstance(value, (cst.Tuple, cst.List)) else []
            plain = not any(isinstance(part, cst.StarredElement) for part in (*elements, *parts))
            for index, element in enumerate(elements):
                if plain and len(parts) == len(elements):
                    self.assign_to(node, element.value, parts[index].value, guard, loop)
                    continue
                for name in target_names(element.value):
                    text = f"{grouped(text_of(value), '[')}[{index}]" if plain else text_of(value)
                    self.constant(node, name, value, guard, text=text, salt=str(index))
                if not isinstance(element.value, (cst.Name, cst.Tuple, cst.List, cst.StarredElement)):
                    self.store(node, element.value, loop)
        else:
            self.store(node, target, loop)

    def annotated(self, node: cst.AnnAssign, guard: str, loop: cst.CSTNode | None) -> None:
        if not isinstance(node.target, cst.Name):
            if node.value is not None:
                self.store(node, node.target, loop)
            return
        if node.value is None and not self.in_class:
            return  # declares a type, binds nothing
        if node.value is not None:
            self.bind_walruses(node.value, guard)
        self.constant(node, node.target.value, node.value, guard, annotation=text_of(node.annotation.annotation))

    def augmented(self, node: cst.AugAssign, guard: str, loop: cst.CSTNode | None) -> None:
        if not isinstance(node.target, cst.Name):
            self.store(node, node.target, loop)
            return
        name, operator = node.target.value, augmented_operator(node.operator)
        if name == "__all__" and not self.in_class:
            if operator == "+":
                self.add_exports(node, text_of(node.value), guard)
            else:
                self.note(node, f"__all__ {operator}= {text_of(node.value)}")
            return
        self.bind(name)
        before = next((fact for fact in reversed(self.constants) if fact.name == name), None)
        value = text_of(node.value)
        text = f"{grouped(before.value if before else name, operator)} {operator} {grouped(value, operator)}"
        found = {*(before.references if before else (name,)), *uses([node.value]).names}
        digest = combine([before.digest if before else name, operator, digest_of(node.value), guard])
        annotation = before.annotation if before else None
        fact = ConstantFacts(
            name,
            self.reader.line(node),
            text,
            digest,
            annotation,
            tuple(sorted(found)),
            before.guard if before else guard,
        )
        if before is not None:
            self.constants.remove(before)
        self.constants.append(fact)

    def delete(self, node: cst.Del, loop: cst.CSTNode | None) -> None:
        for target in node.target.elements if isinstance(node.target, (cst.Tuple, cst.List)) else [node.target]:
            inner = target.value if isinstance(target, cst.Element) else target
            if isinstance(inner, cst.Name):
                self.bound.pop(inner.value, None)
                self.deleted[inner.value] = None
            else:
                self.store(node, inner, loop)

    def store(self, node: cst.CSTNode, target: cst.CSTNode, loop: cst.CSTNode | None) -> None:
        """An assignment into something: ``a.b = ...``, ``a[b] = ...``."""
        whole = loop or node
        self.loose.append(whole)
        if isinstance(target, cst.Subscript):
            owner = text_of(target.value)
            if owner in ("globals()", "vars()", "locals()") or owner.endswith("sys.modules"):
                self.note(node, f"assigns to {text_of(target)}")
        if isinstance(target, cst.Attribute) and text_of(target.value).startswith("sys.modules["):
            self.note(node, f"assigns to {text_of(target)}")
        root = _root(target)
        if root == "__path__":
            self.note(node, "changes __path__")
        if root is not None:
            self.touch(root, whole)

    def expression(self, node: cst.CSTNode, value: cst.BaseExpression, guard: str, loop: cst.CSTNode | None) -> None:
        self.bind_walruses(value, guard)
        if not isinstance(value, cst.Call):
            return
        whole = loop or node
        self.loose.append(whole)
        name = dotted(value.func)
        text = text_of(value)
        short = text if len(text) <= 80 else text[:77] + "..."
        if not self.in_class and name in ("__all__.extend", "__all__.append") and len(value.args) == 1:
            argument = text_of(value.args[0].value)
            self.add_exports(node, f"[{argument}]" if name.endswith("append") else f"list({argument})", guard)
            return
        if name is not None and name.startswith("__all__."):
            self.note(node, f"changes __all__: {short}")
            return
        if name in ("exec", "eval", "setattr", "delattr", "builtins.exec", "importlib.import_module", "__import__"):
            literal_target = (
                name in ("setattr", "delattr") and len(value.args) > 1 and string_value(value.args[1].value) is not None
            )
            if not literal_target or text_of(value.args[0].value).startswith("sys.modules["):
                self.note(node, short)
        elif any(
            text_of(argument.value) in ("__name__", "globals()", "vars()", "locals()") for argument in value.args
        ) or text.startswith(("globals().", "vars().", "locals().", "sys.modules", "__path__.")):
            self.note(node, f"may bind names: {short}")
        root = _root(value.func)
        if root is not None:
            self.touch(root, whole)
        if name in ("setattr", "delattr") and value.args:
            first = _root(value.args[0].value)
            if first is not None:
                self.touch(first, whole)

    def bind_walruses(self, node: cst.CSTNode, guard: str) -> None:
        if not self.reader.has_walrus:
            return
        for walrus in _walruses(node):
            for name in target_names(walrus.target):
                self.constant(walrus, name, walrus.value, guard)

    def touch(self, name: str, node: cst.CSTNode) -> None:
        """Remember that a loose statement acts on ``name``: what the name stands for depends on it."""
        self.touched.setdefault(name, []).append(digest_of(node))
        self.touched_uses.setdefault(name, set()).update(uses([node]).names)

    def settle(self) -> None:
        """Fold the loose statements into the digests of what they act on."""

        def settled[T: (FunctionFacts, ClassFacts, ConstantFacts)](fact: T) -> T:
            if fact.name not in self.touched:
                return fact
            references = {*fact.references, *self.touched_uses[fact.name]} - {fact.name}
            digest = combine([fact.digest, *self.touched[fact.name]])
            return dataclasses.replace(fact, digest=digest, references=tuple(sorted(references)))

        if not self.touched:
            return
        self.functions = [settled(fact) for fact in self.functions]
        self.classes = [settled(fact) for fact in self.classes]
        self.constants = [settled(fact) for fact in self.constants]


def _bare(text: str) -> str:
    return text[1:-1] if text.startswith("(") and text.endswith(")") and not text.endswith(",)") else text


class _Reader:
    """One module on its way to facts."""

    def __init__(self, module: cst.Module, *, has_walrus: bool) -> None:
        self.module = module
        self.line = Lines(module)
        self.opaque: list[str] = []
        self.has_walrus = has_walrus

    def note(self, node: cst.CSTNode, what: str) -> None:
        self.opaque.append(f"{self.line(node)}: {what}")

    def read(self) -> ModuleFacts:
        block = _Block(self)
        block.read(_suite(self.module))
        block.settle()
        exports, exports_text = _literal_names(block.exports)
        return ModuleFacts(
            functions=tuple(block.functions),
            classes=tuple(block.classes),
            constants=tuple(block.constants),
            imports=tuple(block.imports),
            order=tuple(block.bound),
            exports=exports,
            exports_text=exports_text,
            deleted=tuple(block.deleted),
            call_sites=callsites.call_sites(self.module, self.line),
            references=uses(block.loose).names,
            opaque=tuple(self.opaque),
            exports_line=block.exports_line,
            future_annotations=any(
                fact.module == "__future__" and fact.name == "annotations" for fact in block.imports
            ),
        )

    def function(self, node: cst.FunctionDef, guard: str, *, owner: str) -> FunctionFacts:
        decorators = [decorator_of(decorator) for decorator in node.decorators]
        kept = [one for one, fact in zip(node.decorators, decorators, strict=True) if fact.name not in _BINDERS]
        described = tilelang.describe(node, self.module, self.line)
        skip: Collection[cst.CSTNode] = described.skip if described is not None else ()
        digest, sketch = fingerprint(*kept, node.body, skip=skip, salt="async" if node.asynchronous is not None else "")
        used = function_uses(node, receiver=_receiver(node, decorators) if owner else None)
        doc = _docstring(node.body)
        return FunctionFacts(
            name=node.name.value,
            line=self.line(node),
            signature=signature_of(node, owner),
            digest=digest,
            decorators=tuple(decorators),
            references=used.names,
            local_imports=used.imports,
            docs=docs.doc_facts(doc) if doc else (),
            factory=described.factory if described is not None else False,
            macro=described.macro if described is not None else False,
            contract=described.contract if described is not None else None,
            flow=described.flow if described is not None else None,
            is_async=node.asynchronous is not None,
            guard=guard,
            sketch=sketch,
        )

    def class_(self, node: cst.ClassDef, guard: str) -> ClassFacts:
        block = _Block(self, node.name.value)
        block.read(_suite(node.body))
        block.settle()
        skeleton = [*(decorator.decorator for decorator in node.decorators), *node.bases, *node.keywords]
        # A bare name among a class's statements binds nothing, so only calls and stores are left of the body.
        digest, sketch = fingerprint(*skeleton, *block.loose)
        values: list[cst.CSTNode] = [*node.decorators, *node.bases, *node.keywords, *block.loose]
        own = uses(values)
        inner = {name for fact in block.constants for name in fact.references}
        return ClassFacts(
            name=node.name.value,
            line=self.line(node),
            digest=digest,
            bases=_call_arguments((*node.bases, *node.keywords)),
            decorators=tuple(decorator_of(decorator) for decorator in node.decorators),
            methods=tuple(block.functions),
            attributes=tuple(fact for fact in block.constants if fact.name not in block.deleted),
            classes=tuple(block.classes),
            instance_attributes=_instance_attributes(node),
            references=tuple(sorted({*own.names, *inner})),
            guard=guard,
            sketch=sketch,
        )


def _receiver(node: cst.FunctionDef, decorators: Sequence[Decorator]) -> str | None:
    """Name of the parameter that stands for the object (or the class) in a method."""
    if any(decorator.name == "staticmethod" for decorator in decorators):
        return None
    first = [*node.params.posonly_params, *node.params.params][:1]
    return first[0].name.value if first else None


def _instance_attributes(node: cst.ClassDef) -> tuple[str, ...]:
    """Names assigned on the first parameter of ``__init__``, in order."""
    found: dict[str, None] = {}
    for statement in _suite(node.body):
        if isinstance(statement, cst.FunctionDef) and statement.name.value == "__init__":
            receiver = _receiver(statement, ())
            if receiver is not None:
                for inner in _suite(statement.body):
                    _collect_stores(inner, receiver, found)
    return tuple(found)


def _collect_stores(node: cst.CSTNode, receiver: str, found: dict[str, None]) -> None:
    targets: list[cst.CSTNode] = []
    if isinstance(node, cst.Assign):
        targets = [target.target for target in node.targets]
    elif isinstance(node, (cst.AnnAssign, cst.AugAssign)):
        targets = [node.target]
    while targets:
        target = targets.pop(0)
        if isinstance(target, (cst.Tuple, cst.List)):
            targets += [element.value for element in target.elements]
        elif isinstance(target, cst.Attribute) and dotted(target.value) == receiver:
            found[target.attr.value] = None
    for block in _inner_blocks(node):
        for child in _suite(block):
            _collect_stores(child, receiver, found)


def _inner_blocks(node: cst.CSTNode) -> Iterator[cst.BaseSuite]:
    """The blocks of a compound statement that run in the scope around it."""
    match node:
        case cst.If():
            yield node.body
            if isinstance(node.orelse, cst.If):
                yield from _inner_blocks(node.orelse)
            elif node.orelse is not None:
                yield node.orelse.body
        case cst.Try() | cst.TryStar():
            yield node.body
            yield from (handler.body for handler in node.handlers)
            yield from (part.body for part in (node.orelse, node.finalbody) if part is not None)
        case cst.For() | cst.While():
            yield node.body
            if node.orelse is not None:
                yield node.orelse.body
        case cst.With():
            yield node.body
        case cst.Match():
            yield from (case.body for case in node.cases)
        case _:
            return


def _literal_names(text: str | None) -> tuple[tuple[str, ...] | None, str | None]:
    """(names, None) of a literal ``__all__``; (None, text) of one that needs other modules or evaluation."""
    if text is None:
        return None, None
    node = cst.parse_expression(text)
    if isinstance(node, (cst.Tuple, cst.List)):
        names = [string_value(element.value) if isinstance(element, cst.Element) else None for element in node.elements]
        if None not in names:
            return tuple(name for name in names if name is not None), None
    return None, text


__all__ = ["Uses", "decorator_of", "extract", "signature_of"]
