"""Bindings of ``TORCH_LIBRARY`` blocks: operators by schema or by function, their implementations, custom classes."""

from __future__ import annotations

from tree_sitter import Node

from porter.surface.cpp_callable import Extras, describe, signature_of
from porter.surface.cpp_frame import (
    ClassHandle,
    Frame,
    Handle,
    LibraryHandle,
    callee,
    constant_string,
    meaningful,
    template_arguments,
)
from porter.surface.cpp_record import Implementation, Recorder, join_path, name_place
from porter.surface.cpp_schema import read_schema
from porter.surface.cpp_tokens import digest_tokens
from porter.surface.model import BindingFacts, DocFact


class LibraryBinder:
    """Records operators with a recorder; they are found under ``torch.ops.<namespace>``."""

    def __init__(self, record: Recorder) -> None:
        self.record = record

    def method(
        self, handle: LibraryHandle, name: str, function: Node, arguments: list[Node], node: Node, frame: Frame
    ) -> Handle | None:
        """Carry out ``library.name(arguments)``."""
        scope = f"torch.ops.{handle.namespace}"
        if name == "fallback":
            return handle
        if name == "class_":
            member = function.child_by_field_name("field")
            listed = template_arguments(member) if member is not None else []
            word = constant_string(arguments[0], frame) if arguments else None
            if word is None or not listed:
                self.record.unresolved(node, frame, "a class without a literal name")
                return None
            scope = f"torch.classes.{handle.namespace}"
            found = self.record.sources.classes(listed[0], frame.place)
            digest = digest_tokens(sorted({one.file.source(one.node) for one in found})) if found else ""
            self.record.add(
                BindingFacts(scope, word, "class", frame.file.name, frame.file.line(node), digest=digest), node, frame
            )
            return ClassHandle(join_path(scope, word), scope, listed[0])
        text = self._schema_text(arguments[0], frame) if arguments else None
        if name in ("def", "impl") and text is None:
            self.record.unresolved(node, frame, "an operator without a literal schema")
            return handle
        if name == "impl" and text is not None:
            what = describe(arguments[-1], frame, self.record.sources)
            self.record.implementations.append(Implementation(handle.namespace, text.rpartition("::")[2], what.digest))
            return handle
        if name != "def" or text is None:
            self.record.unresolved(node, frame, f"an operator method `{name}` that is not known")
            return handle
        given = (
            describe(arguments[1], frame, self.record.sources)
            if len(arguments) > 1 and arguments[1].type != "initializer_list"
            else None
        )
        path, line = name_place(node, frame)
        if "(" in text:
            schema = read_schema(text)
            if isinstance(schema, str):
                self.record.add(
                    BindingFacts(scope, text.partition("(")[0].strip(), "function", path, line, opaque=schema),
                    node,
                    frame,
                )
                return handle
            docs: tuple[DocFact, ...] = schema.docs
            self.record.add(
                BindingFacts(
                    scope, schema.name, "function", path, line, schema.signature, docs=docs, notes=schema.notes,
                    digest=given.digest if given is not None else "",
                ),
                node,
                frame,
            )  # fmt: skip
            return handle
        # Without a schema torch makes one from the C++ types; its argument names are not the C++ ones.
        word = text.rpartition("::")[2].partition(".")[0]
        if given is None:
            self.record.add(
                BindingFacts(scope, word, "function", path, line, opaque="neither schema nor function"), node, frame
            )
            return handle
        read = signature_of(given, Extras(), self.record.sources, drops_self=False)
        self.record.add(
            BindingFacts(
                scope, word, "function", path, line, read.signature, read.opaque, digest=given.digest, notes=read.notes
            ),
            node,
            frame,
        )
        return handle

    def _schema_text(self, node: Node, frame: Frame) -> str | None:
        if node.type == "call_expression":
            function, inner = node.child_by_field_name("function"), meaningful(node.child_by_field_name("arguments"))
            if (
                function is not None
                and callee(function).rpartition("::")[2] in ("schema", "TORCH_SELECTIVE_SCHEMA", "TORCH_SELECTIVE_NAME")
                and inner
            ):
                return self._schema_text(inner[0], frame)
        return constant_string(node, frame)
