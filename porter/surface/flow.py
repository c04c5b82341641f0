"""Which arguments a kernel may write: follows a contract's ``Flow`` through macros, builders, closures and delegates.

Works on facts alone, so it needs no syntax trees: every function that is called is looked up by name and its own facts are
followed in turn, to a fixpoint. The answer is what *may* be written: an argument is False only when nothing that was followed
can write it, and None where something that cannot be followed got hold of it, or where it holds addresses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache

from porter.surface.model import Contract, Flow, Kernel, KernelArgument
from porter.surface.tilelang_access import access_of

Lookup = Callable[[str, str], tuple[str, Flow] | None]

_POINTERS = frozenset({"ptr", "Ptr", "handle"})
_PASSES = 12
_DEPTH = 40


def resolve(contract: Contract, *, module: str, lookup: Lookup) -> Contract:
    """The contract with ``written`` filled in and delegated kernels' arguments copied from what they delegate to.

    Parameters:
        contract: as ``tilelang.describe`` gave it; its ``flow`` and the kernels' paths are used up.
        module: dotted module that the contract's factory stands in.
        lookup: (module, dotted name as written there) to the defining module and flow of a macro, helper or factory. A
            name imported inside a function comes as its dotted target (``.rstd.make`` or ``pkg.rstd.make``). A function that
            is found but has no flow (its module does not know TileLang) cannot write a buffer: ``Flow()`` for it. None for
            what is not found.
    """
    flow = contract.flow or Flow()
    given: list[Closure] | None = None
    notes: list[str] = list(contract.opaque)
    kernels: list[Kernel] = []
    for kernel in contract.kernels:
        followed = _Following(lookup, module)
        if kernel.style == "delegated":
            if given is None:
                given = followed.given(Closure("", flow, module, None))
            kernels.extend(_delegated(kernel, given, followed, module))
        elif kernel.style == "opaque":
            kernels.append(dataclasses.replace(kernel, path=""))
        else:
            found = followed.kernel(flow, kernel.path, _roots(kernel.arguments))
            if not found:
                followed.notes[f"{kernel.name}: its body was not read"] = None
            kernels.append(_filled(kernel, kernel.arguments, followed, known=found))
        notes.extend(sorted(note for note in followed.notes if note not in notes))
    return dataclasses.replace(contract, kernels=tuple(dict.fromkeys(kernels)), opaque=tuple(notes), flow=None)


def _filled(kernel: Kernel, arguments: Iterable[KernelArgument], followed: _Following, *, known: bool = True) -> Kernel:
    rows = tuple(
        dataclasses.replace(
            argument, written=_written(argument, followed) if known or argument.spec.form == "scalar" else None
        )
        for argument in arguments
    )
    return dataclasses.replace(kernel, arguments=rows, path="")


def _roots(arguments: Iterable[KernelArgument]) -> Arguments:
    """What a kernel starts from: every argument that is not a number stands for itself."""
    names = [argument.name.lstrip("*") for argument in arguments if argument.spec.form != "scalar"]
    return [(name, frozenset({Root(name)})) for name in names]


def _written(argument: KernelArgument, followed: _Following) -> bool | None:
    spec = argument.spec
    if spec.form == "scalar":
        return False
    if spec.form == "pointer" or (spec.dtype or "").rpartition(".")[2] in _POINTERS:
        # An address may be written through anywhere: nothing here can tell.
        return None
    name = argument.name.lstrip("*")
    if name in followed.written:
        return True
    return None if name in followed.unknown else False


def _delegated(kernel: Kernel, given: Iterable[Closure], followed: _Following, module: str) -> list[Kernel]:
    name = kernel.delegate.rpartition(".")[2]
    # The kernels that the factory's own call gives know the constants it passed; by name alone they do not.
    found = [closure for closure in given if closure.origin == name] or followed.factory(module, kernel.delegate)
    if not found:
        followed.notes[f"the delegate {kernel.delegate} was not found or gives back no kernel that can be seen"] = None
        return [dataclasses.replace(kernel, path="")]
    rows = []
    for closure in found:
        inner = _Following(followed.lookup, closure.module)
        inner.run(closure, _roots(closure.flow.arguments), by_name=True)
        followed.notes.update(inner.notes)
        rows.append(_filled(dataclasses.replace(kernel, name=closure.name), closure.flow.arguments, inner))
    # Sets have no order of their own.
    return sorted(rows, key=repr)


@dataclass(frozen=True)
class Root:
    """A kernel's own argument."""

    name: str


