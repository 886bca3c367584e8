"""Show docstrings and notebooks on the site: formulas as MathML, roles as code or links."""

import re
import textwrap
from typing import Any

import griffe
from latex2mathml.converter import convert

_BLOCK = re.compile(r"^([ ]*)\.\. math::[ ]*\n((?:\1[ ]+.*\n|[ ]*\n)+)", re.MULTILINE)
_ROLE = re.compile(r":(\w+):`~?([^`]+)`")


class FormulasAndRoles(griffe.Extension):
    """Rewrites every docstring once it was read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = rewrite(obj.docstring.value)


def rewrite(text: str) -> str:
    """Return a docstring in Markdown."""
    text = _BLOCK.sub(_render_block, text + "\n")
    text = _ROLE.sub(_render_role, text)
    # the section that shows code
    text = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE)
    return text.replace("::\n\n", ":\n\n").rstrip()


def _render_block(match: re.Match[str]) -> str:
    indent, formula = match.groups()
    formula = " ".join(textwrap.dedent(formula).split())
    return f'\n{indent}<div class="formula">{convert(formula, display="block")}</div>\n\n'


def _render_role(match: re.Match[str]) -> str:
    role, content = match.groups()
    if role == "math":
        return convert(" ".join(content.split()))
    return f"`{content}`"
