"""The pages: what is on each of them, in one frame."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

NAMES = ("compare", "plan", "runs", "federated", "api", "login")
LINKED = NAMES[:4]
_HERE = Path(__file__).parent


def page(name: str) -> str:
    """A whole page; its title is its heading.

    >>> "<title>Plan – verax</title>" in page("plan")
    True
    """
    content = (_HERE / f"{name}.html").read_text(encoding="utf-8")
    frame = Template((_HERE / "frame.html").read_text(encoding="utf-8"))
    heading = re.search("<h1>(.*)</h1>", content)
    assert heading is not None  # noqa: S101
    links = "\n".join(f"      <li>{_link(one, one == name)}</li>" for one in LINKED)
    return frame.substitute(title=heading[1], name=name, links=links, content=content)


def _link(name: str, here: bool) -> str:
    mark = ' aria-current="page"' if here else ""
    return f'<a href="/{name}"{mark}>{name.capitalize()}</a>'
