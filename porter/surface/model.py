"""What an upstream offers, as data.

Two layers. *Facts* are what one file says on its own (``ModuleFacts``), a pure function of the
file's bytes, so they are cached by digest. A *surface* is what a whole source offers once names
are followed across its files (``Surface``, made of ``Symbol``), and is what the lock stores.

All text fields hold canonical source text: one line, single spaces, no comments.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ParameterKind(StrEnum):
    """How a parameter binds, in the order Python lists them."""

    POSITIONAL_ONLY = "positional-only"
    POSITIONAL = "positional"
    VAR_POSITIONAL = "var-positional"
    KEYWORD_ONLY = "keyword-only"
    VAR_KEYWORD = "var-keyword"


@dataclass(frozen=True)
class Parameter:
    """One parameter of a signature; ``default`` and ``annotation`` are source text or None."""

    name: str
    kind: ParameterKind = ParameterKind.POSITIONAL
    default: str | None = None
    annotation: str | None = None


@dataclass(frozen=True)
class Signature:
    """Parameters in order and the return annotation's text."""

    parameters: tuple[Parameter, ...] = ()
    returns: str | None = None


@dataclass(frozen=True)
class Argument:
    """An argument written in a call or decorator: ``keyword`` is None for a positional one."""

    text: str
    keyword: str | None = None


@dataclass(frozen=True)
class Decorator:
    """A decorator: dotted name and, where it is called, its arguments (None where it is bare)."""

    name: str
    arguments: tuple[Argument, ...] | None = None


@dataclass(frozen=True)
class DocFact:
    """What a docstring states of one parameter, reduced to facts: no sentence is kept.

    ``shape`` is the bracketed shape as written (``[n, D]``), ``dtype`` a dtype word found beside it,
    ``flags`` words such as ``contiguous``, ``optional``, ``in-place``.
    """

    name: str
    shape: str | None = None
    dtype: str | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class TensorSpec:
    """A kernel argument's type as the kernel writes it.

    ``form``: ``tensor`` (T.Tensor), ``strided`` (T.StridedTensor), ``buffer`` (T.Buffer), ``scalar`` (a bare
    dtype), ``pointer`` (T.ptr / handle), ``opaque`` (anything else: ``text`` holds what was written).
    ``shape`` and ``strides`` are one text per axis where they are a literal tuple or list. Where they are a
    name, an assignment of a literal tuple to that name in the factory's body is followed; with several
    assignments (branches) or none the single element is that name.
    """

    form: str
    shape: tuple[str, ...] | None = None
    dtype: str | None = None
    strides: tuple[str, ...] | None = None
    text: str = ""


@dataclass(frozen=True)
class KernelArgument:
    """One argument of a kernel call. ``written``: may the kernel write it (None: unknowable statically)."""

    name: str
    spec: TensorSpec
    written: bool | None = None
    default: str | None = None


@dataclass(frozen=True)
class Kernel:
    """The callable that a factory returns (or, eager, runs).

    ``style``: ``prim_func``, ``eager``, ``closure`` (a plain function returned), ``delegated`` (another
    factory's call is returned; ``delegate`` names it), ``opaque``.
    ``condition``: source text of the branch under which this kernel is the one returned, "" when it always is.
    ``outputs``: tensors that an eager kernel allocates and returns, in the order of the return.
    ``path``: nested definitions that lead to the kernel inside its factory (``/``-joined; "" for the factory itself);
    emptied by ``flow.resolve``.
    """

    name: str
    style: str
    arguments: tuple[KernelArgument, ...] = ()
    condition: str = ""
    delegate: str = ""
    outputs: tuple[KernelArgument, ...] = ()
    path: str = ""


@dataclass(frozen=True)
class Contract:
    """The tensor contract of a factory: its kernels and the decorator options that change the call.

    ``out_idx``: source text of the decorator's ``out_idx`` ("None" when given so, None when absent).
    ``opaque``: constructs met that could not be understood, one short text each with its line number; never
    silently dropped. ``flow``: the factory's own flow; emptied by ``flow.resolve``.
    """

    kernels: tuple[Kernel, ...] = ()
    out_idx: str | None = None
    opaque: tuple[str, ...] = ()
    flow: Flow | None = None


