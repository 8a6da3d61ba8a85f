"""Over Flower: the same weights as the objects, parties that die, and no strangers."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")
pytest.importorskip("flwr", reason="the Flower engine needs flwr: pip install 'verax[federated]'")

import httpx  # noqa: E402
from flwr.proto.fleet_pb2 import (  # noqa: E402
    ActivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.message_pb2 import Message as Letter  # noqa: E402
from flwr.proto.message_pb2 import Metadata, PullObjectRequest  # noqa: E402
from flwr.proto.node_pb2 import Node  # noqa: E402
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE  # noqa: E402

from verax import ledger  # noqa: E402
from verax.federated import (  # noqa: E402
    AsyncClient,
    AsyncServer,
    Diminishing,
    Embedded,
    Server,
    together,
    weights_of,
)
from verax.federated import flower_node as nodes  # noqa: E402
from verax.federated.asynchronous import Behind  # noqa: E402
from verax.federated.flower_keys import new_certificates, new_key, public_key, read_key  # noqa: E402

PARTIES = Path(__file__).with_name("parties.py")
SEED = 918_273_645
PATIENCE = 180.0  # seconds; far more than needed on a machine that does nothing else


@pytest.fixture(scope="module")
def nursery():
    """Starts parties, each in a process of its own; all of them end with the tests."""
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    source = subprocess.Popen(
        [sys.executable, str(PARTIES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=quiet,
        start_new_session=True,
    )
    try:
        assert source.stdout.readline() == "ready\n"

        def start(**order):
            source.stdin.write(
                json.dumps({key: str(o) if isinstance(o, Path) else o for key, o in order.items()})
                + "\n"
            )
            source.stdin.flush()
            return int(source.stdout.readline())

        yield start
    finally:
        os.killpg(source.pid, signal.SIGKILL)
        source.wait(PATIENCE)
        source.stdin.close()
        source.stdout.close()


class Federation:
    """A server and three clients in a folder."""

    def __init__(self, start, folder, plan, **options):
        self.start, self.folder, self.plan, self.options = start, folder, plan, options
        new_certificates(folder)
        (folder / "keys.pem").write_bytes(b"".join(new_key(folder / f"{i}.key") for i in range(3)))
        self.port = 0

    def serve(self, **options):
        pid = self.start(
            role="server",
            folder=self.folder,
            port=self.port,
            plan=self.plan,
            log=self.folder / "server.log",
            **self.options,
            **options,
        )
        self.port = int(self.sees("server", r"port (\d+)").group(1))
        return pid

    def join(self, *numbers, **options):
        common = {
            key: value for key, value in self.options.items() if key in ("seed", "asynchronous")
        }
        return [
            self.start(
                role="client",
                number=i,
                folder=self.folder,
                port=self.port,
                plan=self.plan,
                log=self.folder / f"{i}.log",
                **common,
                **options,
            )
            for i in numbers
        ]

    def log(self, who):
        path = self.folder / f"{who}.log"
        return path.read_text() if path.exists() else ""

    def sees(self, who, pattern):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if found := re.search(pattern, self.log(who)):
                return found
            time.sleep(0.05)
        raise AssertionError(f"{who} never said {pattern}:\n{self.log(who)}")

    def weights(self):
        self.sees("server", r"\nended\n")
        return np.load(self.folder / "weights.npy")


@pytest.fixture
def federation(nursery, tmp_path):
    running = []

    def make(plan, **options):
        return Federation(
            lambda **order: running.append(nursery(**order)) or running[-1],
            tmp_path,
            plan,
            **options,
        )

    yield make
    for process in running:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue


def alive(process):
    """Whether there is still such a process."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def one_by_one(here, seed):
    """What the objects end with in this process."""
    head = Server(here.plan, weights_of(here.make()), here.sgd, insecure_seed=seed)
    hands = [here.client(i, seed) for i in range(3)]
    for _ in range(here.plan.rounds):
        for hand in hands:
            update = hand.answer(head.model())
            if update is not None:
                assert head.receive(update) is None
        head.step()
    return head.weights.numpy()


