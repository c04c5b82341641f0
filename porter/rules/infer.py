"""What an expression evidently is: a tensor or not, and of which dtype.

Evidence only: a dtype that is written (``dtype=torch.int32``, ``.long()``, a comparison), carried through operations that
keep it. Whatever is not evident is unknown, and rules that need evidence then say nothing. Mirrors torch's promotion in
``c10/core/ScalarType.h`` as far as it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import libcst as cst


@dataclass(frozen=True)
class Value:
    """``tensor``: True or False where evident, None where not. ``dtype``: torch's name of it where evident.

    ``is_dtype``: the value is itself a dtype, named by ``dtype``. ``expanded``: a view with stride 0.
    ``items``: values of a tuple, where it is one.
    """

    tensor: bool | None = None
    dtype: str | None = None
    is_dtype: bool = False
    expanded: bool = False
    items: tuple[Value, ...] | None = None


UNKNOWN = Value()
PLAIN = Value(tensor=False)
TENSOR = Value(tensor=True)
BOOL = Value(tensor=True, dtype="bool")
WIDE = Value(tensor=True, dtype="int64")

_CANONICAL = {
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "float": "float32",
    "double": "float64",
    "half": "float16",
}
DTYPES = frozenset({
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", *_CANONICAL,
})  # fmt: skip
INTEGERS = frozenset({"uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"})
FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_RANK = {"bool": 0, "uint8": 1, "int8": 1, "int16": 2, "int32": 3, "int64": 4}

_CASTS = {
    "bool": "bool", "byte": "uint8", "char": "int8", "short": "int16", "int": "int32", "long": "int64", "half": "float16",
    "bfloat16": "bfloat16", "float": "float32", "double": "float64",
}  # fmt: skip
_COMPARISONS = frozenset({
    "eq", "ne", "lt", "le", "gt", "ge", "equal_", "isnan", "isinf", "isfinite", "isneginf", "isposinf", "isin",
    "logical_and", "logical_or", "logical_not", "logical_xor", "logical_and_", "logical_or_", "logical_not_", "any", "all",
    "greater", "greater_equal", "less", "less_equal", "not_equal", "signbit",
})  # fmt: skip
_TO_WIDE = frozenset(
    {"argmax", "argmin", "argsort", "searchsorted", "bucketize", "nonzero", "argwhere", "bincount", "count_nonzero"}
)
_KEEP = frozenset({
    "view", "view_as", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "t", "permute", "movedim",
    "swapaxes", "swapdims", "contiguous", "clone", "detach", "narrow", "select", "split", "chunk", "unbind", "expand",
    "expand_as", "repeat", "repeat_interleave", "tile", "roll", "flip", "index_select", "gather", "take", "masked_fill",
    "masked_fill_", "masked_select", "clamp", "clamp_", "clamp_min", "clamp_max", "clamp_min_", "clamp_max_", "abs", "neg",
    "abs_", "neg_", "copy_", "fill_", "zero_", "add_", "sub_", "mul_", "index_copy_", "index_put_", "index_add_", "scatter_",
    "scatter_add_", "where", "tril", "triu", "diagonal", "unfold", "amax", "amin", "maximum", "minimum", "bitwise_and",
    "bitwise_or", "bitwise_xor", "bitwise_not", "bitwise_left_shift", "bitwise_right_shift", "remainder", "floor_divide",
    "as_strided", "narrow_copy", "select_scatter", "slice_scatter", "index_copy", "index_put", "index_fill", "index_fill_",
    "sort_", "cummax", "new_empty", "new_zeros", "new_ones", "new_full", "pad", "constant_pad_nd", "rot90", "fliplr",
    "bitwise_and_", "bitwise_or_", "bitwise_xor_", "requires_grad_", "pin_memory", "neuron",
})  # fmt: skip
# Methods that only a tensor has: a call of one is evidence.
_TENSOR_ONLY = (_KEEP | _COMPARISONS | _TO_WIDE | _CASTS.keys()) - {
    "select", "split", "take", "t", "any", "all", "view", "repeat", "pad", "where", "less", "greater", "int", "long", "float", "bool",
    "abs", "roll", "flip", "clone", "byte", "char", "short", "double", "half", "tile", "equal_", "copy_", "flatten",
}  # fmt: skip
_NOT_TENSORS = frozenset({
    "item", "tolist", "size", "dim", "numel", "stride", "storage_offset", "element_size", "nelement", "data_ptr", "ndimension",
    "is_contiguous", "is_floating_point", "is_complex", "get_device", "bit_length", "numpy", "type_as_string",
})  # fmt: skip
_PLAIN_ATTRIBUTES = frozenset({
    "shape", "dtype", "device", "ndim", "itemsize", "nbytes", "is_cuda", "is_cpu", "layout", "requires_grad", "is_contiguous",
})  # fmt: skip
_VIEWS = frozenset({"T", "mT", "H", "mH", "data", "real", "imag"})
_FACTORIES = frozenset({
    "zeros", "ones", "empty", "empty_strided", "rand", "randn", "linspace", "logspace", "eye", "normal", "empty_like",
    "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
})  # fmt: skip
_TORCH_PLAIN = frozenset({
    "device", "iinfo", "finfo", "is_tensor", "Size", "compile", "no_grad", "inference_mode", "equal", "allclose", "is_nonzero",
    "get_default_dtype", "set_default_dtype", "numel", "is_floating_point", "Generator", "promote_types", "result_type",
    "can_cast", "jit", "typename", "library", "cuda", "neuron", "npu", "backends", "manual_seed", "compiler", "export", "is_complex",
})  # fmt: skip
# Where torch keeps functions that give tensors.
_OPERATOR_SPACES = frozenset({"", "nn.functional", "functional", "linalg", "special", "fft"})
_FLOAT_OPS = frozenset({
    "softmax", "log_softmax", "sigmoid", "silu", "gelu", "exp", "log", "sqrt", "rsqrt", "tanh", "sin", "cos", "erf", "softplus",
})  # fmt: skip
_PAIRS = frozenset({"topk", "sort", "max", "min", "kthvalue", "mode", "median", "cummax", "cummin"})
_PLAIN_BUILTINS = frozenset(
    {
        "int",
        "float",
        "len",
        "range",
        "str",
        "isinstance",
        "round",
        "divmod",
        "bool",
        "repr",
        "hash",
        "id",
        "ord",
        "print",
        "format",
    }
)
_CREATORS = frozenset(
    {"arange", "full", "tensor", "as_tensor", "randint", "randperm", "tril_indices", "triu_indices", "scalar_tensor"}
)

Names = Callable[[cst.CSTNode], str]
Env = dict[str, Value]


def canonical(dtype: str) -> str:
    """One name a dtype: ``long`` is ``int64``."""
    return _CANONICAL.get(dtype, dtype)


@dataclass
class Inference:
    """Values by the identity of the expression's node."""

    values: dict[int, Value]


