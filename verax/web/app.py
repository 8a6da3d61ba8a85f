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
from starlette.exceptions import HTTPException as StarletteHTTPException

import verax
from verax.web import ledgers, pages, requests, responses
from verax.web.auth import COOKIE, BodyLimit, Guard
from verax.web.events import CRASHED, EventStream
from verax.web.service import (
    Service,
    change_steps,
    compare_steps,
    federated_steps,
    plan_steps,
)
from verax.web.settings import Settings
from verax.web.worker import RequestRefused, ServerBusy, Task, WorkerCrashed

STATIC = Path(__file__).parent / "static"
_FRESH = {"Cache-Control": "no-cache"}
_TYPES = {
    "html": "text/html; charset=utf-8",
    "json": "application/json",
    "txt": "text/plain; charset=utf-8",
}
_SENT = "the ledger"
# The one parameter that may be repeated, by path.
_REPEATED = {
    "/api/compare": "sampler",
    "/api/plan": "sampler",
    "/api/run/statement": "name",
    "/api/run/together": "name",
}

# What OpenAPI says of some addresses.
_Responses = dict[int | str, dict[str, Any]]
_EVENTS: _Responses = {
    200: {
        "description": "Server-sent events: `part`, then `end` or `error`.",
        "content": {"text/event-stream": {}},
    }
}
_FILES: _Responses = {
    200: {
        "description": "A file.",
        "content": {kind.partition(";")[0]: {} for kind in _TYPES.values()},
    }
}
_MISSING: _Responses = {404: {"model": responses.Problem, "description": "no such ledger"}}
_LARGE: _Responses = {413: {"model": responses.Problem, "description": "the ledger is too large"}}
_LEDGER = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


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
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.pool.start()
        yield
        await service.pool.stop()

    api = FastAPI(
        title="verax",
        version=verax.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        responses=responses.PROBLEMS,
        dependencies=[Depends(_refuse_repeated)],
        description="The privacy of DP-SGD: brackets, plans, ledgers. "
        "Words and units are those of the Python API.",
    )
    large = dict.fromkeys(("/api/run", "/api/run/statement"), settings.upload)
    api.add_middleware(BodyLimit, large=large, seconds=settings.stream_seconds)
    _add_problems(api)
    _add_mechanisms(api, service)
    _add_ledgers(api, service)
    _add_login(api, settings)
    _add_pages(api)
    return Guard(api, settings)


async def _refuse_repeated(request: Request) -> None:
    """Refuse a parameter that is given twice: all but one of its values would be dropped."""
    path = request.url.path.removesuffix("/stream").removesuffix("/changes")
    if not path.startswith("/api/"):  # a page reads its address itself
        return
    for name in dict.fromkeys(request.query_params):
        given = request.query_params.getlist(name)
        if len(given) > 1 and name != _REPEATED.get(path):
            other = "; /api/run/together takes several ledgers" if name == "name" else ""
            raise RequestRefused(f"{name[:40]} must be given once, got {len(given)} values{other}")


def _problem(request: Request, status: int, words: str, **headers: str) -> Response:
    return pages.problem_response(request.scope, status, words, headers)


def _add_problems(api: FastAPI) -> None:
    """Answer every error with a message, and none with a traceback."""

    @api.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        found = dict.fromkeys(_validation_message(one) for one in error.errors()[:5])
        return _problem(request, 422, "; ".join(found))

    @api.exception_handler(StarletteHTTPException)
    async def known(request: Request, error: StarletteHTTPException) -> Response:
        words = str(error.detail)
        if words == HTTPStatus.NOT_FOUND.phrase and pages.wants_page(request.scope):
            words = "there is no page at this address"
        return _problem(request, error.status_code, words, **(error.headers or {}))

    @api.exception_handler(RequestRefused)
    async def refused(request: Request, error: RequestRefused) -> Response:
        return _problem(request, 422, str(error))

    @api.exception_handler(ServerBusy)
    async def busy(request: Request, error: ServerBusy) -> Response:
        return _problem(request, 503, str(error), **{"Retry-After": "2"})

    @api.exception_handler(WorkerCrashed)
    @api.exception_handler(Exception)
    async def unexpected(request: Request, _: Exception) -> Response:
        return _problem(request, 500, CRASHED)


