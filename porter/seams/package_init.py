"""deepinfer/__init__.py: the extension's folder tag, basic-mode defaults and the vendor path, before anything else runs."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from porter.seams.model import Edit, Seam
from porter.seams.pysource import PythonSource, python_edits


def _edits(source: PythonSource) -> tuple[Edit, ...]:
    tag = source.function("_so_platform_tag", parameters=[])
    known = source.one(
        source.all(
            tag,
            cst.Tuple,
            m.Tuple(elements=[m.Element(m.SimpleString('"nvidia"')), m.Element(m.SimpleString('"ascend"'))]),
        ),
        'the tuple ("nvidia", "ascend")',
        tag,
    )
    extends_path = m.If(
        body=m.IndentedBlock(body=[m.SimpleStatementLine(body=[m.Expr(m.Call(func=_append_to_path()))])])
    )
    search = source.one(
        source.top_level(cst.If, extends_path),
        "an if that appends the extension's folder to __path__",
        source.module,
    )
    return (
        source.insert_after(known.elements[-1].value, ', "neuron"'),
        source.after(
            search,
            """
            if envs.DEEPINFER_ACCELERATOR == "neuron":
                from deepinfer.neuron_ops import bootstrap

                bootstrap.start(__path__, _so_dir)
            """,
        ),
    )


def _append_to_path() -> m.Attribute:
    return m.Attribute(value=m.Name("__path__"), attr=m.Name("append"))


SEAM = Seam(
    "package-init",
    "deepinfer/__init__.py",
    "extension folder tag, basic-mode defaults, vendor path",
    python_edits(_edits),
)