def infer(module: cst.Module, names: Names) -> Inference:
    """Walk a module in order of execution, as far as reading allows, and note what each expression evidently is."""
    reader = _Reader(names)
    for statement in module.body:
        if isinstance(statement, cst.FunctionDef) and statement.returns is not None:
            reader.returns[statement.name.value] = reader.annotated(statement.returns)
    reader.block(module.body, {})
    return Inference(reader.values)


class _Reader:
    def __init__(self, names: Names) -> None:
        self.names = names
        self.values: dict[int, Value] = {}
        self.returns: dict[str, Value] = {}

    # -- statements ----------------------------------------------------------------------------------------------

    def block(self, statements: Iterable[cst.CSTNode], env: Env) -> None:
        for statement in statements:
            self.statement(statement, env)

    def suite(self, body: cst.BaseSuite, env: Env) -> None:
        self.block(body.body, env)

    def statement(self, node: cst.CSTNode, env: Env) -> None:
        if isinstance(node, cst.SimpleStatementLine):
            self.block(node.body, env)
        elif isinstance(node, cst.Expr):
            self.read(node.value, env)
        elif isinstance(node, cst.Assign):
            value = self.read(node.value, env)
            for target in node.targets:
                self.bind(target.target, value, env)
        elif isinstance(node, cst.AnnAssign):
            declared = self.annotated(node.annotation)
            value = self.read(node.value, env) if node.value is not None else UNKNOWN
            self.bind(node.target, value if value.tensor is not None else declared, env)
        elif isinstance(node, cst.AugAssign):
            before = self.read(node.target, env)
            other = self.read(node.value, env)
            # In place, a tensor keeps its dtype.
            value = before if before.tensor else _promote(before, other)
            self.bind(node.target, value, env)
        elif isinstance(node, cst.If):
            self.read(node.test, env)
            one, two = dict(env), dict(env)
            self.suite(node.body, one)
            if node.orelse is not None:
                (
                    self.statement(node.orelse, two)
                    if isinstance(node.orelse, cst.If)
                    else self.suite(node.orelse.body, two)
                )
            leaves_one, leaves_two = _leaves(node.body), node.orelse is not None and isinstance(
                node.orelse, cst.Else
            ) and _leaves(node.orelse.body)
            merged = (
                two if leaves_one and not leaves_two else one if leaves_two and not leaves_one else _merge(one, two)
            )
            env.clear()
            env.update(merged)
        elif isinstance(node, (cst.For, cst.While)):
            self.loop(node, env)
        elif isinstance(node, cst.With):
            for item in node.items:
                value = self.read(item.item, env)
                if item.asname is not None:
                    self.bind(item.asname.name, UNKNOWN if value.tensor is not False else value, env)
            self.suite(node.body, env)
        elif isinstance(node, (cst.Try, cst.TryStar)):
            self.suite(node.body, env)
            for handler in node.handlers:
                self.suite(handler.body, dict(env))
            if node.orelse is not None:
                self.suite(node.orelse.body, env)
            if node.finalbody is not None:
                self.suite(node.finalbody.body, env)
        elif isinstance(node, cst.FunctionDef):
            self.function(node, env)
        elif isinstance(node, cst.ClassDef):
            self.suite(node.body, dict(env))
        else:
            for child in node.children:
                if isinstance(child, cst.BaseExpression):
                    self.read(child, env)
                elif isinstance(child, (cst.BaseSuite, cst.BaseStatement, cst.BaseSmallStatement)):
                    self.statement(child, env)

    def loop(self, node: cst.For | cst.While, env: Env) -> None:
        each = UNKNOWN
        if isinstance(node, cst.For):
            each = self.element(node.iter, env)
            self.bind(node.target, each, env)
        else:
            self.read(node.test, env)
        inner = dict(env)
        self.suite(node.body, inner)
        # What the body changes is not what it was when the body starts over.
        again = _merge(env, inner)
        env.clear()
        env.update(again)
        if isinstance(node, cst.For):
            self.bind(node.target, each, again)
        self.suite(node.body, again)
        if node.orelse is not None:
            self.suite(node.orelse.body, env)

    def element(self, iterable: cst.BaseExpression, env: Env) -> Value:
        """What each element of an iterable evidently is."""
        over = self.read(iterable, env)
        if over.tensor:
            return replace(over, items=None)
        if over.items is not None:
            joined = over.items[0] if over.items else UNKNOWN
            for item in over.items[1:]:
                joined = _either(joined, item)
            return joined
        return PLAIN if _counts(iterable) else UNKNOWN

    def function(self, node: cst.FunctionDef, env: Env) -> None:
        inner = dict(env)
        listed = node.params
        for parameter in (*listed.posonly_params, *listed.params, *listed.kwonly_params):
            if parameter.default is not None:
                self.read(parameter.default, env)
            inner[parameter.name.value] = (
                self.annotated(parameter.annotation) if parameter.annotation is not None else UNKNOWN
            )
        for star in (listed.star_arg, listed.star_kwarg):
            if isinstance(star, cst.Param):
                inner[star.name.value] = UNKNOWN
        self.suite(node.body, inner)
        env[node.name.value] = PLAIN
        if node.returns is not None:
            self.returns[node.name.value] = self.annotated(node.returns)

    def annotated(self, node: cst.Annotation) -> Value:
        """What an annotation promises."""
        text = node.annotation
        if isinstance(text, cst.BinaryOperation):
            return TENSOR if self._names_tensor(text.left) or self._names_tensor(text.right) else UNKNOWN
        if self._names_tensor(text):
            return TENSOR
        name = self.names(text)
        plain = ("int", "float", "bool", "str", "bytes", "None", "torch.dtype", "torch.device", "torch.Size")
        return PLAIN if name in plain else UNKNOWN

    def _names_tensor(self, node: cst.CSTNode) -> bool:
        return self.names(node) in ("torch.Tensor", "torch.nn.Parameter")

    def bind(self, target: cst.CSTNode, value: Value, env: Env) -> None:
        if isinstance(target, cst.Name):
            env[target.value] = value
        elif isinstance(target, (cst.Tuple, cst.List)):
            items = value.items
            for index, element in enumerate(target.elements):
                starred = isinstance(element, cst.StarredElement)
                known = items is not None and index < len(items) and not starred and len(items) == len(target.elements)
                rest = PLAIN if value.tensor is False and items is None else UNKNOWN
                self.bind(element.value, items[index] if known and items is not None else rest, env)
        elif isinstance(target, (cst.Subscript, cst.Attribute)):
            self.read(target, env)

    # -- expressions ---------------------------------------------------------------------------------------------

    def read(self, node: cst.CSTNode, env: Env) -> Value:
        value = self._read(node, env)
        self.values[id(node)] = value
        return value

    def _read(self, node: cst.CSTNode, env: Env) -> Value:
        if isinstance(node, cst.Name):
            if node.value in ("True", "False", "None"):
                return PLAIN
            return env.get(node.value, self._dtype_of(node) or UNKNOWN)
        if isinstance(
            node, (cst.Integer, cst.Float, cst.Imaginary, cst.SimpleString, cst.ConcatenatedString, cst.Ellipsis)
        ):
            return PLAIN
        if isinstance(node, cst.FormattedString):
            for part in node.parts:
                if isinstance(part, cst.FormattedStringExpression):
                    self.read(part.expression, env)
            return PLAIN
        if isinstance(node, cst.Attribute):
            return self._attribute(node, env)
        if isinstance(node, cst.Call):
            return self._call(node, env)
        if isinstance(node, cst.BinaryOperation):
            one, two = self.read(node.left, env), self.read(node.right, env)
            divides = isinstance(node.operator, cst.Divide)
            joined = _promote(one, two, _float_literal(node.left) or _float_literal(node.right))
            return _divided(joined) if divides else joined
        if isinstance(node, cst.UnaryOperation):
            value = self.read(node.expression, env)
            return PLAIN if isinstance(node.operator, cst.Not) else value
        if isinstance(node, cst.Comparison):
            return self._comparison(node, env)
        if isinstance(node, cst.BooleanOperation):
            one, two = self.read(node.left, env), self.read(node.right, env)
            return PLAIN if one.tensor is False and two.tensor is False else UNKNOWN
        if isinstance(node, cst.IfExp):
            self.read(node.test, env)
            return _either(self.read(node.body, env), self.read(node.orelse, env))
        if isinstance(node, cst.Subscript):
            return self._subscript(node, env)
        if isinstance(node, (cst.Tuple, cst.List)):
            items = tuple(self.read(element.value, env) for element in node.elements)
            starred = any(isinstance(element, cst.StarredElement) for element in node.elements)
            return Value(tensor=False, items=None if starred else items)
        if isinstance(node, cst.NamedExpr):
            value = self.read(node.value, env)
            self.bind(node.target, value, env)
            return value
        if isinstance(node, (cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp)):
            self._comprehension(node, env)
            return Value(tensor=False)
        if isinstance(node, cst.Lambda):
            inner = dict(env)
            for parameter in node.params.params:
                inner[parameter.name.value] = UNKNOWN
            self.read(node.body, inner)
            return PLAIN
        for child in node.children:
            if isinstance(child, cst.BaseExpression):
                self.read(child, env)
            elif isinstance(child, (cst.BaseElement, cst.BaseDictElement, cst.Arg)):
                self._read(child, env)
        return UNKNOWN

    def _comprehension(self, node: cst.BaseComp, env: Env) -> None:
        inner = dict(env)
        part: cst.CompFor | None = node.for_in
        while part is not None:
            self.bind(part.target, self.element(part.iter, inner), inner)
            for test in part.ifs:
                self.read(test.test, inner)
            part = part.inner_for_in
        for child in node.children:
            if isinstance(child, cst.BaseExpression):
                self.read(child, inner)

    def _dtype_of(self, node: cst.CSTNode) -> Value | None:
        name = self.names(node)
        last = name.removeprefix("torch.")
        if name.startswith("torch.") and last in DTYPES:
            return Value(tensor=False, dtype=canonical(last), is_dtype=True)
        return None

    def _attribute(self, node: cst.Attribute, env: Env) -> Value:
        dtype = self._dtype_of(node)
        if dtype is not None:
            return dtype
        owner = self.read(node.value, env)
        word = node.attr.value
        if word == "dtype":
            return Value(tensor=False, dtype=owner.dtype, is_dtype=owner.dtype is not None)
        if word in _PLAIN_ATTRIBUTES:
            return PLAIN
        if word in _VIEWS and owner.tensor:
            return owner
        return UNKNOWN

    def _comparison(self, node: cst.Comparison, env: Env) -> Value:
        values = [self.read(node.left, env), *(self.read(one.comparator, env) for one in node.comparisons)]
        if any(isinstance(one.operator, (cst.Is, cst.IsNot, cst.In, cst.NotIn)) for one in node.comparisons):
            return PLAIN
        if any(value.tensor for value in values):
            return BOOL
        return PLAIN if any(value.tensor is False for value in values) else UNKNOWN

    def _subscript(self, node: cst.Subscript, env: Env) -> Value:
        owner = self.read(node.value, env)
        for element in node.slice:
            if isinstance(element.slice, cst.Index):
                self.read(element.slice.value, env)
            elif isinstance(element.slice, cst.Slice):
                for bound in (element.slice.lower, element.slice.upper, element.slice.step):
                    if bound is not None:
                        self.read(bound, env)
        if owner.items is not None:
            return _item(owner.items, node)
        if owner.tensor:
            return owner
        return PLAIN if owner.tensor is False else UNKNOWN

    def _call(self, node: cst.Call, env: Env) -> Value:
        arguments = [self.read(one.value, env) for one in node.args]
        keywords = {
            one.keyword.value: value for one, value in zip(node.args, arguments, strict=True) if one.keyword is not None
        }
        name = self.names(node.func)
        if isinstance(node.func, cst.Name) and node.func.value in _PLAIN_BUILTINS:
            return PLAIN
        if isinstance(node.func, cst.Name) and node.func.value in ("min", "max", "sum", "abs", "pow"):
            plain = bool(arguments) and all(value.tensor is False for value in arguments)
            return PLAIN if plain else UNKNOWN
        if name.startswith("torch."):
            return self._torch(name.removeprefix("torch."), node, arguments, keywords)
        if isinstance(node.func, cst.Name):
            return self.returns.get(node.func.value, UNKNOWN)
        if isinstance(node.func, cst.Attribute):
            return self._method(node.func, node, arguments, keywords, env)
        self.read(node.func, env)
        return UNKNOWN

    def _torch(self, name: str, node: cst.Call, arguments: list[Value], keywords: dict[str, Value]) -> Value:
        space, _, last = name.rpartition(".")
        if name.partition(".")[0] in _TORCH_PLAIN or last in DTYPES:
            return PLAIN
        if (
            space not in _OPERATOR_SPACES
            or last.startswith(("_", "is_", "get_", "set_"))
            or (last[:1].isupper() and last != "Tensor")
        ):
            return UNKNOWN
        given = keywords.get("dtype")
        if given is not None and given.is_dtype:
            return Value(tensor=True, dtype=given.dtype)
        first = arguments[0] if arguments else UNKNOWN
        if given is not None:
            return TENSOR
        if last in _CREATORS:
            return Value(tensor=True, dtype=_created(last, node))
        if last in _FACTORIES:
            return Value(tensor=True, dtype=first.dtype if last.endswith("_like") else "float32")
        if last in _PAIRS and not (last in ("max", "min") and len(node.args) == 1):
            both = Value(tensor=False, items=(Value(tensor=True, dtype=first.dtype), WIDE))
            return (
                _promote(first, arguments[1])
                if last in ("max", "min") and len(arguments) > 1 and arguments[1].tensor
                else both
            )
        if last in ("cat", "stack", "concat", "concatenate", "hstack", "vstack", "cumsum", "sum", "where"):
            return self._torch_joined(last, node, arguments)
        return self._operation(last, first, arguments[1:])

    def _torch_joined(self, last: str, node: cst.Call, arguments: list[Value]) -> Value:
        first = arguments[0] if arguments else UNKNOWN
        if last in ("cat", "stack", "concat", "concatenate", "hstack", "vstack"):
            dtypes = {item.dtype for item in first.items or ()}
            return Value(tensor=True, dtype=next(iter(dtypes)) if len(dtypes) == 1 else None)
        if last in ("cumsum", "sum"):
            return Value(tensor=True, dtype=_summed(first))
        if len(arguments) < 3:
            return Value(tensor=False, items=None)
        joined = _promote(arguments[1], arguments[2])
        if joined.tensor is False:
            both = [one.value for one in node.args[1:3]]
            return Value(tensor=True, dtype="int64" if all(isinstance(one, cst.Integer) for one in both) else None)
        return Value(tensor=True, dtype=joined.dtype)

    def _method(
        self, function: cst.Attribute, node: cst.Call, arguments: list[Value], keywords: dict[str, Value], env: Env
    ) -> Value:
        owner = self.read(function.value, env)
        word = function.attr.value
        if word in _NOT_TENSORS:
            return PLAIN
        if owner.tensor is False and not (owner.items and word in _TENSOR_ONLY):
            return UNKNOWN if word not in _TENSOR_ONLY else TENSOR
        given = keywords.get("dtype") or next((value for value in arguments if value.is_dtype), None)
        if given is not None and word in (
            "to",
            "view",
            "type",
            "sum",
            "cumsum",
            "softmax",
            "mean",
            "prod",
            "new_empty",
            "new_zeros",
            "new_ones",
            "new_full",
            "amax",
            "bitwise_and",
        ):
            return Value(tensor=True, dtype=given.dtype, expanded=owner.expanded and word == "view")
        if word in ("to", "view", "type") and "dtype" in keywords:
            return TENSOR
        if word in _CASTS and not node.args:
            return Value(tensor=True, dtype=_CASTS[word])
        if owner.tensor is None and word not in _TENSOR_ONLY:
            return UNKNOWN
        if word in ("expand", "expand_as", "broadcast_to"):
            return Value(tensor=True, dtype=owner.dtype, expanded=True)
        if word in _PAIRS and not (word in ("max", "min") and not node.args):
            return Value(tensor=False, items=(Value(tensor=True, dtype=owner.dtype), WIDE))
        if word in ("split", "chunk", "unbind", "tensor_split"):
            return UNKNOWN
        if word in ("sum", "cumsum"):
            return Value(tensor=True, dtype=_summed(owner))
        if word in ("to", "view", "type"):
            kept = word == "view" or not any(value.tensor is None for value in arguments)
            return Value(tensor=True, dtype=owner.dtype if kept else None)
        return self._operation(word, owner, arguments)

    def _operation(self, word: str, first: Value, rest: list[Value]) -> Value:
        if word in _COMPARISONS:
            return BOOL
        if word in _TO_WIDE:
            return WIDE
        if word in ("maximum", "minimum", "add", "sub", "mul", "subtract", "multiply") and rest:
            return replace(_promote(first, rest[0]), tensor=True)
        if word in _KEEP:
            expanded = first.expanded and word in ("contiguous", "clone", "view", "unsqueeze", "reshape")
            return Value(tensor=True, dtype=first.dtype, expanded=expanded)
        if word in _FLOAT_OPS:
            return Value(tensor=True, dtype=first.dtype if first.dtype in FLOATS else None)
        return TENSOR


