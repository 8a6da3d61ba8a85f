"""The pages: templates in one frame, with a description of what their forms can ask."""

from __future__ import annotations

import json
from html import escape
from http import HTTPStatus
from pathlib import Path
from string import Template

from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import Scope

from verax.web.requests import CompareRequest, FederatedRequest, PlanRequest, RunRequest

# Pages and their titles; the first four are linked from every page.
TITLES = {
    "compare": "Compare",
    "plan": "Plan",
    "runs": "Runs",
    "federated": "Federated",
    "api": "JSON API",
    "login": "Log in",
}
LINKED = tuple(TITLES)[:4]
_FORMS = {
    "compare": CompareRequest,
    "plan": PlanRequest,
    "runs": RunRequest,
    "federated": FederatedRequest,
}
_TEMPLATES = {
    path.stem: Template(path.read_text(encoding="utf-8"))
    for path in (Path(__file__).parent / "templates").glob("*.html")
}


def page(name: str) -> str:
    """A whole page.

    >>> "<title>Plan – verax</title>" in page("plan")
    True
    """
    fields = _FORMS[name].model_json_schema()["properties"] if name in _FORMS else {}
    shared = {part: _fill(part) for part in ("bar", "figure", "numbers", "evidence")}
    script = _fill("script", name=name, fields=json.dumps(fields).replace("<", "\\u003c"))
    content = _fill("noscript") + _fill(name, **shared)
    return _frame(TITLES[name], content, name, script)


def problem_page(status: int, words: str) -> str:
    """A page in the place of one that there is not.

    >>> "<h1>Not Found</h1>" in problem_page(404, "there is no page at this address")
    True
    """
    content = _fill("problem", words=escape(words[:1].upper() + words[1:]))
    return _frame(HTTPStatus(status).phrase, content)


def problem_response(scope: Scope, status: int, words: str, headers: dict[str, str]) -> Response:
    """A problem: a page for those who look, JSON for programs."""
    if wants_page(scope):
        return HTMLResponse(problem_page(status, words), status, headers)
    return JSONResponse({"message": words}, status, headers)


def wants_page(scope: Scope) -> bool:
    """Whether somebody looks at the answer in a browser, rather than a program that reads JSON."""
    if scope["path"].startswith(("/api/", "/static/")):
        return False
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])


def _frame(title: str, content: str, name: str = "", script: str = "") -> str:
    links = "".join(
        _fill(
            "link", name=one, title=TITLES[one], mark=' aria-current="page"' if one == name else ""
        )
        for one in LINKED
    )
    return _fill("frame", title=title, script=script, links=links, content=content)


def _fill(template: str, **values: str) -> str:
    return _TEMPLATES[template].substitute(values)
