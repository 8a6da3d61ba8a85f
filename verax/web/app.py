"""The application: pages and the JSON API. It computes nothing itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import Field
from starlette.exceptions import HTTPException as StarletteHTTPException

import verax
from verax.web import answers, ledgers, pages, questions, shapes
from verax.web.desk import CRASHED, Desk, EventStream
from verax.web.guard import COOKIE, BodyLimit, Guard, wants_page
from verax.web.pool import Busy, Crashed, Refused, Task
from verax.web.settings import Settings

STATIC = Path(__file__).parent / "static"
_FRESH = {"Cache-Control": "no-cache"}
_TYPES = {
    "html": "text/html; charset=utf-8",
    "json": "application/json",
    "txt": "text/plain; charset=utf-8",
}
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events: `part`, then `end` or `error`.",
        "content": {"text/event-stream": {}},
    }
}
_LEDGER = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_Name = Annotated[
    str, Query(min_length=1, max_length=400, description="A ledger in the folder of the server.")
]

_Names = Annotated[list[Annotated[str, Field(max_length=400)]], Query(min_length=1, max_length=10)]
_SEVERAL = {
    "/api/compare": "sampler",
    "/api/plan": "sampler",
    "/api/run/statement": "name",
    "/api/run/together": "name",
}
"""The one parameter that may be repeated, by path."""


class _Files(StaticFiles):
    """Scripts and styles. Starlette 0.38 raises ValueError where a path has a NUL byte."""

    def lookup_path(self, path: str) -> tuple[str, Any]:
        """The file at a path, or nothing, which is answered with 404."""
        return ("", None) if "\0" in path else super().lookup_path(path)


def create_app(settings: Settings | None = None) -> Guard:
    """The application, an ASGI callable; its ``api`` is the FastAPI object.

    >>> sorted(create_app().api.openapi()["paths"])[:2]
    ['/api/about', '/api/compare']
    """
    settings = settings or Settings()
    desk = Desk(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await desk.pool.start()
        yield
        await desk.pool.stop()

    api = FastAPI(
        title="verax",
        version=verax.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        responses=shapes.PROBLEMS,
        dependencies=[Depends(_once)],
        description="The privacy of DP-SGD: brackets, plans, ledgers. "
        "Words and units are those of the Python API.",
    )
    large = dict.fromkeys(("/api/run", "/api/run/statement"), settings.upload)
    api.add_middleware(BodyLimit, large=large, seconds=settings.stream_seconds)
    _problems(api)
    _questions(api, desk)
    _runs(api, desk)
    _pages(api, settings)
    return Guard(api, settings)


async def _once(request: Request) -> None:
    """Refuse a parameter that is given twice: all but one of its values would be dropped."""
    path = request.url.path.removesuffix("/stream").removesuffix("/changes")
    if not path.startswith("/api/"):  # a page reads its address itself
        return
    for name in dict.fromkeys(request.query_params):
        given = request.query_params.getlist(name)
        if len(given) > 1 and name != _SEVERAL.get(path):
            other = "; /api/run/together takes several ledgers" if name == "name" else ""
            raise Refused(f"{name[:40]} must be given once, got {len(given)} values{other}")


def _problem(request: Request, status: int, words: str, **headers: str) -> Response:
    """A message: a page for those who look, JSON for programs."""
    if wants_page(request.scope):
        return HTMLResponse(pages.problem(status, words), status, headers=headers)
    return JSONResponse({"message": words}, status, headers=headers)


def _problems(api: FastAPI) -> None:
    """Every error is a message, and none a traceback."""

    @api.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return _problem(
            request, 422, "; ".join(dict.fromkeys(_said(one) for one in error.errors()[:5]))
        )

    @api.exception_handler(StarletteHTTPException)
    async def known(request: Request, error: StarletteHTTPException) -> Response:
        words = str(error.detail)
        if (
            error.status_code == 404
            and words == HTTPStatus.NOT_FOUND.phrase
            and wants_page(request.scope)
        ):
            words = "there is no page at this address"
        return _problem(request, error.status_code, words, **(error.headers or {}))

    @api.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return _problem(request, 422, str(error))

    @api.exception_handler(Busy)
    async def busy(request: Request, error: Busy) -> Response:
        return _problem(request, 503, str(error), **{"Retry-After": "2"})

    @api.exception_handler(Crashed)
    async def crashed(request: Request, _: Crashed) -> Response:
        return _problem(request, 500, CRASHED)

    @api.exception_handler(Exception)
    async def unexpected(request: Request, _: Exception) -> Response:
        return _problem(request, 500, CRASHED)


def _said(error: dict[str, Any]) -> str:
    """One error of validation in words: the parameter, what is allowed, and what was given."""
    name = (
        ".".join(str(part) for part in error["loc"] if part not in ("query", "body", "path"))
        or "the question"
    )
    words = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "value_error":
        return words
    given = repr(error.get("input"))
    if len(given) > 60:
        given = f"{given[:60]}..."
    return f"{name}: {words[0].lower()}{words[1:]}, got {given}"


def _about(settings: Settings) -> shapes.About:
    return shapes.About(
        verax=verax.__version__, folder=settings.runs is not None, largest_ledger=settings.upload
    )


def _questions(api: FastAPI, desk: Desk) -> None:
    @api.get("/api/about")
    async def about() -> shapes.About:
        """What this server is."""
        return _about(desk.settings)

    @api.get("/api/compare")
    async def compare(asked: Annotated[questions.Compare, Query()]) -> shapes.Comparison:
        """Brackets on the epsilon of one run under several samplers, and curves."""
        return shapes.Comparison(**_sorted(await desk.whole(answers.compare(asked))))

    @api.get("/api/compare/stream", response_model=None, responses=_EVENTS)
    async def compare_stream(asked: Annotated[questions.Compare, Query()]) -> EventStream:
        """The same piece by piece; a `provisional` part is true, and a better one follows."""
        return desk.stream(answers.compare(asked))

    @api.get("/api/plan")
    async def plan(asked: Annotated[questions.Plan, Query()]) -> shapes.Frontier:
        """The smallest proved noise for every batch size and number of epochs, best plan first."""
        first, *middle, last = await desk.whole(answers.plan(asked))
        plans = [part["plan"] for part in middle if part["plan"]]
        best = set(last["undominated"])
        return shapes.Frontier(
            plans=[plans[i] | {"undominated": i in best} for i in last["ranked"]],
            full_batch_signal=first["full_batch_signal"],
            notes=first["notes"],
            left_out=[part["why_not"] for part in middle if not part["plan"]],
        )

    @api.get("/api/plan/stream", response_model=None, responses=_EVENTS)
    async def plan_stream(asked: Annotated[questions.Plan, Query()]) -> EventStream:
        """The same piece by piece: the number of plans, each plan, and how they rank."""
        return desk.stream(answers.plan(asked))

    @api.get("/api/plan/changes")
    async def changes(asked: Annotated[questions.Chosen, Query()]) -> list[shapes.Change]:
        """What changes to one plan cost."""
        return [shapes.Change(**part) for part in await desk.whole(answers.costs(asked))]

    @api.get("/api/federated")
    async def federated(asked: Annotated[questions.Federated, Query()]) -> shapes.Participation:
        """A client that takes part at random, next to CS (the least), WCS and OLS (the most)."""
        return shapes.Participation(**_sorted(await desk.whole(answers.federated(asked))))

    @api.get("/api/federated/stream", response_model=None, responses=_EVENTS)
    async def federated_stream(asked: Annotated[questions.Federated, Query()]) -> EventStream:
        """The same piece by piece."""
        return desk.stream(answers.federated(asked))


def _sorted(parts: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    kinds: dict[str, list[dict[str, Any]]] = {
        "rows": [],
        "points": [],
        "curves": [],
        "observers": [],
    }
    for part in parts:
        kinds[f"{part['kind']}s"].append(part)
    return kinds


def _runs(api: FastAPI, desk: Desk) -> None:
    def source(name: str) -> ledgers.Source:
        folder = desk.settings.runs
        path = None if folder is None else ledgers.inside(folder, name)
        if path is None:
            raise HTTPException(
                404,
                "no such ledger in the folder of this server; GET /api/runs lists what there is",
            )
        return name, None, str(path)

    missing: dict[int | str, dict[str, Any]] = {
        404: {"model": shapes.Problem, "description": "no such ledger"}
    }
    large: dict[int | str, dict[str, Any]] = {
        413: {"model": shapes.Problem, "description": "the ledger is too large"}
    }
    files: dict[int | str, dict[str, Any]] = {
        200: {
            "description": "A file.",
            "content": {kind.partition(";")[0]: {} for kind in _TYPES.values()},
        }
    }

    @api.get("/api/runs")
    async def runs() -> shapes.Runs:
        """Ledgers in the folder of the server."""
        folder = desk.settings.runs
        written = {} if folder is None else await asyncio.to_thread(ledgers.find, folder)
        return shapes.Runs(folder=folder is not None, runs=sorted(written), written=written)

    @api.get("/api/run", responses=missing)
    async def run(
        name: _Name, delta: questions.Delta = 1e-5, group: questions.Group = 1
    ) -> shapes.RunOf:
        """What a ledger in the folder proves."""
        return shapes.RunOf(
            **await desk.once(
                Task(ledgers.summary, (source(name), delta, group, desk.settings.diagnostics), True)
            )
        )

    @api.get("/api/run/stream", response_model=None, responses=_EVENTS | missing)
    async def run_stream(
        name: _Name, delta: questions.Delta = 1e-5, group: questions.Group = 1
    ) -> EventStream:
        """The same, again whenever the ledger has grown, until its run or the time is over."""
        return desk.watch(source(name), delta, group)

    @api.get("/api/run/together", responses=missing)
    async def together(
        name: _Names, delta: questions.Delta = 1e-5, group: questions.Group = 1
    ) -> shapes.Together:
        """What several ledgers prove of data that all their runs used."""
        sources = tuple(source(one) for one in name)
        return shapes.Together(
            **await desk.once(Task(ledgers.together, (sources, delta, group), True))
        )

    @api.get("/api/run/statement", response_model=None, responses=files | missing)
    async def run_statement(
        name: _Names,
        delta: questions.Delta = 1e-5,
        group: questions.Group = 1,
        format: questions.Format = "html",
    ) -> Response:
        """The statement of one run, or of several on the same data."""
        sources = tuple(source(one) for one in name)
        return await _statement(desk, sources, delta, group, format)

    @api.post("/api/run", responses=large, openapi_extra=_LEDGER)
    async def sent(
        request: Request, delta: questions.Delta = 1e-5, group: questions.Group = 1
    ) -> shapes.RunOf:
        """What a ledger that is sent as the body proves. It is not kept."""
        with desk.upload():
            content = await request.body()
            return shapes.RunOf(
                **await desk.once(Task(ledgers.summary, ((_SENT, content, ""), delta, group), True))
            )

    @api.post(
        "/api/run/statement", response_model=None, responses=files | large, openapi_extra=_LEDGER
    )
    async def sent_statement(
        request: Request,
        delta: questions.Delta = 1e-5,
        group: questions.Group = 1,
        format: questions.Format = "html",
    ) -> Response:
        """The statement of a run whose ledger is sent as the body. It is not kept."""
        with desk.upload():
            content = await request.body()
            return await _statement(desk, ((_SENT, content, ""),), delta, group, format)


_SENT = "the ledger"


async def _statement(
    desk: Desk,
    sources: tuple[ledgers.Source, ...],
    delta: float,
    group: int,
    format: questions.Format,
) -> Response:
    part = await desk.once(Task(ledgers.statement, (sources, delta, group, format), True))
    headers = {"Content-Disposition": f'attachment; filename="statement.{format}"'}
    return Response(part["text"], media_type=_TYPES[format], headers=headers)


def _pages(api: FastAPI, settings: Settings) -> None:
    api.mount("/static", _Files(directory=STATIC), name="static")

    @api.post("/api/login", include_in_schema=bool(settings.token))
    async def login(shown: shapes.Token, request: Request) -> shapes.About:
        """Show the token once; a cookie remembers it until the server ends."""
        guard: Guard = request.scope["verax.guard"]
        if not guard.knows(shown.token):
            raise HTTPException(401, "this is not the token")
        answer: Any = JSONResponse(_about(settings).model_dump())
        answer.set_cookie(COOKIE, guard.session, httponly=True, samesite="strict", path="/")
        return answer  # type: ignore[no-any-return]

    for name in pages.NAMES:
        _page(api, f"/{name}", name)
    _page(api, "/", "compare")

    @api.get("/favicon.ico", include_in_schema=False)
    async def icon() -> FileResponse:
        return FileResponse(STATIC / "icon.svg", headers=_FRESH)


def _page(api: FastAPI, path: str, name: str) -> None:
    whole = pages.page(name)

    @api.get(path, include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(whole, headers=_FRESH)
