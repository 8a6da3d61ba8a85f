"""The server's process: the nodes' interface of Flower's SuperLink, and the ServerApp.

Flower's own ``flower-superlink`` serves three interfaces on one port, and asks only nodes who they
are: whoever reaches the port may register a node of their own, or start a run. Here nodes have one
interface, the keys of all clients are known before the first of them connects, and nothing else
answers.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import verax.federated.flower_quiet  # noqa: F401 - before flwr

# isort: split
import uvicorn
from fastapi import FastAPI, HTTPException
from flwr.app import Context, Message, RecordDict
from flwr.common.constant import (
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    SUPERLINK_NODE_ID,
    TIMESTAMP_HEADER,
    SubStatus,
)
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.serverapp import ServerApp
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    FLWR_IN_MEMORY_DB_NAME,
    NOOP_FEDERATION_ID,
    TaskType,
)
from flwr.supercore.error import http_error_translator
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.object_store import NoObjectInStoreError, ObjectStoreFactory
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import HttpGrid
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router
from flwr.superlink.servicer.runtime import runtime_handlers as handlers
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

AnyPath = str | os.PathLike[str]
_START = 30.0  # seconds within which the port must answer
# seconds until an idle connection is closed; clients close theirs after 5, so that none is cut off
# in use
_IDLE = 60
_LEAVE = 2  # seconds that open connections get when the run is over


def serve(
    app: ServerApp,
    keys: Sequence[bytes],
    certificate: AnyPath,
    private_key: AnyPath,
    host: str = "127.0.0.1",
    port: int = 9092,
    ready: Callable[[int], None] | None = None,
) -> None:
    """Run a ServerApp to its end, for nodes with these public keys and for no others.

    Args:
        app: see :func:`verax.federated.flower.server_app`.
        keys: public keys of the clients.
        certificate: a file with the server's certificate (and those between it and the root, if
            any).
        private_key: the file with its private key.
        host: address to listen on.
        port: port to listen on; 0 for a free one.
        ready: called with the port once nodes can connect.
    """
    objects = ObjectStoreFactory()
    objects.store_instance = _Store()
    factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), objects)
    state = factory.state()
    for key in keys:
        state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0)
    with _listening(factory, certificate, private_key, host, port) as bound:
        if ready is not None:
            ready(bound)
        _run(app, state)


class _Store(InMemoryObjectStore):
    """Flower's store; an object stays while a message that shares it is announced.

    All clients are sent the same model, which is kept once; whoever confirms its copy may be the
    last to hold it.
    """

    def preregister(self, run_id: int, object_tree: ObjectTree) -> list[str]:
        """Announce the objects of a message, all of them or none."""
        with self.lock_store:
            missing: list[str] = super().preregister(run_id, object_tree)
            return missing

    def whole(self, message: str) -> bool:
        """Whether all objects of a message have arrived."""
        with self.lock_store:
            try:
                return all(
                    self.get(part.object_id)
                    for part in iterate_object_tree(self.get_object_tree(message))
                )
            except NoObjectInStoreError:
                return True  # it will never be whole: let Flower say so


def _run(app: ServerApp, state: Any) -> None:
    """What Flower does around a ServerApp, in this process."""
    run = state.create_run(
        "verax/federated",
        "1",
        None,
        {},
        NOOP_FEDERATION_ID,
        None,
        NOOP_FLWR_AID,
        TaskType.SERVER_APP,
    )
    info = state.get_run_info(run_ids=[run])[0]
    task = state.get_tasks(task_ids=[info.primary_task_id])[0]
    state.claim_task(task.task_id)
    state.activate_task(task.task_id)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = (
        task.task_id,
        run,
        SUPERLINK_NODE_ID,
    )
    heart = HeartbeatSender(lambda: bool(state.acknowledge_task_heartbeat(task.task_id)))
    heart.start()
    ended = SubStatus.FAILED
    try:
        app(_Here(state, task, info), Context(run, SUPERLINK_NODE_ID, {}, RecordDict(), {}))
        ended = SubStatus.COMPLETED
    finally:
        heart.stop()
        state.finish_task(task.task_id, ended, "")


class _Here(HttpGrid):
    """Flower's Grid, called in this process: no port offers its calls to others."""

    def __init__(self, state: Any, task: Any, run: Any) -> None:
        super().__init__(token="none is needed")
        self._state, self._task = state, task
        self._client = self
        self.set_run(run)

    def close(self) -> None:
        """Nothing is open."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send as this run: Flower keeps one run per process, and a second would mix in."""
        said, task = list(messages), self._task
        own = {
            "_run_id": task.run_id,
            "_src_task_id": task.task_id,
            "_src_node_id": SUPERLINK_NODE_ID,
        }
        for message in said:
            message.metadata.__dict__ |= own
        sent: Iterable[str] = super().push_messages(said)
        return sent

    def GetNodes(self, request: Any) -> Any:  # noqa: N802 - names of Flower's protocol, here and below
        return handlers.get_nodes(request, self._state, self._task)

    def PushMessages(self, request: Any) -> Any:  # noqa: N802
        return handlers.push_messages(request, self._state, self._task)

    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        """The answers that have arrived whole; Flower would block on the others."""
        with self._state.lock:  # nothing is announced between the look and the answer
            found, store = self._state.message_ins_id_to_message_res_id, self._state.object_store
            answers = {question: found.get(question) for question in request.message_ids}
            there = [
                question
                for question, answer in answers.items()
                if answer is None or store.whole(answer)
            ]
            return handlers.pull_messages(type(request)(message_ids=there), self._state, self._task)

    def PushObject(self, request: Any) -> Any:  # noqa: N802
        return handlers.push_object(request, self._state, self._task)

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        return handlers.pull_object(request, self._state, self._task)

    def ConfirmMessageReceived(self, request: Any) -> Any:  # noqa: N802
        return handlers.confirm_message_received(request, self._state, self._task)