@dataclass(frozen=True)
class Outside:
    """A name that a module writes and does not define in the function."""

    module: str
    name: str


@dataclass(frozen=True)
class Constant:
    """``True``, ``False`` or ``None`` as an argument."""

    name: str


@dataclass(frozen=True)
class Operation:
    """An operation of TileLang's language."""

    name: str


@dataclass(eq=False)
class Closure:
    """A function together with where it was defined."""

    name: str
    flow: Flow
    module: str
    outer: _Activation | None

    @property
    def origin(self) -> str:
        """Name of the top-level function that it was made in."""
        closure = self
        while closure.outer is not None:
            closure = closure.outer.closure
        return closure.name


@dataclass(eq=False)
class Bound:
    """``functools.partial``, or a method of a value."""

    target: frozenset[Value]
    arguments: tuple[tuple[str, frozenset[Value]], ...]
    method: str = ""


type Value = Root | Outside | Constant | Operation | Closure | Bound
type Arguments = list[tuple[str, frozenset[Value]]]

_NOTHING: frozenset[Value] = frozenset()


@dataclass(eq=False)
class _Activation:
    closure: Closure
    values: dict[str, frozenset[Value]]
    results: dict[int, tuple[frozenset[Value], ...]] = field(default_factory=dict)
    closures: dict[str, Closure] = field(default_factory=dict)
    nested: dict[str, Flow] = field(default_factory=dict)


@cache
def _word(text: str) -> tuple[int, str, str, int, int, str]:
    """(levels out, kind, name, call, item, method) of one value word."""
    bare = text.lstrip("^")
    steps = len(text) - len(bare)
    bare, _, method = bare.partition("!")
    if not bare:
        return steps, "", "", 0, -1, method
    kind = bare[0] if bare[0] in ":@#%=" else "p"
    name = bare if kind == "p" else bare[1:]
    call = item = -1
    if kind == "#":
        first, _, second = name.partition(".")
        call, item = int(first), int(second) if second else -1
    return steps, kind, name, call, item, method