def _validation_message(error: dict[str, Any]) -> str:
    """One error of validation in words: the parameter, what is allowed, and what was given."""
    name = (
        ".".join(str(part) for part in error["loc"] if part not in ("query", "body", "path"))
        or "the request"
    )
    words = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "value_error":
        return words
    if error["type"] == "missing":
        return f"{name}: field required"
    given = repr(error.get("input"))
    given = given if len(given) <= 60 else f"{given[:60]}..."
    return f"{name}: {words[0].lower()}{words[1:]}, got {given}"


def _about(settings: Settings) -> responses.AboutResponse:
    return responses.AboutResponse(
        verax=verax.__version__, folder=settings.runs is not None, largest_ledger=settings.upload
    )


def _add_mechanisms(api: FastAPI, service: Service) -> None:
    """Add the addresses that price, plan and compare mechanisms."""

    @api.get("/api/about")
    async def about() -> responses.AboutResponse:
        """What this server is."""
        return _about(service.settings)

    @api.get("/api/compare")
    async def compare(
        asked: Annotated[requests.CompareRequest, Query()],
    ) -> responses.CompareResponse:
        """Brackets on the epsilon of one run under several samplers, and curves."""
        parts = await service.whole(compare_steps(asked))
        return responses.CompareResponse(**_by_kind(parts))

    @api.get("/api/compare/stream", response_model=None, responses=_EVENTS)
    async def compare_stream(asked: Annotated[requests.CompareRequest, Query()]) -> EventStream:
        """The same piece by piece; a `provisional` part is true, and a better one follows."""
        return service.stream(compare_steps(asked))

    @api.get("/api/plan")
    async def plan(asked: Annotated[requests.PlanRequest, Query()]) -> responses.PlanResponse:
        """The smallest proved noise for every batch size and number of epochs, best plan first."""
        first, *middle, last = await service.whole(plan_steps(asked))
        plans = [part["plan"] for part in middle if part["plan"]]
        best = set(last["undominated"])
        return responses.PlanResponse(
            plans=[plans[i] | {"undominated": i in best} for i in last["ranked"]],
            full_batch_signal=first["full_batch_signal"],
            notes=first["notes"],
            left_out=[part["why_not"] for part in middle if not part["plan"]],
        )

    @api.get("/api/plan/stream", response_model=None, responses=_EVENTS)
    async def plan_stream(asked: Annotated[requests.PlanRequest, Query()]) -> EventStream:
        """The same piece by piece: the number of plans, each plan, and how they rank."""
        return service.stream(plan_steps(asked))

    @api.get("/api/plan/changes")
    async def changes(
        asked: Annotated[requests.ChangesRequest, Query()],
    ) -> list[responses.PlanChange]:
        """What changes to one plan cost."""
        parts = await service.whole(change_steps(asked))
        return [responses.PlanChange(**part) for part in parts]

    @api.get("/api/federated")
    async def federated(
        asked: Annotated[requests.FederatedRequest, Query()],
    ) -> responses.FederatedResponse:
        """A client that takes part at random, next to CS (the least), WCS and OLS (the most)."""
        parts = await service.whole(federated_steps(asked))
        return responses.FederatedResponse(**_by_kind(parts))

    @api.get("/api/federated/stream", response_model=None, responses=_EVENTS)
    async def federated_stream(asked: Annotated[requests.FederatedRequest, Query()]) -> EventStream:
        """The same piece by piece."""
        return service.stream(federated_steps(asked))