async def _known_only(request: Any, call_next: Any) -> Any:
    """Refuse strangers by their headers; Flower would read the body first."""
    if not request.url.path.startswith("/v1/fleet/"):
        raise HTTPException(404)
    state = request.app.state.linkstate_factory.state()
    try:
        key, signature = (
            b64decode(request.headers[name], validate=True)
            for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
        )
        stamp = request.headers[TIMESTAMP_HEADER].encode("ascii")
        known = state.get_node_id_by_public_key(key) is not None
        sound = known and verify_signature(bytes_to_public_key(key), stamp, signature)
    except (KeyError, ValueError):
        sound = False
    if not sound:
        raise HTTPException(401, "no node of this run")
    return await call_next(request)


async def _own_name_only(request: Any, call_next: Any) -> Any:
    """Refuse messages in another node's name, which Flower does not check.

    Nor does it let a node that died come back before a minute is over. Whoever shows the key is the
    node.
    """
    message = getattr(request.state, "protobuf_request", None)
    if message is None:  # nor would it have been authenticated
        raise HTTPException(404)
    if isinstance(message, PushMessagesRequest) and any(
        piece.metadata.src_node_id != message.node.node_id for piece in message.messages_list
    ):
        raise HTTPException(401, "a node speaks for itself only")
    if isinstance(message, ActivateNodeRequest):
        state = request.app.state.linkstate_factory.state()
        node = state.get_node_id_by_public_key(message.public_key)
        if node is not None:
            state.deactivate_node(node)
    return await call_next(request)


def _fleet(factory: LinkStateFactory) -> FastAPI:
    """The interface of nodes, each request authenticated."""
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        middleware=[
            Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
            Middleware(BaseHTTPMiddleware, dispatch=_known_only),
            Middleware(ProtobufTranslationMiddleware),
            Middleware(NodeAuthMiddleware),
            Middleware(BaseHTTPMiddleware, dispatch=_own_name_only),
        ],
    )
    app.state.linkstate_factory = factory
    app.state.enable_supernode_auth = True  # so that no node can register itself
    app.include_router(router)
    return app


@contextmanager
def _listening(
    factory: LinkStateFactory, certificate: AnyPath, private_key: AnyPath, host: str, port: int
) -> Iterator[int]:
    config = uvicorn.Config(
        _fleet(factory),
        ssl_certfile=os.fspath(certificate),
        ssl_keyfile=os.fspath(private_key),
        log_level="warning",
        access_log=False,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=_LEAVE,
    )
    with socket.create_server(
        (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
    ) as door:
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([door],), daemon=True)
        thread.start()
        end = time.monotonic() + _START
        while not server.started:
            if not thread.is_alive() or time.monotonic() > end:
                raise RuntimeError(f"no server could be started at {host}:{port}")
            time.sleep(0.01)
        try:
            yield door.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(_START)