class _Following:
    """One kernel's analysis: collects the roots that are written or lost sight of."""

    def __init__(self, lookup: Lookup, module: str) -> None:
        self.lookup = lookup
        self.module = module
        self.written: set[str] = set()
        self.unknown: set[str] = set()
        self.notes: dict[str, None] = {}
        self._outside: dict[tuple[str, str], Closure | None] = {}
        self._done: dict[tuple[object, ...], tuple[frozenset[Value], ...]] = {}
        self._under_way: set[tuple[object, ...]] = set()

    # ------------------------------------------------------------------ entry points

    def kernel(self, flow: Flow, path: str, arguments: Arguments) -> bool:
        """Follow the kernel at ``path`` inside a factory; False when the path leads nowhere."""
        closure = Closure("", flow, self.module, None)
        steps = path.split("/") if path else []
        for step in steps:
            inner = dict(closure.flow.nested).get(step)
            if inner is None:
                return False
            closure = Closure(step, inner, self.module, self._activate(closure, {}))
        self.run(closure, arguments, by_name=True)
        return True

    def factory(self, module: str, dotted: str) -> list[Closure]:
        """The kernels that a factory gives back, as closures."""
        closure = self._find(Outside(module, dotted))
        return [] if closure is None else self.given(closure)

    def given(self, closure: Closure) -> list[Closure]:
        """The kernels that calling a factory gives; an eager factory is its own kernel."""
        if closure.flow.arguments:
            return [closure]
        # Its own arguments are not known: no default may decide a branch.
        returned = self.run(closure, [], by_name=True)
        found = (
            [value for value in returned[0] if isinstance(value, Closure) and value.flow.arguments] if returned else []
        )
        return sorted(found, key=lambda value: (value.module, value.name))

    # ------------------------------------------------------------------ calls

    def run(self, closure: Closure, arguments: Arguments, *, by_name: bool = False) -> tuple[frozenset[Value], ...]:
        """Call a function with abstract arguments; (all it may give back, then its items where it gives back a tuple)."""
        key = (id(closure.flow), closure.outer, by_name, tuple(arguments))
        done = self._done.get(key)
        if done is not None:
            return done
        if key in self._under_way or len(self._under_way) > _DEPTH:
            return ()
        self._under_way.add(key)
        flow = closure.flow
        values = dict(arguments) if by_name else _bind(flow.parameters, arguments)
        activation = self._activate(closure, values)
        for event in flow.written:
            word, _, guards = event.partition("?")
            if self._holds(guards, activation):
                self.written.update(value.name for value in self._value(word, activation) if isinstance(value, Root))
        for event in flow.unknown:
            event, _, reason = event.partition("|")
            word, _, guards = event.partition("?")
            if self._holds(guards, activation):
                self._lost(self._value(word, activation), reason, closure)
        result = tuple(self._values(text, activation) for text in flow.returns)
        if len(result) > 1:
            result = (frozenset().union(*result), *result[1:])
        self._under_way.discard(key)
        self._done[key] = result
        return result

    def _activate(self, closure: Closure, values: dict[str, frozenset[Value]]) -> _Activation:
        """Enter a function: its calls take effect until nothing new comes back from them."""
        activation = _Activation(closure, values, nested=dict(closure.flow.nested))
        for _ in range(_PASSES):
            before = dict(activation.results)
            for index in range(len(closure.flow.calls)):
                self._effect(activation, index)
            if activation.results == before:
                break
        return activation

    def _holds(self, guards: str, activation: _Activation) -> bool:
        """May all conditions hold? Only a parameter that is a known constant says no."""
        for guard in guards.split("?") if guards else ():
            values = self._value(guard.removeprefix("-"), activation)
            truths = {value.name == "True" if isinstance(value, Constant) else None for value in values}
            if truths == {guard.startswith("-")}:
                return False
        return True

    def _effect(self, activation: _Activation, index: int) -> None:
        callee, rows = activation.closure.flow.calls[index]
        callee, _, guards = callee.partition("?")
        if not self._holds(guards, activation):
            return
        arguments: Arguments = [(keyword, self._values(text, activation)) for keyword, text in rows]
        targets = self._values(callee, activation)
        lines = activation.closure.flow.lines
        line = lines[index] if index < len(lines) else 0
        whole: set[Value] = set()
        items: list[set[Value]] = []
        for target in targets:
            result = self._invoke(target, arguments, activation, line, callee)
            for place, values in enumerate(result[1:]):
                if place == len(items):
                    items.append(set())
                items[place] |= values
            if result:
                whole |= result[0]
        if not targets and callee and any(arguments_values for _, arguments_values in arguments):
            self._lost_all(
                arguments,
                f"line {line}: a call of {_shown(callee)}" if line else f"a call of {_shown(callee)}",
                activation.closure,
            )
        new = (frozenset(whole), *(frozenset(item) for item in items))
        old = activation.results.get(index, ())
        merged = tuple(
            (old[i] if i < len(old) else _NOTHING) | (new[i] if i < len(new) else _NOTHING)
            for i in range(max(len(old), len(new)))
        )
        if merged != old:
            activation.results[index] = merged
            # Functions inside may have been followed before this was known.
            self._done.clear()

    def _invoke(
        self, target: Value, arguments: Arguments, activation: _Activation, line: int, callee: str
    ) -> tuple[frozenset[Value], ...]:
        if isinstance(target, Closure):
            return self.run(target, arguments)
        if isinstance(target, Operation):
            return self._operate(target.name, arguments)
        if isinstance(target, Bound):
            if target.method:
                if target.target and all(isinstance(value, Root) for value in target.target):
                    # A tensor's own method reads its arguments.
                    return ()
                self._lost_all(arguments, f"line {line}: a call of {_shown(callee)}", activation.closure)
                return ()
            results = [
                self._invoke(inner, [*target.arguments, *arguments], activation, line, callee)
                for inner in target.target
            ]
            return (frozenset().union(*(result[0] for result in results if result)),)
        if isinstance(target, Outside):
            if target.name in ("partial", "functools.partial") and arguments:
                first = arguments[0][1]
                return (frozenset({Bound(first, tuple(arguments[1:]))}),)
            closure = self._find(target)
            if closure is not None:
                return self.run(closure, arguments)
            self._lost_all(arguments, f"line {line}: a call of {target.name}", activation.closure)
        # A kernel's own argument cannot be called.
        return ()

    def _operate(self, name: str, arguments: Arguments) -> tuple[frozenset[Value], ...]:
        access = access_of(name)
        if access is None:
            self._lost_all(arguments, f"T.{name}", None)
            return ()
        positional = [values for keyword, values in arguments if not keyword]
        given = dict(arguments)

        spread = frozenset().union(*(values for keyword, values in arguments if keyword in ("*", "**")))

        def at(index: int) -> frozenset[Value]:
            return (
                positional[index] if index < len(positional) else given.get(access.parameters[index], _NOTHING)
            ) | spread

        for index in access.written:
            self.written.update(value.name for value in at(index) if isinstance(value, Root))
        return (at(access.alias),) if access.alias >= 0 else ()

    def _find(self, target: Outside) -> Closure | None:
        key = (target.module, target.name)
        if key not in self._outside:
            found = self.lookup(target.module, target.name)
            self._outside[key] = (
                None if found is None else Closure(target.name.rpartition(".")[2], found[1], found[0], None)
            )
        return self._outside[key]

    def _lost_all(self, arguments: Arguments, reason: str, closure: Closure | None) -> None:
        self._lost(frozenset().union(*(values for _, values in arguments)), reason, closure)

    def _lost(self, values: Iterable[Value], reason: str, closure: Closure | None) -> None:
        names = sorted({value.name for value in values if isinstance(value, Root)})
        if names:
            self.unknown.update(names)
            where = "" if closure is None or closure.module == self.module else f"{closure.module} "
            self.notes[f"{where}{reason} is not followed: {', '.join(names)}"] = None

    # ------------------------------------------------------------------ values

    def _values(self, text: str, activation: _Activation) -> frozenset[Value]:
        if not text:
            return _NOTHING
        if " " not in text:
            return self._value(text, activation)
        return frozenset().union(*(self._value(word, activation) for word in text.split()))

    def _value(self, text: str, activation: _Activation) -> frozenset[Value]:
        steps, kind, name, call, item, method = _word(text)
        if method:
            receiver = self._value(text.partition("!")[0], activation) if kind else _NOTHING
            return frozenset({Bound(receiver, (), method)})
        at: _Activation | None = activation
        for _ in range(steps):
            at = at.closure.outer if at is not None else None
        if at is None:
            return _NOTHING
        if kind == "p":
            return at.values.get(name, _NOTHING)
        if kind == "@":
            return frozenset({self._closure(name, at)})
        if kind == "#":
            result = at.results.get(call, ())
            if item >= 0 and item + 1 < len(result):
                return result[item + 1]
            return result[0] if result else _NOTHING
        if kind == ":":
            return frozenset({Outside(at.closure.module, name)})
        if kind == "=":
            return frozenset({Constant(name)})
        return frozenset({Operation(name)})

    def _closure(self, name: str, at: _Activation) -> Closure:
        closure = at.closures.get(name)
        if closure is None:
            nested = at.nested or dict(at.closure.flow.nested)
            closure = at.closures[name] = Closure(name, nested.get(name, Flow()), at.closure.module, at)
        return closure


