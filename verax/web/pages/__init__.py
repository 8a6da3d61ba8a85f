"""The pages: what is on each of them, in one frame."""

from __future__ import annotations

import json
import re
from html import escape
from http import HTTPStatus
from pathlib import Path
from string import Template

from verax.samplers import registry

NAMES = ("compare", "plan", "runs", "federated", "api", "login")
LINKED = NAMES[:4]
_HERE = Path(__file__).parent
_NO_SCRIPT = (
    '<noscript><p class="problem">This page needs JavaScript. The same is on the command line: '
    "<code>verax --help</code>.</p></noscript>\n"
)


def page(name: str) -> str:
    """A whole page; its title is its heading.

    >>> "<title>Plan – verax</title>" in page("plan")
    True
    """
    content = (_HERE / f"{name}.html").read_text(encoding="utf-8")
    heading = re.search("<h1>(.*)</h1>", content)
    assert heading is not None  # noqa: S101
    data = f'<script type="application/json" id="samplers">{_samplers()}</script>'
    script = f'{data}\n  <script type="module" src="/static/{name}.js"></script>'
    return _framed(heading[1], _NO_SCRIPT + content, name, script)


def problem(status: int, words: str) -> str:
    """A page in the place of one that there is not.

    >>> "<h1>Not Found</h1>" in problem(404, "there is no page at this address")
    True
    """
    heading = HTTPStatus(status).phrase
    said = escape(words[:1].upper() + words[1:])
    content = f'<h1>{heading}</h1>\n<p class="problem">{said}</p>\n'
    return _framed(heading, content, "", "")


def _framed(title: str, content: str, name: str, script: str) -> str:
    frame = Template((_HERE / "frame.html").read_text(encoding="utf-8"))
    links = "\n".join(f"      <li>{_link(one, one == name)}</li>" for one in LINKED)
    return frame.substitute(title=title, script=script, links=links, content=content)


def _samplers() -> str:
    """Labels of samplers by name, as JSON that cannot end the element it stands in."""
    labels = {name: registry.named(name).label for name in registry.plannable()}
    return json.dumps(labels).replace("<", "\\u003c")


def _link(name: str, here: bool) -> str:
    mark = ' aria-current="page"' if here else ""
    return f'<a href="/{name}"{mark}>{name.capitalize()}</a>'