# -- helpers -----------------------------------------------------------------------------------------------------


def _created(name: str, node: cst.Call) -> str | None:
    """dtype that torch gives a tensor made without one."""
    values = [one.value for one in node.args if one.keyword is None]
    if name == "arange":
        return "float32" if any(_float_literal(value) for value in values) else "int64"
    if name == "full":
        fill = next(
            (one.value for one in node.args if one.keyword is not None and one.keyword.value == "fill_value"), None
        )
        fill = fill if fill is not None else values[1] if len(values) > 1 else None
        return _literal_dtype(fill)
    if name in ("tensor", "as_tensor", "scalar_tensor"):
        return _literal_dtype(values[0]) if values else None
    return "int64"


def _literal_dtype(node: cst.CSTNode | None) -> str | None:
    if isinstance(node, (cst.List, cst.Tuple)):
        dtypes = {_literal_dtype(element.value) for element in node.elements}
        return next(iter(dtypes)) if len(dtypes) == 1 else None
    if isinstance(node, cst.UnaryOperation):
        return _literal_dtype(node.expression)
    if isinstance(node, cst.Integer):
        return "int64"
    if node is not None and _float_literal(node):
        return "float32"
    if isinstance(node, cst.Name) and node.value in ("True", "False"):
        return "bool"
    return None