def _bind(parameters: tuple[str, ...], arguments: Arguments) -> dict[str, frozenset[Value]]:
    """Bind arguments as a call does; what an unpacked ``*x`` or ``**x`` holds may reach every parameter still free."""
    values: dict[str, set[Value]] = {}
    names = [parameter.partition("=")[0] for parameter in parameters]
    star = next((name[1:] for name in names if name.startswith("*") and len(name) > 1 and name[1] != "*"), None)
    more = next((name[2:] for name in names if name.startswith("**")), None)
    cut = next((index for index, name in enumerate(names) if name.startswith("*")), len(names))
    positional = names[:cut]
    named = [name for name in names if not name.startswith("*")]

    def give(targets: Iterable[str | None], given: frozenset[Value]) -> None:
        for target in targets:
            if target is not None:
                values.setdefault(target, set()).update(given)

    place = 0
    spread = False
    for keyword, given in arguments:
        if keyword in ("*", "**") or spread:
            # Which parameter a constant among them reaches is not known.
            given = frozenset(value for value in given if not isinstance(value, Constant))
        if keyword == "**":
            give([*(name for name in named if name not in values), more], given)
        elif keyword and keyword != "*":
            give([keyword if keyword in named else more], given)
        elif keyword == "*" or spread:
            give([*positional[place:], star], given)
        else:
            give([positional[place] if place < len(positional) else star], given)
            place += 1
        spread |= keyword in ("*", "**")
    if not spread:
        for parameter in parameters:
            name, _, default = parameter.partition("=")
            if default and name not in values:
                values[name] = {Constant(default)}
    return {name: frozenset(found) for name, found in values.items()}


def _shown(callee: str) -> str:
    """A callee's value words as a person reads them."""
    words = []
    for word in callee.split():
        _, kind, name, _, _, method = _word(word)
        words.append(
            f"{name if kind in (':', '@', 'p') else 'a result'}{'.' + method if method else ''}"
            if kind
            else f"a method {method}"
        )
    return " or ".join(words)
