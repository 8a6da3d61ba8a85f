"""A client's process: a SuperNode that runs its own ClientApp, not the server's code.

Flower's own ``flower-supernode`` runs the code that comes with a run, so that its owner must trust
the server with all data. Here what the server sends is data.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import verax.federated.flower_quiet  # noqa: F401 - before flwr

# isort: split
import httpx
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.clientapp import ClientApp
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from verax import checks
from verax.federated.flower_keys import public_key, read_key

AnyPath = str | os.PathLike[str]
_TROUBLE = (httpx.HTTPError, ObjectPullError, ObjectPushError)
_HEART = 10.0  # seconds between two signs of life
_DOWNLOAD = 60.0  # seconds that a model may take to be there once it was announced
_LOOK, _LONGEST = 0.05, 0.5  # seconds until the second look for it, and at most between two


class NotAdmitted(ValueError):  # noqa: N818 - public name, says what happened
    """The server does not know this client's key, or did not answer in time."""


def join(
    app: ClientApp,
    key: AnyPath,
    root: AnyPath,
    server: str,
    pace: float = 1.0,
    poll: float = 0.2,
    patience: float = 600.0,
) -> None:
    """Answer a server's messages until it says that the run is over.

    Args:
        app: see :func:`verax.federated.flower.client_app`.
        key: the file with the client's private key.
        root: the file with the certificate that the server's is to be signed by.
        server: its address, such as "127.0.0.1:9092".
        pace: answers leave at whole multiples of so many seconds after the question came, however
            long the work took: a client that stays away is not told by its speed. Choose it longer
            than a round's work.
        poll: seconds between two looks for a message.
        patience: how many seconds without the server to wait before giving up.
    """
    checks.positive("pace", pace)
    checks.positive("poll", poll)
    secret, certificate = read_key(key), Path(root).read_bytes()
    last = time.monotonic()
    while True:
        try:
            with _connected(secret, certificate, server) as (client, node):
                last = time.monotonic()
                while True:
                    message = _received(client, node)
                    last = start = time.monotonic()
                    if message is None:
                        time.sleep(poll)
                        continue
                    reply = app(
                        message,
                        Context(message.metadata.run_id, node.node_id, {}, RecordDict(), {}),
                    )
                    time.sleep(pace - (time.monotonic() - start) % pace)
                    if message.metadata.message_type == MessageType.QUERY:
                        with suppress(*_TROUBLE):  # the run is over: the server may have gone first
                            _send(client, node, reply)
                        return
                    _send(client, node, reply)
        except _TROUBLE as error:
            if time.monotonic() - last > patience:
                raise NotAdmitted(
                    f"{server} has not admitted this client for {patience:g} s: {_why(error)}"
                ) from None
            time.sleep(poll)


@contextmanager
def _connected(
    secret: Any, certificate: bytes, server: str
) -> Iterator[tuple[FleetHttpClient, Node]]:
    identity = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(secret, secret.public_key()),
    ]
    with FleetHttpClient.from_server_address(
        server, False, certificate, interceptors=identity
    ) as client:
        admitted = client.ActivateNode(
            ActivateNodeRequest(
                public_key=public_key(secret), heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
            )
        )
        node, stopped = Node(node_id=admitted.node_id), threading.Event()
        heart = threading.Thread(target=_beat, args=(client, node, stopped), daemon=True)
        heart.start()
        try:
            yield client, node
        finally:
            stopped.set()
            heart.join()
            with suppress(httpx.HTTPError):  # the server may have gone first
                client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))


def _beat(client: FleetHttpClient, node: Node, stopped: threading.Event) -> None:
    """Tell the server that this node is there, also while it works."""
    while not stopped.wait(_HEART):
        try:
            client.SendNodeHeartbeat(
                SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
            )
        except httpx.HTTPError:
            continue  # whoever looks for messages finds out, and connects anew


def _received(client: FleetHttpClient, node: Node) -> Message | None:
    found = client.PullMessages(PullMessagesRequest(node=node))
    if not found.messages_list:
        return None
    tree, run = found.message_object_trees[0], found.messages_list[0].metadata.run_id
    message = pull_and_inflate_object_from_tree(
        tree,
        make_pull_object_fn_protobuf(client.PullObject, node, run),
        make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, run),
        return_type=Message,
        max_time=_DOWNLOAD,
        initial_backoff=_LOOK,
        backoff_cap=_LONGEST,
    )
    # as Flower does: a message does not hold its own number
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


def _send(client: FleetHttpClient, node: Node, reply: Message) -> None:
    reply.metadata.__dict__["_message_id"] = reply.object_id
    head, run = message_to_proto(remove_content_from_message(reply)), reply.metadata.run_id
    with no_object_id_recompute():
        answer = client.PushMessages(
            PushMessagesRequest(
                node=node,
                messages_list=[head],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=[0.0],  # how long the work took is nobody's business
            )
        )
        push = make_push_object_fn_protobuf(client.PushObject, node, run, answer.session_id)
        push_objects(
            get_all_nested_objects(reply), push, object_ids_to_push=set(answer.objects_to_push)
        )


def _why(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"it answers {error.response.status_code}"
    return str(error) or type(error).__name__
