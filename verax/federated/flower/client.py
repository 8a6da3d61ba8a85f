"""ClientApps: one that holds its client, and one that relays to the process that holds it.

Flower starts a new process for every message that a SuperNode receives, and the code that it runs
there comes from whoever started the run. A client lives longer, since its coins and ledger are in
it, and its data are for its owner's code alone: so it serves in a process of its own
(:func:`verax.federated.flower.serve`), and the ClientApp passes on bytes.

Nothing here imports torch, which would be loaded anew for every message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from verax import checks
from verax.federated.flower.pipe import END, TRAIN, connect, receive, send

if TYPE_CHECKING:
    from verax.federated import AsyncClient, Client, Model

_RECORD, _FIELD = "verax", "messages"
_RETRY = 0.2  # seconds between two attempts to reach a service

Answer = Callable[[Context, bytes, list[bytes]], list[bytes]]


def record_of(pieces: Sequence[bytes]) -> RecordDict:
    """The content of a Flower message that holds these packed messages of verax."""
    return RecordDict({_RECORD: ConfigRecord({_FIELD: list(pieces)})})


def pieces_of(message: Message) -> list[bytes]:
    """The packed messages of verax that a Flower message holds; anything else is ignored."""
    if message.has_error() or _RECORD not in message.content.config_records:
        return []
    found = message.content.config_records[_RECORD].get(_FIELD, [])
    if not isinstance(found, list):
        return []
    return [piece for piece in found if isinstance(piece, bytes)]


def client_app(
    client: Client,
    asynchronous: AsyncClient | None = None,
    *,
    pace: float = 1.0,
    ended: Callable[[Model], None] | None = None,
) -> ClientApp:
    """A ClientApp that answers for a client in this process.

    For engines that keep a ClientApp's process; under a SuperNode, which does not, use
    :func:`relay_app`. The arguments are those of :class:`verax.federated.flower.ClientService`.

    >>> import torch
    >>> from verax.federated import Client, Plan
    >>> plan = Plan(
    ...     clients=2,
    ...     records=8,
    ...     largest=4,
    ...     client_rate=0.5,
    ...     record_rate=0.5,
    ...     rounds=3,
    ...     noise_multiplier=1.0,
    ... )
    >>> data = torch.randn(4, 3), torch.randint(0, 2, (4,))
    >>> client = Client(0, data, plan, torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss())
    >>> type(client_app(client)).__name__
    'ClientApp'
    """
    # imports torch
    from verax.federated.flower.service import ClientService

    service = ClientService(client, asynchronous, pace=pace, ended=ended)
    return _app(lambda context, kind, pieces: service.reply(kind, pieces))


def relay_app(address: str | None = None, *, patience: float = 60.0) -> ClientApp:
    """A ClientApp that passes messages on to :func:`verax.federated.flower.serve` on its host.

    Args:
        address: of the client's socket; by default what the SuperNode was started with,
            ``--node-config 'client="/run/verax/client.sock"'``.
        patience: seconds to wait for a client that cannot be reached, as while it starts anew.
    """
    checks.positive("patience", patience)

    def answer(context: Context, kind: bytes, pieces: list[bytes]) -> list[bytes]:
        where = context.node_config.get("client") if address is None else address
        if not isinstance(where, str):
            raise ValueError(
                "address must be given, or be in the SuperNode's configuration: start it with "
                "--node-config 'client=\"/run/verax/client.sock\"'"
            )
        return _relayed(where, [kind, *pieces], patience)

    return _app(answer)


def _app(answer: Answer) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(record_of(answer(context, TRAIN, pieces_of(message))), reply_to=message)

    @app.query()
    def end(message: Message, context: Context) -> Message:
        return Message(record_of(answer(context, END, pieces_of(message))), reply_to=message)

    return app


def _relayed(address: str, request: list[bytes], patience: float) -> list[bytes]:
    """Ask again if the client dies meanwhile: it answers no round twice."""
    deadline = time.monotonic() + patience
    while True:
        try:
            with connect(address) as connection:
                send(connection, request)
                return receive(connection)
        except (OSError, EOFError) as error:
            if time.monotonic() > deadline:
                raise ConnectionError(
                    f"no client could be reached at {address!r} for {patience:g} s: start one "
                    "with verax.federated.flower.serve"
                ) from error
            time.sleep(_RETRY)