@dataclass(frozen=True)
class Flow:
    """How a function treats what it is given, for following writes through macros, closures and builders.

    A *value* is text: alternatives joined by spaces, each ``name`` (own parameter), ``@name`` (function defined inside),
    ``#2`` or ``#2.0`` (result of ``calls[2]``, or its first item), ``:a.b`` (name from outside), ``%copy`` (TileLang
    operation), ``=True`` (constant); a ``^`` in front leads one function further out. ``value!method`` as a callee is a method
    of a value. What happens under ``if flag`` or ``if not flag`` on a parameter ends in ``?flag`` or ``?-flag``.

    ``parameters``: names in order, ``*``, ``*rest`` and ``**more`` as Python writes them, ``flag=True`` for a constant default.
    ``written``: values that this body may write itself. ``unknown``: values handed to something that cannot be followed,
    each with the reason (``x|T.call_extern``).
    ``calls``: calls that may write through an argument or whose result matters: callee (a value) and, per argument in
    call order, (keyword, "" or ``*`` / ``**`` for unpacking, value).
    ``lines``: line of each of ``calls`` that leaves the module's own view, else 0.
    ``returns``: value returned and, where a tuple is, its items after that.
    ``nested``: functions defined inside that matter. ``arguments``: a kernel's own arguments, for delegation.
    """

    written: tuple[str, ...] = ()
    calls: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    parameters: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    returns: tuple[str, ...] = ()
    nested: tuple[tuple[str, Flow], ...] = ()
    lines: tuple[int, ...] = ()
    arguments: tuple[KernelArgument, ...] = ()


@dataclass(frozen=True)
class CallSite:
    """One place where an interface module calls a factory.

    ``caller`` is the enclosing function's qualified name; ``arguments`` the factory call's own arguments;
    ``kernel_arguments`` the arguments of the call on its result (followed through a local name), None when the
    result is not called in that function. ``attributes``: attributes set on the factory itself (``pass_configs[KEY]`` as
    keyword, value as text); a site that only sets some has neither kind of arguments.
    """

    factory: str
    caller: str
    line: int
    arguments: tuple[Argument, ...] = ()
    kernel_arguments: tuple[Argument, ...] | None = None
    attributes: tuple[Argument, ...] = ()


@dataclass(frozen=True)
class FunctionFacts:
    """A function or method as its file defines it.

    ``digest``: structural digest of the body (see ``digest.py``): signature, docstring and tensor contract left out,
    decorators other than property/staticmethod/classmethod included.
    ``references``: dotted names that the body loads and does not bind itself, sorted.
    ``local_imports``: imports made inside the body, as (local name, dotted target).
    ``factory``: True for a function that gives a kernel (decorated by tilelang.jit, or named ``*_tl``).
    ``macro``: True for T.macro / T.prim_func at module level.
    """

    name: str
    line: int
    signature: Signature
    digest: str
    decorators: tuple[Decorator, ...] = ()
    references: tuple[str, ...] = ()
    local_imports: tuple[tuple[str, str], ...] = ()
    docs: tuple[DocFact, ...] = ()
    factory: bool = False
    macro: bool = False
    contract: Contract | None = None
    flow: Flow | None = None
    is_async: bool = False
    guard: str = ""
    sketch: str = ""


@dataclass(frozen=True)
class ConstantFacts:
    """A name bound by assignment. ``value``: canonical source text of the right-hand side, ``digest`` its digest."""

    name: str
    line: int
    value: str
    digest: str
    annotation: str | None = None
    references: tuple[str, ...] = ()
    guard: str = ""


@dataclass(frozen=True)
class ClassFacts:
    """A class: bases and decorators as text, its methods, attributes (class-level bindings) and nested classes.

    ``instance_attributes``: names assigned on ``self`` in ``__init__``.
    """

    name: str
    line: int
    digest: str
    bases: tuple[Argument, ...] = ()
    decorators: tuple[Decorator, ...] = ()
    methods: tuple[FunctionFacts, ...] = ()
    attributes: tuple[ConstantFacts, ...] = ()
    classes: tuple[ClassFacts, ...] = ()
    instance_attributes: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    guard: str = ""
    sketch: str = ""


@dataclass(frozen=True)
class ImportFacts:
    """One imported name at module level.

    ``module`` is the dotted path as written, relative dots kept (``..common``). ``name`` is the imported attribute,
    "*" for a star import, "" for ``import module``. ``bound`` is the name bound here ("" for a star).
    ``guard``: "", "try", "except", "if <condition>", "else <condition>" or "TYPE_CHECKING"; nested ones
    are joined by " / ". ``explicit``: written ``import x as x`` or ``from m import x as x``, which offers the name on.
    """

    module: str
    name: str
    bound: str
    line: int
    guard: str = ""
    explicit: bool = False


type Fact = FunctionFacts | ClassFacts | ConstantFacts


@dataclass(frozen=True)
class ModuleFacts:
    """What one Python file says. ``order`` lists every name bound at module level in order of its last binding.

    ``exports`` is the literal ``__all__`` (None when absent or not a literal: then ``exports_text`` holds its text);
    ``deleted`` the names deleted again at module level. ``references``: dotted names that loose module-level statements
    (calls, conditions, assignments into something) load. ``exports_line``: where ``__all__`` was last set. ``opaque``: module-level constructs that bind names in a way that
    was not understood, each ``line: what``.
    """

    functions: tuple[FunctionFacts, ...] = ()
    classes: tuple[ClassFacts, ...] = ()
    constants: tuple[ConstantFacts, ...] = ()
    imports: tuple[ImportFacts, ...] = ()
    order: tuple[str, ...] = ()
    exports: tuple[str, ...] | None = None
    exports_text: str | None = None
    deleted: tuple[str, ...] = ()
    call_sites: tuple[CallSite, ...] = ()
    calls: tuple[str, ...] = ()
    future_annotations: bool = False
    references: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    exports_line: int = 0

    @property
    def definitions(self) -> tuple[Fact, ...]:
        """Functions, classes and constants of the module."""
        return (*self.functions, *self.classes, *self.constants)