@pytest.mark.parametrize("noise", ["central", "visible"])
def test_the_same_weights_as_the_objects_and_nothing_secret_in_logs(
    federation, parties, noise, tmp_path
):
    there = federation({"noise": noise}, seed=SEED)
    there.serve()
    there.join(0, 1, 2)
    found, here = there.weights(), parties.world({"noise": noise})
    np.testing.assert_allclose(found, one_by_one(here, SEED), rtol=1e-6, atol=1e-7)
    if noise == "central":
        whole = Embedded(
            here.plan,
            here.make(),
            here.loss,
            (here.x, here.y),
            parties.SIZES,
            here.sgd,
            insecure_seed=SEED,
        )
        whole.run()
        np.testing.assert_allclose(found, whole.server.weights.numpy(), rtol=2e-5, atol=2e-6)
    assert there.sees("server", r"refused (.*)\n").group(1) == "{}"
    for i in range(3):
        there.sees(i, r"ended")
        assert there.log(i) == "last model 4\nended\n"  # nothing else, whatever the client did
        assert ledger.read(tmp_path / f"{i}.ledger").complete
        written = there.log("server") + there.log(i)
        assert str(SEED) not in written
        assert "PRIVATE" not in written
    lines = there.log("server").splitlines()
    assert [line.split()[0] for line in lines] == ["port", *["round"] * 4, "refused", "ended"]


def test_asynchronous_rounds_end_with_the_weights_of_the_embedded_engine(federation, parties):
    """No client may be ahead, so each works at the broadcast models in any message order."""
    plan = {"noise": "local", "client_rate": 0.7}
    there = federation(plan, seed=SEED, asynchronous=True)
    there.serve()
    there.join(0, 1, 2)
    found, here, rule = there.weights(), parties.world(plan), (Diminishing(0.1, 0.1), Behind(0))
    head = AsyncServer(here.plan, weights_of(here.make()), *rule)
    together(
        head, [AsyncClient(here.client(i, SEED), *rule) for i in range(3)], turns=[2, 0, 1, 1] * 4
    )
    np.testing.assert_allclose(found, head.model().weights, rtol=1e-5, atol=1e-6)
    assert there.sees("server", r"refused (.*)\n").group(1) == "{}"


@pytest.mark.slow
def test_kill_9_of_a_client_and_its_return(federation, tmp_path):
    there = federation({"rounds": 16, "client_rate": 1.0})
    there.serve(answers=1.5)
    there.join(0, pace=0.4, dies_at=2)
    there.join(1, 2, pace=0.4)
    there.sees("server", r"round 5\n")  # the others go on
    assert ledger.read(tmp_path / "0.ledger").released == 2
    there.join(0, pace=0.4)
    there.weights()
    there.sees(0, r"last model 16")
    for i in range(3):
        there.sees(i, r"ended")
        book = ledger.read(tmp_path / f"{i}.ledger")
        assert book.complete  # missed rounds are counted, too
        assert book.released == 16
    assert ledger.read(tmp_path / "server.ledger").complete


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True])
def test_kill_9_of_the_server_and_its_restart(federation, tmp_path, asynchronous):
    there = federation(
        {"rounds": 10, "client_rate": 1.0, "noise": "local"}, asynchronous=asynchronous
    )
    dying = there.serve(answers=2.0, dies_at=3)
    there.join(0, 1, 2, pace=0.1)
    there.sees("server", r"round [3-9]\n")
    while alive(dying):
        time.sleep(0.05)
    done = int(re.findall(r"round (\d+)\n", there.log("server"))[-1])
    (tmp_path / "server.log").rename(tmp_path / "first.log")
    there.serve(answers=2.0, again=True)
    assert there.weights().shape == (53,)
    rounds = [int(number) for number in re.findall(r"round (\d+)\n", there.log("server"))]
    assert rounds[-1] == 10
    if asynchronous:
        assert rounds == sorted(set(rounds))
        assert min(rounds) >= done
    else:
        assert rounds == list(range(rounds[0], 11))
        assert rounds[0] > done  # no round twice
        book = ledger.read(tmp_path / "server.ledger")
        assert book.complete
        assert [event.kind for event in book.events] == ["resumed", "finished"]
    for i in range(3):
        there.sees(i, r"last model 10")
        there.sees(i, r"ended")
        assert ledger.read(tmp_path / f"{i}.ledger").complete
        assert ledger.read(tmp_path / f"{i}.ledger").released == 10


