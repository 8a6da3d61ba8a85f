"""ClientApps: what is answered, ignored and refused, and relaying to a client's own process."""

import os
import socket
import stat
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")
pytest.importorskip("flwr", reason="the Flower engine needs flwr: pip install 'verax[federated]'")

from flwr.app import ConfigRecord, Context, RecordDict  # noqa: E402

from verax.federated import Server, unpack, weights_of  # noqa: E402
from verax.federated.flower import (  # noqa: E402
    client_app,
    pipe,
    relay_app,
    serve,
    service,
)
from verax.federated.flower.client import pieces_of, record_of  # noqa: E402
from verax.federated.flower.pipe import connect  # noqa: E402

PATIENCE = 180.0  # seconds; far more than needed on a machine that does nothing else
PACE = 1e-3


def answered(app, message, **node_config):
    return pieces_of(app(message, Context(1, 100, node_config, RecordDict(), {})))


@pytest.mark.parametrize("noise", ["central", "local"])
def test_answers_have_one_length_whether_the_client_takes_part_or_not(parties, question, noise):
    here = parties.world({"rounds": 12, "noise": noise})
    head = Server(here.plan, weights_of(here.make()), here.sgd)
    client, twin = here.client(1, 3), here.client(1, 3)
    app, lengths, parts = client_app(client, pace=PACE), set(), set()
    for _ in range(12):
        (content,) = answered(app, question(record_of([head.model().pack()])))
        update = unpack(content)
        lengths.add(len(content))
        twin.charge(head.round)
        parts.add(twin.contribution(head.round, head.weights.numpy()) is not None)
        assert head.receive(update, sender=1) is None
        head.step()
    assert parts == {True, False}
    assert len(lengths) == 1


def test_a_client_is_not_moved_by_what_is_no_model(parties, question):
    here = parties.world({})
    head, client = Server(here.plan, weights_of(here.make()), here.sgd), here.client(0, 3)
    app, model = client_app(client, pace=PACE), head.model().pack()
    assert answered(app, question(record_of([b"", b"VRX1", model[:-1]]))) == []
    assert answered(app, question(record_of([]))) == []
    assert answered(app, question(RecordDict())) == []
    assert answered(app, question(RecordDict({"verax": ConfigRecord({"messages": 1})}))) == []
    assert answered(app, question(RecordDict({"verax": ConfigRecord({"messages": [1]})}))) == []
    assert client.spent == 0
    assert len(answered(app, question(record_of([model])))) == 1
    assert answered(app, question(record_of([model]))) == []  # a round is answered once
    assert client.spent == 1


def test_answers_leave_at_multiples_of_the_pace(monkeypatch, parties):
    works, now = iter([0.01, 0.15, 0.25]), [100.0]

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(service, "_answers", lambda *_: sleep(next(works)) or [])
    told = service.ClientService(parties.world({}).client(0, 3), pace=0.2)
    spent = []
    for _ in range(3):
        begun = now[0]
        told.reply(b"train", [])
        spent.append(now[0] - begun)
    assert spent == pytest.approx([0.2, 0.2, 0.4])


@pytest.fixture
def address(tmp_path):
    return os.fspath(tmp_path / "client.sock")


@pytest.fixture
def serving(address):
    """Serves clients in threads, which end with the tests."""
    threads = []

    def start(client, **options):
        thread = threading.Thread(target=serve, args=(client, address), kwargs=options, daemon=True)
        threads.append(thread)
        thread.start()
        return thread

    yield start
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_relay_answers_as_the_client_itself_and_the_service_ends_with_the_run(
    parties, question, serving, address, tmp_path
):
    here, last = parties.world({"client_rate": 1.0}), []
    head = Server(here.plan, weights_of(here.make()), here.sgd)
    client = here.client(1, 3, ledger=tmp_path / "client.ledger")
    app, twin = relay_app(patience=PATIENCE), client_app(here.client(1, 3), pace=PACE)
    serving(client, pace=PACE, ended=last.append)
    model = [head.model().pack()]
    found = answered(app, question(record_of(model)), client=address)
    assert found == answered(twin, question(record_of(model)))
    # whoever hangs up or babbles, or claims that more follows than a message can have, is ignored
    for content in ([], [b"\xff" * 4], [b"\1\0\0\0", b"x" * 10_000], [b"", b""], [b"\0\0\0\0"]):
        with connect(address) as stranger, suppress(OSError):  # the service may have hung up first
            for piece in content:
                stranger.send_bytes(piece)
    assert answered(app, question(record_of(model)), client=address) == []
    assert (client.spent, last) == (1, [])
    ending = question(record_of(model), kind="query")
    assert answered(app, ending, client=address) == []
    assert [model.round for model in last] == [0]


def test_a_relay_waits_for_a_client_that_starts_anew(parties, question, serving, address):
    here = parties.world({"client_rate": 1.0})
    head = Server(here.plan, weights_of(here.make()), here.sgd)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(address)  # what a process leaves behind that was killed
    late = threading.Timer(0.5, serving, [here.client(1, 3)], {"pace": PACE})
    late.start()
    app = relay_app(address, patience=PATIENCE)
    assert len(answered(app, question(record_of([head.model().pack()])))) == 1
    assert answered(app, question(record_of([head.model().pack()]), kind="query")) == []


def test_a_relay_says_what_to_start(question, address):
    with pytest.raises(ConnectionError, match=r"start one with verax\.federated\.flower\.serve"):
        answered(relay_app(address, patience=1e-3), question(record_of([])))
    with pytest.raises(ValueError, match="--node-config 'client="):
        answered(relay_app(), question(record_of([])))


def test_only_the_user_can_open_a_socket_and_nobody_can_take_one_in_use(address):
    with pipe.listening(address) as listener:
        assert stat.S_IMODE(os.stat(address).st_mode) == 0o600
        thread = threading.Thread(target=lambda: listener.accept().close())
        thread.start()
        with pytest.raises(ValueError, match="address must not be in use"), pipe.listening(address):
            pass
        thread.join(PATIENCE)
    with pipe.listening(address, 0o660):
        assert stat.S_IMODE(os.stat(address).st_mode) == 0o660
