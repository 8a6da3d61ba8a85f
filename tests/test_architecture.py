"""The lists in docs/architecture.md are the order in which rooms are entered."""

import asyncio
import re
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from verax import Mechanism, Poisson

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def listed(heading):
    """The modules of one list, in order."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\d+\. `(verax/[\w/]+\.py)`", section, re.MULTILINE)


@contextmanager
def watching():
    """The modules of verax in which functions are called, in the order of their first call."""
    package = str(ROOT / "verax")
    seen: dict[str, None] = {}

    def look(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package) and code.co_name != "<module>":
            seen.setdefault(Path(code.co_filename).relative_to(ROOT).as_posix())

    sys.setprofile(look)
    try:
        yield seen
    finally:
        sys.setprofile(None)


def assert_in_order(heading, act):
    with watching() as found:
        act()
    names = listed(heading)
    assert len(names) > 3
    assert [name for name in found if name in names] == names


def test_every_room_on_the_page_is_there():
    for name in re.findall(r"`(verax/[\w/]+\.py)`", PAGE):
        assert (ROOT / name).is_file(), name
    for row in re.findall(r"^\| (`[^|]+) \|", PAGE, re.MULTILINE):
        for room in re.findall(r"`([\w/]+)/`", row):
            assert (ROOT / "verax" / room).is_dir(), room


def test_one_guarantee():
    # what is imported later is imported now
    Mechanism(Poisson(0.01, 1000), 1.0).guarantee().epsilon(1e-5)
    assert_in_order(
        "One guarantee", lambda: Mechanism(Poisson(0.01, 1000), 1.0).guarantee().epsilon(1e-5)
    )


def test_one_training_step(tmp_path):
    torch = pytest.importorskip("torch")
    from verax.training import PrivateTrainer

    model, data = torch.nn.Linear(4, 2), (torch.randn(50, 4), torch.randint(0, 2, (50,)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = Mechanism(Poisson(0.1, 5), 1.0)
    trainer = PrivateTrainer(model, optimizer, run, ledger=tmp_path / "run.ledger", insecure_seed=0)

    def step():
        trainer.step(next(iter(trainer.batches(data))), torch.nn.CrossEntropyLoss())

    assert_in_order("One training step", step)


def test_one_federated_round(tmp_path):
    torch = pytest.importorskip("torch")
    from verax.federated import Embedded, Plan

    plan = Plan(
        clients=10,
        records=50,
        largest=10,
        client_rate=0.5,
        record_rate=0.5,
        rounds=2,
        noise_multiplier=1.0,
    )
    data = torch.randn(50, 4), torch.randint(0, 2, (50,))
    run = Embedded(
        plan,
        torch.nn.Linear(4, 2),
        torch.nn.CrossEntropyLoss(),
        data,
        [5] * 10,
        lambda parameters: torch.optim.SGD(parameters, 0.1),
        ledger=tmp_path / "run.ledger",
        insecure_seed=0,
    )
    assert_in_order("One federated round", run.step)


def test_one_browser_request():
    pytest.importorskip("fastapi")
    httpx = pytest.importorskip("httpx")
    from verax.web.app import create_app

    async def ask():
        app = create_app()
        transport = httpx.ASGITransport(app=app)
        async with (
            app.api.router.lifespan_context(app.api),
            httpx.AsyncClient(
                transport=transport, base_url="http://localhost", timeout=None
            ) as client,
        ):
            with watching() as found:
                (await client.get("/api/compare", params={"sampler": "poisson"})).raise_for_status()
        return found

    names, found = listed("One browser request"), asyncio.run(ask())
    assert [name for name in found if name in names] == names
