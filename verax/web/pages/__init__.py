"""The pages: what is on each of them, in one frame."""

from __future__ import annotations

import json
from html import escape
from http import HTTPStatus
from pathlib import Path
from string import Template

from verax.samplers import registry

# Pages and their titles; the first four are linked from every page.
NAMES = {
    "compare": "Compare",
    "plan": "Plan",
    "runs": "Runs",
    "federated": "Federated",
    "api": "JSON API",
    "login": "Log in",
}
LINKED = tuple(NAMES)[:4]
_HERE = Path(__file__).parent
_FRAME = Template((_HERE / "frame.html").read_text(encoding="utf-8"))
_LINK = Template('      <li><a href="/$name"$mark>$title</a></li>')
_SCRIPTS = Template(
    '<script type="application/json" id="samplers">$samplers</script>\n'
    '  <script type="module" src="/static/$name.js"></script>'
)
_PAGE = Template(
    '<noscript><p class="problem">This page needs JavaScript. The same is on the command line: '
    "<code>verax --help</code>.</p></noscript>\n$content"
)
_PROBLEM = Template('<p class="problem">$words</p>\n')


def page(name: str) -> str:
    """A whole page.

    >>> "<title>Plan – verax</title>" in page("plan")
    True
    """
    labels = {one: registry.named(one).label for one in registry.plannable()}
    samplers = json.dumps(labels).replace("<", "\\u003c")  # no tag, and so no end of the script
    script = _SCRIPTS.substitute(samplers=samplers, name=name)
    content = (_HERE / f"{name}.html").read_text(encoding="utf-8")
    return _frame(NAMES[name], _PAGE.substitute(content=content), name, script)


def problem(status: int, words: str) -> str:
    """A page in the place of one that there is not.

    >>> "<h1>Not Found</h1>" in problem(404, "there is no page at this address")
    True
    """
    said = escape(words[:1].upper() + words[1:])
    return _frame(HTTPStatus(status).phrase, _PROBLEM.substitute(words=said))


def _frame(title: str, content: str, name: str = "", script: str = "") -> str:
    links = "\n".join(
        _LINK.substitute(
            name=one, title=NAMES[one], mark=' aria-current="page"' if one == name else ""
        )
        for one in LINKED
    )
    return _FRAME.substitute(title=title, script=script, links=links, content=content)
