"""Over Flower, without processes: what is sent, what is refused, keys, and nothing to strangers."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")
pytest.importorskip("flwr", reason="the Flower engine needs flwr: pip install 'verax[federated]'")

from flwr.app import ConfigRecord, Message, MessageType, RecordDict  # noqa: E402
from flwr.proto.node_pb2 import Node  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from verax.federated import (  # noqa: E402
    Server,
    Update,
    unpack,
    weights_of,
)
from verax.federated import flower_link as link  # noqa: E402
from verax.federated import flower_node as nodes  # noqa: E402
from verax.federated.flower import Waiting, client_app, server_app  # noqa: E402
from verax.federated.flower_keys import new_key, read_key, read_public_keys  # noqa: E402

PATIENCE = 180.0  # seconds; far more than needed on a machine that does nothing else


@pytest.fixture
def asked():
    """A message of Flower's, as a ClientApp gets it."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def ask(said, kind=MessageType.TRAIN):
        content = RecordDict({"verax": ConfigRecord({"messages": said})})
        message = Message(content, 7, kind)
        message.metadata.__dict__["_message_id"] = "1"
        return message

    return ask


def answered(app, message):
    from flwr.app import Context

    reply = app(message, Context(1, 7, {}, RecordDict(), {}))
    record = reply.content.config_records.get("verax")
    return [] if record is None else list(record["messages"])


@pytest.mark.parametrize("noise", ["central", "local"])
def test_answers_have_one_length_whether_the_client_takes_part_or_not(parties, asked, noise):
    here = parties.world({"rounds": 12, "noise": noise})
    head, hand, twin = (
        Server(here.plan, weights_of(here.make()), here.sgd),
        here.client(1, 3),
        here.client(1, 3),
    )
    app, lengths, parts = client_app(hand), set(), set()
    for _ in range(12):
        (content,) = answered(app, asked([head.model().pack()]))
        update = unpack(content)
        lengths.add(len(content))
        twin.charge(head.round)
        parts.add(twin.contribution(head.round, head.weights.numpy()) is not None)
        assert head.receive(update, sender=1) is None
        head.step()
    assert parts == {True, False}
    assert len(lengths) == 1


def test_a_client_is_not_moved_by_what_is_no_model(parties, asked):
    here = parties.world({})
    head, hand = Server(here.plan, weights_of(here.make()), here.sgd), here.client(0, 3)
    app, model = client_app(hand), head.model().pack()
    assert answered(app, asked([b"", b"VRX1", model[:-1]])) == []
    assert answered(app, asked([])) == []
    assert hand.spent == 0
    assert len(answered(app, asked([model]))) == 1
    assert answered(app, asked([model])) == []  # a round is answered once
    assert hand.spent == 1