def test_nobody_else_joins_or_reads_or_speaks_for_another(federation, tmp_path):
    there = federation({"rounds": 30})
    # for the third client, who never comes: it is there as long as the test
    there.serve(gather=1e6)
    address, root = f"127.0.0.1:{there.port}", (tmp_path / "ca.pem").read_bytes()
    new_key(tmp_path / "stranger.key")
    stranger = read_key(tmp_path / "stranger.key")
    insider = read_key(tmp_path / "1.key")

    with pytest.raises(httpx.HTTPStatusError) as refused, nodes._connected(stranger, root, address):
        pass
    assert refused.value.response.is_client_error
    with pytest.raises(nodes.NotAdmitted, match=r"has not admitted this client for 0\.5 s"):
        nodes.join(None, tmp_path / "stranger.key", tmp_path / "ca.pem", address, patience=0.5)

    with nodes._connected(insider, root, address) as (client, node):
        there.join(0)
        there.sees("server", r"port")
        other = _other_node(client, node, insider, stranger, root, address)
        # In somebody else's name: as a node, as the author of a message, with the key of a third.
        for request in (
            PullMessagesRequest(node=Node(node_id=other)),
            PullMessagesRequest(node=Node(node_id=1)),
        ):
            with pytest.raises(httpx.HTTPStatusError, match="401"):
                client.PullMessages(request)
        forged = Letter(metadata=Metadata(src_node_id=other, run_id=1, message_type="train"))
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            client.PushMessages(PushMessagesRequest(node=node, messages_list=[forged]))
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            client.ActivateNode(
                ActivateNodeRequest(public_key=public_key(stranger), heartbeat_interval=30)
            )

    with httpx.Client(verify=_context(tmp_path / "ca.pem"), base_url=f"https://{address}") as plain:
        model = PullMessagesRequest(node=node).SerializeToString()
        headers = {"content-type": PROTOBUF_MEDIA_TYPE}
        for path in (
            "pull-messages",
            "pull-object",
            "send-node-heartbeat",
            "get-run",
            "push-messages",
        ):
            assert (
                plain.post(f"/v1/fleet/{path}", content=model, headers=headers).status_code == 401
            )
        for path in (
            "/v1/control/register-node",
            "/v1/control/start-run",
            "/v1/runtime/acquire-task",
            "/docs",
            "/",
        ):
            assert plain.post(path, content=b"", headers=headers).status_code == 404
            assert plain.get(path).status_code == 404
    # however much it says will follow
    assert _begun(there.port, tmp_path / "ca.pem").startswith(b"HTTP/1.1 401 ")
    with pytest.raises(httpx.HTTPError):  # not without TLS
        httpx.post(f"http://{address}/v1/fleet/pull-messages", content=model)
    new_certificates(_folder(tmp_path / "false"))
    false = (tmp_path / "false" / "ca.pem").read_bytes()
    with (
        pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"),
        nodes._connected(insider, false, address),
    ):
        pass  # nor does a client talk to a stranger


def _folder(path):
    path.mkdir()
    return path


def _begun(port, root):
    """What a stranger hears who has sent the head of a request of a terabyte, and no more."""
    import socket

    head = (
        f"POST /v1/fleet/push-object HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: {PROTOBUF_MEDIA_TYPE}\r\n"
        f"Content-Length: {2**40}\r\n\r\n"
    )
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain,
        _context(root).wrap_socket(plain, server_hostname="127.0.0.1") as wire,
    ):
        wire.sendall(head.encode())
        return wire.recv(64)


def _context(root):
    import ssl

    return ssl.create_default_context(cafile=str(root))


def _other_node(client, node, insider, stranger, root, address):
    """The number of a node that is not ours; and no node registers itself."""
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    auth = NodeAuthHttpInterceptor(stranger, stranger.public_key())
    with FleetHttpClient.from_server_address(address, False, root, interceptors=[auth]) as alone:
        with pytest.raises(httpx.HTTPStatusError):
            alone.RegisterNode(RegisterNodeFleetRequest(public_key=public_key(stranger)))
        for call, request in (
            (alone.PullMessages, PullMessagesRequest(node=node)),
            (alone.PullObject, PullObjectRequest(node=node, run_id=1, object_id="0" * 64)),
        ):
            with pytest.raises(httpx.HTTPStatusError, match="401"):
                call(request)
    return node.node_id ^ 1