def _by_kind(parts: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    kinds = ("row", "point", "curve", "observer")
    return {f"{kind}s": [part for part in parts if part["kind"] == kind] for kind in kinds}


def _add_ledgers(api: FastAPI, service: Service) -> None:
    """Add the addresses that read ledgers, those in the server's folder and those that are sent."""
    folder = service.settings.runs

    def source(name: str) -> ledgers.Source:
        path = None if folder is None else ledgers.path_inside(folder, name)
        if path is None:
            words = "no such ledger in the folder of this server; GET /api/runs lists what there is"
            raise HTTPException(404, words)
        return name, None, str(path)

    async def statement(
        sources: tuple[ledgers.Source, ...], asked: requests.StatementRequest
    ) -> Response:
        arguments = sources, asked.delta, asked.group, asked.format
        part = await service.once(Task(ledgers.statement, arguments, True))
        headers = {"Content-Disposition": f'attachment; filename="statement.{asked.format}"'}
        return Response(part["text"], media_type=_TYPES[asked.format], headers=headers)

    @api.get("/api/runs")
    async def runs() -> responses.RunsResponse:
        """Ledgers in the folder of the server."""
        written = {} if folder is None else await asyncio.to_thread(ledgers.find_ledgers, folder)
        return responses.RunsResponse(
            folder=folder is not None, runs=sorted(written), written=written
        )

    @api.get("/api/run", responses=_MISSING)
    async def run(asked: Annotated[requests.RunRequest, Query()]) -> responses.RunResponse:
        """What a ledger in the folder proves."""
        task = service.summary_task(source(asked.name), asked.delta, asked.group)
        return responses.RunResponse(**await service.once(task))

    @api.get("/api/run/stream", response_model=None, responses=_EVENTS | _MISSING)
    async def run_stream(asked: Annotated[requests.RunRequest, Query()]) -> EventStream:
        """The same, again whenever the ledger has grown, until its run or the time is over."""
        return service.watch(source(asked.name), asked.delta, asked.group)

    @api.get("/api/run/together", responses=_MISSING)
    async def together(
        asked: Annotated[requests.RunsRequest, Query()],
    ) -> responses.TogetherResponse:
        """What several ledgers prove of data that all their runs used."""
        arguments = tuple(map(source, asked.name)), asked.delta, asked.group
        part = await service.once(Task(ledgers.together, arguments, True))
        return responses.TogetherResponse(**part)

    @api.get("/api/run/statement", response_model=None, responses=_FILES | _MISSING)
    async def run_statement(
        asked: Annotated[requests.RunsStatementRequest, Query()],
    ) -> Response:
        """The statement of one run, or of several on the same data."""
        return await statement(tuple(map(source, asked.name)), asked)

    @api.post("/api/run", responses=_LARGE, openapi_extra=_LEDGER)
    async def sent(
        request: Request, asked: Annotated[requests.LedgerRequest, Query()]
    ) -> responses.RunResponse:
        """What a ledger that is sent as the body proves. It is not kept."""
        with service.uploads.take():
            sent = (_SENT, await request.body(), "")
            task = Task(ledgers.summary, (sent, asked.delta, asked.group), True)
            return responses.RunResponse(**await service.once(task))

    @api.post(
        "/api/run/statement", response_model=None, responses=_FILES | _LARGE, openapi_extra=_LEDGER
    )
    async def sent_statement(
        request: Request, asked: Annotated[requests.StatementRequest, Query()]
    ) -> Response:
        """The statement of a run whose ledger is sent as the body. It is not kept."""
        with service.uploads.take():
            return await statement(((_SENT, await request.body(), ""),), asked)


def _add_login(api: FastAPI, settings: Settings) -> None:
    @api.post("/api/login", include_in_schema=bool(settings.token))
    async def login(shown: responses.Token, request: Request) -> responses.AboutResponse:
        """Show the token once; a cookie remembers it until the server ends."""
        guard: Guard = request.scope["verax.guard"]
        if not guard.knows(shown.token):
            raise HTTPException(401, "this is not the token")
        answer: Any = JSONResponse(_about(settings).model_dump())
        answer.set_cookie(COOKIE, guard.session, httponly=True, samesite="strict", path="/")
        return answer  # type: ignore[no-any-return]


def _add_pages(api: FastAPI) -> None:
    """Add the pages, with their scripts, styles and icon."""
    api.mount("/static", _Files(directory=STATIC), name="static")

    def add(path: str, name: str) -> None:
        whole = pages.page(name)

        @api.get(path, include_in_schema=False)
        async def page() -> HTMLResponse:
            return HTMLResponse(whole, headers=_FRESH)

    for name in pages.TITLES:
        add(f"/{name}", name)
    add("/", "compare")

    @api.get("/favicon.ico", include_in_schema=False)
    async def icon() -> FileResponse:
        return FileResponse(STATIC / "icon.svg", headers=_FRESH)
