"""States of servers: a restart needs the state and the ledger of one run."""

import os
import random
from contextlib import suppress

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from verax import ledger  # noqa: E402
from verax.federated import AsyncServer, Diminishing, Embedded, Server, weights_of  # noqa: E402
from verax.training import Ledger  # noqa: E402

STEP = Diminishing(0.1)


@pytest.fixture
def files(tmp_path):
    return {"ledger": tmp_path / "run.ledger", "state": tmp_path / "run.state"}


@pytest.fixture
def both(world, files):
    """Both ways to restart a run, and one that has had 15 of its 20 rounds."""
    run = world.plan(rounds=20)
    head = world.server(run, seed=None, **files)
    for _ in range(15):
        head.step()
    head.close()
    return [
        lambda **change: Server.restart(run, world.sgd, **files | change),
        lambda **change: Embedded.restart(
            run,
            world.make(),
            world.loss,
            (world.x, world.y),
            world.sizes,
            world.sgd,
            **files | change,
        ),
    ]


def test_a_ledger_that_lost_lines_is_refused(files, both):
    lines = files["ledger"].read_bytes().splitlines(keepends=True)
    files["ledger"].write_bytes(b"".join(lines[:4]))
    assert ledger.read(files["ledger"]).released == 3
    kept = files["state"].read_bytes()
    for restart in both:
        with pytest.raises(
            ValueError,
            match=r"must not be ahead of the ledger, got 15 rounds, of which .* knows 3:",
        ):
            restart()
    assert ledger.read(files["ledger"]).released == 3
    assert files["state"].read_bytes() == kept
    files["ledger"].write_bytes(b"".join(lines))
    assert both[0]().round == 15


def test_a_ledger_of_another_run_is_refused(world, files, both, tmp_path):
    other = tmp_path / "other.ledger"
    twin = world.server(world.plan(rounds=20), seed=None, ledger=other)
    for _ in range(17):
        twin.step()
    twin.close()
    for restart in both:
        with pytest.raises(
            ValueError, match=r"must be of the run in .*other\.ledger', got one of another run"
        ):
            restart(ledger=other)
    Ledger.open(other).close()  # nobody holds it


def test_a_state_of_a_run_without_a_ledger_is_refused(world, files, both, tmp_path):
    world.server(world.plan(rounds=20), state=tmp_path / "lone.state")
    for restart in both:
        with pytest.raises(ValueError, match="another run"):
            restart(state=tmp_path / "lone.state")


def test_rounds_that_only_the_ledger_knows_are_spent(files, both, world):
    older = files["state"].read_bytes()
    again = both[0]()
    again.step()
    again.close()
    files["state"].write_bytes(older)
    again = both[1]()
    assert again.round == 16
    again.run()
    assert ledger.read(files["ledger"]).complete


def contents(path):
    """What may stand in place of a state."""
    whole, state = path.read_bytes(), torch.load(path, weights_only=True)
    yield from (
        b"",
        b"hello\n",
        b"\0" * 1000,
        b"PK\x03\x04",
        whole[:100],
        whole[: len(whole) // 2],
        whole[:-1],
    )
    for value in (
        3,
        [],
        {},
        {"plan": "x"},
        {"plan": 1, "run": 2, "weights": 3},
        torch.zeros(3),
        state | {"weights": torch.tensor([float("nan")])},
        state | {"run": "\x1b[2J"},
    ):
        torch.save(value, path)
        yield path.read_bytes()


def test_what_is_no_state_is_refused_in_words(files, both):
    for content in contents(files["state"]):
        files["state"].write_bytes(content)
        for restart in both:
            with pytest.raises(
                ValueError,
                match=r"state must (be a file that this kind of server wrote|hold finite)",
            ):
                restart()


def test_a_state_that_is_not_there_or_no_file_is_refused_in_words(both, tmp_path):
    for restart in both:
        with pytest.raises(
            ValueError, match=r"state must be a file that can be read, got .*: No such file"
        ):
            restart(state=tmp_path / "none")
        with pytest.raises(
            ValueError, match=r"state must be a file that can be read, got .*: Is a directory"
        ):
            restart(state=tmp_path)
        with pytest.raises(ValueError, match="which is a device"):
            restart(state="/dev/zero")


def test_a_damaged_state_fails_in_no_other_way(files, both):
    chance = random.Random(3)
    whole = files["state"].read_bytes()
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(chance.choice([1, 20])):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        files["state"].write_bytes(
            damaged[: chance.choice([len(damaged), chance.randrange(len(damaged))])]
        )
        with suppress(ValueError):  # or the bytes did not matter
            both[0]().close()


def test_another_optimizer_or_model_is_refused(world, files, both):
    run = world.plan(rounds=20)
    with pytest.raises(
        ValueError, match="optimizer must be the SGD that the run began with, got Adam"
    ):
        Server.restart(run, lambda p: torch.optim.Adam(p, 0.3), **files)
    with pytest.raises(
        ValueError, match=r"optimizer must have the lr 0\.3 that the run began with, got 0\.5"
    ):
        Server.restart(run, lambda p: torch.optim.SGD(p, 0.5, momentum=0.5), **files)
    with pytest.raises(
        ValueError, match="model must have the 53 weights of the run, got one with 8"
    ):
        Embedded.restart(
            run,
            torch.nn.Linear(7, 1),
            world.loss,
            (world.x, world.y),
            world.sizes,
            world.sgd,
            **files,
        )
    assert both[0]().round == 15  # none of them kept the ledger


def test_a_ledger_of_another_plan_is_refused(world, tmp_path):
    with Ledger.create(tmp_path / "l", world.plan(rounds=3).mechanism()) as book:
        with pytest.raises(ValueError, match="ledger must declare what the plan runs"):
            world.server(world.plan(), ledger=book)
        with pytest.raises(ValueError, match="insecure_seed must not be used"):
            world.server(world.plan(rounds=3), ledger=book)


def test_an_open_ledger_says_how_far_the_run_is(world, files, both):
    with Ledger.open(files["ledger"]) as book:
        head = world.server(world.plan(rounds=20), seed=None, ledger=book)
        assert head.round == 15
        head.step()
    assert ledger.read(files["ledger"]).released == 16


def test_a_state_has_a_file_of_its_own(world, tmp_path):
    with pytest.raises(
        ValueError, match=r"state must be a file of its own, got .* which is the ledger, too"
    ):
        world.server(world.plan(), ledger=tmp_path / "one", state=tmp_path / "one")
    with pytest.raises(ValueError, match="state must be a file in an existing folder"):
        world.server(world.plan(), ledger=tmp_path / "one", state=tmp_path / "none" / "state")
    assert os.listdir(tmp_path) == []


def test_an_asynchronous_state_is_refused_in_words_too(world, tmp_path):
    run, state = world.plan(noise="local"), tmp_path / "state"
    AsyncServer(run, weights_of(world.make()), STEP, state=state)
    for content in contents(state):
        state.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"state must (be a file that this kind of server wrote|hold finite)"
        ):
            AsyncServer.restart(run, STEP, state)
    world.server(run, state=state)
    with pytest.raises(ValueError, match="this kind of server"):
        AsyncServer.restart(run, STEP, state)