def _float_literal(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.UnaryOperation):
        return _float_literal(node.expression)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == "float":
        return True
    return isinstance(node, cst.Float)


def _counts(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == "range"


def _leaves(body: cst.BaseSuite) -> bool:
    last = body.body[-1] if body.body else None
    if isinstance(last, cst.SimpleStatementLine) and last.body:
        last = last.body[-1]
    return isinstance(last, (cst.Return, cst.Raise, cst.Continue, cst.Break))


def _summed(value: Value) -> str | None:
    return "int64" if value.dtype in INTEGERS or value.dtype == "bool" else value.dtype


def _divided(value: Value) -> Value:
    if value.tensor and (value.dtype in INTEGERS or value.dtype == "bool"):
        return replace(value, dtype="float32")
    return value


def _promote(one: Value, two: Value, floating: bool = False) -> Value:
    if one.tensor is False and two.tensor is False:
        return PLAIN
    if not one.tensor and not two.tensor:
        return UNKNOWN
    if one.tensor and two.tensor:
        return Value(tensor=True, dtype=_wider(one.dtype, two.dtype))
    known, other = (one, two) if one.tensor else (two, one)
    if other.tensor is None:
        return TENSOR
    if floating and (known.dtype in INTEGERS or known.dtype == "bool"):
        return Value(tensor=True, dtype="float32")
    return Value(tensor=True, dtype=known.dtype if known.dtype != "bool" else None)


def _wider(one: str | None, two: str | None) -> str | None:
    if one is None or two is None:
        return None
    if one == two:
        return one
    if one in FLOATS and (two in INTEGERS or two == "bool"):
        return one
    if two in FLOATS and (one in INTEGERS or one == "bool"):
        return two
    if one in _RANK and two in _RANK and _RANK[one] != _RANK[two]:
        return one if _RANK[one] > _RANK[two] else two
    return None


def _either(one: Value, two: Value) -> Value:
    if one == two:
        return one
    tensor = one.tensor if one.tensor == two.tensor else None
    return Value(tensor=tensor, dtype=one.dtype if tensor and one.dtype == two.dtype else None)


def _merge(one: Env, two: Env) -> Env:
    return {name: _either(one.get(name, UNKNOWN), two.get(name, UNKNOWN)) for name in one.keys() | two.keys()}


def _item(items: tuple[Value, ...], node: cst.Subscript) -> Value:
    element = node.slice[0].slice if len(node.slice) == 1 else None
    if isinstance(element, cst.Index) and isinstance(element.value, cst.Integer):
        index = int(element.value.value, 0)
        return items[index] if index < len(items) else UNKNOWN
    return UNKNOWN
