"""How docstrings become pages of the reference: examples as code, names without their roles."""

import re

import griffe

_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):(?=`)")
_EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)  # from a prompt to the next empty line


class Plain(griffe.Extension):
    """Fence doctests, which Markdown would take for quotations, and drop the roles before names."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite one docstring before it is parsed."""
        if obj.docstring:
            text = _ROLE.sub("", obj.docstring.value)
            obj.docstring.value = _EXAMPLE.sub(lambda block: f"```pycon\n{block[0]}\n```", text)