def test_answers_leave_at_multiples_of_the_pace(monkeypatch, tmp_path, asked):
    new_key(tmp_path / "key")
    (tmp_path / "ca.pem").write_text("")
    works, sent, now = iter([0.01, 0.15, 0.25]), [], [100.0]
    questions = [asked([]), asked([]), asked([], MessageType.QUERY)]
    began = []

    def received(client, node):
        began.append(now[0])
        return questions[len(began) - 1]

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(nodes, "_connected", lambda *_: nullcontext((None, Node(node_id=7))))
    monkeypatch.setattr(nodes, "_received", received)
    monkeypatch.setattr(nodes, "_send", lambda *_: sent.append(now[0] - began[-1]))
    monkeypatch.setattr(nodes, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    nodes.join(
        lambda *_: sleep(next(works)), tmp_path / "key", tmp_path / "ca.pem", "nowhere:1", pace=0.2
    )
    assert sent == pytest.approx([0.2, 0.2, 0.4])


def test_a_client_that_knows_the_run_is_over_ends_even_if_the_server_has_gone(
    monkeypatch, tmp_path, asked
):
    """It had come back for three minutes to a port that nobody listens at, and failed."""
    import httpx

    new_key(tmp_path / "key")
    (tmp_path / "ca.pem").write_text("")
    connections = []

    @contextmanager
    def connected(*_):
        connections.append("opened")
        yield None, Node(node_id=7)

    def refused(*_):
        raise httpx.ConnectError("connection refused")

    monkeypatch.setattr(nodes, "_connected", connected)
    monkeypatch.setattr(nodes, "_received", lambda *_: asked([], MessageType.QUERY))
    monkeypatch.setattr(nodes, "_send", refused)
    nodes.join(
        lambda *_: None,
        tmp_path / "key",
        tmp_path / "ca.pem",
        "nowhere:1",
        pace=1e-3,
        patience=1e-9,
    )
    assert connections == ["opened"]


class Wire:
    """A node that calls the server's handlers without a network; ``hold`` holds back."""

    def __init__(self, state, hold=()):
        self.state, self.hold, self.held = state, hold, []

    def __getattr__(self, name):
        from flwr.proto.message_pb2 import PushObjectResponse
        from flwr.superlink.servicer.fleet import fleet_handlers as handlers

        handler = {
            "PullMessages": lambda r: handlers.pull_messages(
                r, self.state, self.state.object_store
            ),
            "PushMessages": lambda r: handlers.push_messages(r, self.state),
            "PullObject": lambda r: handlers.pull_object(r, self.state),
            "PushObject": lambda r: handlers.push_object(r, self.state),
            "ConfirmMessageReceived": lambda r: handlers.confirm_message_received(
                r, self.state, self.state.object_store
            ),
        }[name]
        if name in self.hold:
            return lambda request: (
                self.held.append((handler, request)) or PushObjectResponse(stored=True)
            )
        return handler


@pytest.fixture
def linked(tmp_path):
    """Three connected clients, and ``serve``, which runs a ServerApp in a thread."""
    import threading

    from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
    from flwr.server.superlink.linkstate import LinkStateFactory
    from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink.federation import NoOpFederationManager

    objects = ObjectStoreFactory()
    objects.store_instance = link._Store()
    state = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), objects).state()
    keys = [new_key(tmp_path / f"{i}.key") for i in range(3)]
    numbers = [state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0) for key in keys]
    for number in numbers:
        state.activate_node(number, 100 * PATIENCE)
    threads = []

    def serve(app):
        threads.append(threading.Thread(target=link._run, args=(app, state), daemon=True))
        threads[-1].start()

    yield SimpleNamespace(
        state=state, keys=keys, nodes=[Node(node_id=n) for n in numbers], serve=serve
    )
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_second_server_in_the_process_does_not_speak_for_the_first(linked):
    """Flower knows one run per process: the first server's messages named the second's."""
    sent = []

    def app(grid, context):
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 5, context.run_id + 1, 7
        sent.extend(
            grid.push_messages(
                [Message(RecordDict({}), linked.nodes[0].node_id, MessageType.TRAIN)]
            )
        )

    link._run(app, linked.state)
    (message,) = linked.state.get_message_ins(linked.nodes[0].node_id, 1)
    assert sent == [message.metadata.message_id]
    assert (message.metadata.src_node_id, message.metadata.src_task_id != 5) == (1, True)