@dataclass(frozen=True)
class BindingFacts:
    """A name that C++ binds into an extension module (pybind11), or that a ``.pyi`` declares for it.

    ``scope``: dotted path inside the extension module ("" for the module itself, "EPBuffer" for a class's method).
    ``kind``: ``function``, ``class``, ``method``, ``staticmethod``, ``property``, ``constant``, ``module`` (a submodule).
    ``signature`` is None where the arguments cannot be known; ``opaque`` says why. A method's leaves ``self`` out; a
    property's holds its type in ``returns``. The name ``*`` stands for registrations that could not be followed.
    ``alias_of``: the binding that an ``m.attr("x") = m.attr("y")`` names. ``digest``: digest of the C++ definition's
    tokens (comments and white space left out), "" where the definition was not found. ``guard``: preprocessor or C++
    condition under which the name is bound. ``notes``: what else could not be read, one short text each.
    ``writable``: for a property, may it be assigned (None for anything else).
    """

    scope: str
    name: str
    kind: str
    path: str
    line: int
    signature: Signature | None = None
    opaque: str = ""
    alias_of: str = ""
    value: str | None = None
    bases: tuple[str, ...] = ()
    digest: str = ""
    docs: tuple[DocFact, ...] = ()
    guard: str = ""
    notes: tuple[str, ...] = ()
    writable: bool | None = None


class SymbolKind(StrEnum):
    """What a symbol is."""

    FACTORY = "factory"
    FUNCTION = "function"
    CLASS = "class"
    METHOD = "method"
    STATICMETHOD = "staticmethod"
    CLASSMETHOD = "classmethod"
    PROPERTY = "property"
    ATTRIBUTE = "attribute"
    CONSTANT = "constant"


@dataclass(frozen=True)
class Symbol:
    """One public name, under its one identity.

    ``id``: dotted path of the definition (``tilelang_ops.asc.norm.norm_tl``, ``tile_kernels.quant.cast_kernel.cast``);
    a name bound in C++ goes by the package that shows it (``deep_gemm.fp8_einsum``).
    ``module``: dotted module that defines it; ``qualname``: its path inside that module.
    ``body``: digest of its own body and of all it refers to inside its source; ``own``: of its own body alone.
    ``aliases``: other public paths of the same object, sorted.
    ``opaque``: why its arguments or value cannot be known, "" when they are.
    """

    id: str
    source: str
    kind: SymbolKind
    module: str
    qualname: str
    path: str
    line: int = 0
    signature: Signature | None = None
    contract: Contract | None = None
    value: str | None = None
    annotation: str | None = None
    bases: tuple[Argument, ...] = ()
    decorators: tuple[Decorator, ...] = ()
    docs: tuple[DocFact, ...] = ()
    own: str = ""
    body: str = ""
    sketch: str = ""
    aliases: tuple[str, ...] = ()
    opaque: str = ""
    is_async: bool = False

    @property
    def owner(self) -> str:
        """Id of the class of the module that a member belongs to, "" for a name of the module itself."""
        rest = self.qualname.partition(".")[2]
        return self.id[: -len(rest) - 1] if rest else ""


@dataclass(frozen=True)
class Export:
    """A name that a module shows and another defines: ``target`` is a symbol id, or a module when ``is_module``."""

    name: str
    target: str
    is_module: bool = False


@dataclass(frozen=True)
class Module:
    """One module of a source's public surface, in emission order.

    ``symbols``: ids of top-level symbols defined here, in definition order. ``exports``: re-exported names.
    ``exports_all``: the module's ``__all__`` where it has one.
    ``extension``: True for a module that exists in C++ only.
    ``names``: what the root names used in this module's signatures, bases and values stand for, as (bound name, absolute
    dotted target); only names bound by an import.
    ``reachable``: names of this source that the module imports for its own use and does not offer on (in a plain module
    without ``__all__``); code elsewhere may import them from here all the same. ``foreign``: names of other packages that
    it does offer on (in ``__all__``, in an ``__init__``, or ``import x as x``), ``target`` being their dotted path.
    """

    name: str
    path: str
    is_package: bool = False
    symbols: tuple[str, ...] = ()
    exports: tuple[Export, ...] = ()
    exports_all: tuple[str, ...] | None = None
    extension: bool = False
    names: tuple[tuple[str, str], ...] = ()
    reachable: tuple[Export, ...] = ()
    foreign: tuple[Export, ...] = ()


@dataclass(frozen=True)
class Surface:
    """All that one source offers. ``opaque``: constructs that were met and not understood, each ``file:line: what``."""

    source: str
    modules: tuple[Module, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    call_sites: tuple[CallSite, ...] = ()
    references: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
