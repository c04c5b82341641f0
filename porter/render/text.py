"""Templates: where they are, what they digest to, and rendering one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from porter.errors import RenderError
from porter.tree import sha256

if TYPE_CHECKING:
    import jinja2


def templates_folder() -> Path:
    """Folder of the templates: beside the package in a checkout, inside it when installed."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "_templates"
    return inside if inside.is_dir() else package.parent / "templates"


@cache
def _environment() -> jinja2.Environment:
    import jinja2  # a warm check renders nothing and must not pay for it

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_folder()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def templates_digest() -> str:
    """Digest of every template's name and text."""
    rows = [f"{path.name}:{sha256(path.read_bytes())}" for path in sorted(templates_folder().glob("*.j2"))]
    return sha256("\n".join(rows).encode())


def render_template(name: str, context: dict[str, object], *, target: str) -> str:
    """Render one template.

    Raises:
        RenderError: the template cannot be found or fails; ``target`` is the file that it was for.
    """
    import jinja2

    try:
        return _environment().get_template(name).render(context)
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None)
        raise RenderError(
            f"cannot render {target}: {error}", path=f"templates/{name}", line=line, fix="mend the template"
        ) from error