class Clock:
    """A server's clock that stands still until it is advanced; sleeping lets others work."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        time.sleep(0.001)


def test_half_an_answer_holds_nobody_up(parties, linked, monkeypatch):
    """A node that dies while it uploads has not answered; Flower would wait for the rest."""
    from flwr.app import Context

    clock = Clock()
    monkeypatch.setattr("verax.federated.flower.time", clock)
    here = parties.world({"client_rate": 1.0, "rounds": 2})
    head, heard, seen = Server(here.plan, weights_of(here.make()), here.sgd), [], []
    receive = head.receive
    monkeypatch.setattr(
        head,
        "receive",
        lambda update, sender: heard.append(sender) or receive(update, sender=sender),
    )
    waiting = Waiting(answers=PATIENCE, farewell=0.0)
    linked.serve(
        server_app(
            head, linked.keys, waiting, lambda s: seen.append((s.round, clock.now, list(heard)))
        )
    )
    apps = [client_app(here.client(i, 3)) for i in range(3)]
    wires = [Wire(linked.state, ("PushObject",) if i == 0 else ()) for i in range(3)]
    end = time.monotonic() + PATIENCE
    while len(seen) < 2 and time.monotonic() < end:
        for i, (wire, node) in enumerate(zip(wires, linked.nodes, strict=True)):
            message = nodes._received(wire, node) if i or not wires[0].held else None
            if message is not None:
                reply = apps[i](
                    message, Context(message.metadata.run_id, node.node_id, {}, RecordDict(), {})
                )
                nodes._send(wire, node, reply)
        if len(heard) == 2 and wires[0].held and not clock.now:
            assert seen == []  # the third is waited for
            clock.now = PATIENCE
        time.sleep(0.001)
    clock.now *= 10.0  # if the server still waits for somebody, it ends
    assert len(wires[0].held) == 3  # announced, and never sent
    first, second = seen
    assert (first[0], first[1], sorted(first[2])) == (1, PATIENCE, [1, 2])
    # it was waited for once
    assert (second[0], second[1], sorted(second[2])) == (2, PATIENCE, [1, 1, 2, 2])
    assert head.refused == {}


def test_what_is_there_by_the_end_of_a_round_is_heard_however_late_the_server_looks(monkeypatch):
    """As after a suspension of the server's host: time is up before its first look."""
    from verax.federated import flower

    clock = iter([0.0, 100.0, 100.0])
    monkeypatch.setattr(flower, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=None))
    reply = SimpleNamespace(
        metadata=SimpleNamespace(reply_to_message_id="1"),
        has_error=lambda: False,
        content=SimpleNamespace(config_records={}),
    )
    grid = SimpleNamespace(get_nodes=list, pull_messages=lambda asked: [reply])
    fleet = flower._Fleet(grid, [b"a", b"b"], Waiting(answers=1.0), {"1": 0, "2": 1})
    assert list(fleet.answers()) == [(0, [])]
    assert fleet.silent == {1}


def test_what_a_node_may_send_is_refused_and_counted_and_the_round_goes_on(parties, linked):
    """NaN, a forged round or client, too large, of the wrong shape, repeated, no message."""
    from flwr.app import Context

    here = parties.world(
        {"client_rate": 1.0, "record_rate": 1.0, "rounds": 6, "noise_multiplier": 0.0}
    )
    head, seen = Server(here.plan, weights_of(here.make()), here.sgd), []
    twin = Server(here.plan, weights_of(here.make()), here.sgd)
    linked.serve(
        server_app(
            head,
            linked.keys,
            Waiting(answers=PATIENCE, poll=0.01, farewell=0.0),
            lambda s: seen.append(s.round),
        )
    )
    hands = [here.client(i, 3) for i in range(3)]
    apps = [client_app(hand) for hand in hands]
    nan, large = np.full(53, np.nan, np.float32), np.full(53, 1e3, np.float32)

    def spoilt(update):
        run, number, values = update.run, update.round, update.values
        return [
            [Update(run, 0, number, nan)],
            [Update(run, 0, number + 1, values)],
            [Update(run, 1, number, values)],
            [Update(run, 0, number, large)],
            [Update(run, 0, number, values[1:])],
            [update, update],
        ][number]

    wire, end = Wire(linked.state), time.monotonic() + PATIENCE
    while len(seen) < 6 and time.monotonic() < end:
        for i, node in enumerate(linked.nodes):
            message = nodes._received(wire, node)
            if message is None:
                continue
            reply = apps[i](
                message, Context(message.metadata.run_id, node.node_id, {}, RecordDict(), {})
            )
            (good,) = (unpack(piece) for piece in reply.content["verax"]["messages"])
            said = [good.pack()]
            if i == 0:
                said = [b"no message", *(update.pack() for update in spoilt(good))]
                reply.content["verax"]["messages"] = said
            if i or good.round == 5:
                twin.add(good.values)
            nodes._send(wire, node, reply)
            if i == 2:
                twin.step()
        time.sleep(0.01)
    assert seen == [1, 2, 3, 4, 5, 6]
    assert head.refused == {
        "not finite": 1,
        "early": 1,
        "forged sender": 1,
        "large": 1,
        "shape": 1,
        "replayed": 1,
    }
    np.testing.assert_allclose(head.weights.numpy(), twin.weights.numpy(), rtol=1e-5, atol=1e-6)
    assert [hand.spent for hand in hands] == [6, 6, 6]


def test_a_model_that_all_share_does_not_vanish_while_the_next_message_is_announced():
    """Flower's own store raises KeyError here within a second; the server would die of it."""
    import threading
    from hashlib import sha256

    from flwr.proto.message_pb2 import ObjectTree

    store, wrong = link._Store(verify=False), []
    end = time.monotonic() + 1.5

    def name(text):
        return sha256(text.encode()).hexdigest()

    def messages_of(who):
        number = 0
        model = ObjectTree(object_id=name("record"), children=[ObjectTree(object_id=name("model"))])
        try:
            while time.monotonic() < end and not wrong:
                number += 1
                tree = ObjectTree(object_id=name(f"{who} {number}"), children=[model])
                store.preregister(1, tree)
                store.delete(tree.object_id)
        except KeyError as error:
            wrong.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=messages_of, args=(who,)) for who in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []


def test_keys(tmp_path):
    public = [new_key(tmp_path / str(i)) for i in range(2)]
    assert (tmp_path / "0").stat().st_mode & 0o777 == 0o600
    (tmp_path / "keys").write_bytes(b"".join(public))
    assert read_public_keys(tmp_path / "keys") == public
    with pytest.raises(FileExistsError):
        new_key(tmp_path / "0")
    with pytest.raises(ValueError, match="key must be a file with a private key"):
        read_key(tmp_path / "keys")


def test_bad_keys_and_times(parties):
    here = parties.world({})
    head = Server(here.plan, weights_of(here.make()), here.sgd)
    with pytest.raises(
        ValueError,
        match="keys must be 3 different public keys, one for each client, got 3 of which 2",
    ):
        server_app(head, [b"a", b"a", b"b"])
    with pytest.raises(ValueError, match="answers must be"):
        Waiting(answers=0.0)
    with pytest.raises(ValueError, match="farewell must be"):
        Waiting(farewell=-1.0)


@pytest.mark.parametrize("module", ["flower_link", "flower_node"])
def test_nothing_is_sent_to_the_makers_of_flower(module):
    look = (
        f"import verax.federated.{module}; from flwr.supercore import telemetry as t; "
        "print(t.FLWR_TELEMETRY_ENABLED)"
    )
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FLWR")}
    found = subprocess.run(
        [sys.executable, "-c", look],
        capture_output=True,
        text=True,
        check=True,
        env=inherited,
        timeout=PATIENCE,
    )
    assert found.stdout == "0\n"


def test_nothing_is_announced_between_a_look_at_the_answers_and_their_delivery(linked, monkeypatch):
    """Or the server would be given half an answer, and wait for the other half."""
    from concurrent.futures import ThreadPoolExecutor

    from flwr.proto.runtime_pb2 import PullAppMessagesRequest

    seen = []

    def look(request, state, task):
        with ThreadPoolExecutor(1) as other:
            seen.append(
                (
                    list(request.message_ids),
                    other.submit(state.lock.acquire, blocking=False).result(),
                )
            )

    monkeypatch.setattr(link.handlers, "pull_messages", look)
    here = link._Here.__new__(link._Here)
    here._state, here._task = linked.state, None
    here.PullMessages(PullAppMessagesRequest(message_ids=["unanswered"]))
    assert seen == [(["unanswered"], False)]
