"""Diagnostics of a run: right, for its owner only, and without a trace elsewhere."""

from __future__ import annotations

import json
import math
import stat

import pytest

from verax import Batch, Deterministic, Individual, Mechanism, Mixed, Poisson

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from verax.ledger.ledger import Ledger  # noqa: E402
from verax.training import PrivateTrainer, fit  # noqa: E402
from verax.training.clipping.flat_buffer import FlatBuffer  # noqa: E402
from verax.training.data.round import DrawnBatch  # noqa: E402
from verax.training.diagnostics import NOTE, Diagnostics, PublicLog  # noqa: E402

torch.set_num_threads(1)

CLASSES = torch.nn.CrossEntropyLoss()


def data(records=24):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(records, 5, generator=generator)
    return x, torch.randint(0, 3, (records,), generator=generator)


def model():
    torch.manual_seed(0)
    return torch.nn.Linear(5, 3)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(path, mechanism, network=None, records=None, **how):
    network = network or model()
    fit(
        network,
        CLASSES,
        records or data(),
        mechanism,
        lambda p: torch.optim.SGD(p, 0.1),
        diagnostics=path,
        **how,
    )
    note, *rounds = lines(path)
    assert note == {"note": NOTE}
    return rounds, network


def by_hand(network, batch):
    """Gradients of all records, one by one."""
    found = []
    for x, y in zip(*batch, strict=True):
        network.zero_grad()
        torch.nn.functional.cross_entropy(network(x[None]), y[None]).backward()
        found.append(torch.cat([p.grad.flatten() for p in network.parameters()]))
    network.zero_grad(set_to_none=True)
    return torch.stack(found)


def test_the_numbers_are_those_of_the_batch(tmp_path):
    batch, before = data(), model()
    gradients = by_hand(before, batch)
    bound = float(gradients.norm(dim=1).median())
    first, *_ = run(
        tmp_path / "run.private", Mechanism(Deterministic(1, epochs=2), 3.0, Individual(bound))
    )[0]
    norms = gradients.norm(dim=1)
    total = (gradients * (bound / norms).clamp(max=1.0)[:, None]).sum(0)
    with torch.no_grad():
        outputs = before(batch[0])
    expected = {
        "round": 1,
        "clip_norm": bound,
        "signal_to_noise": float(total.norm()) / (3.0 * bound * math.sqrt(18)),
        "norm_10": float(norms.quantile(0.1)),
        "norm_50": float(norms.quantile(0.5)),
        "norm_90": float(norms.quantile(0.9)),
        "clipped": float((norms > bound).float().mean()),
        "loss": float(CLASSES(outputs, batch[1])),
        "accuracy": float((outputs.argmax(1) == batch[1]).float().mean()),
    }
    assert set(first) == set(expected)
    for name, value in expected.items():
        assert first[name] == pytest.approx(value, rel=1e-4), name


@pytest.mark.parametrize(("clipping", "groups"), [(Batch(0.2), 1), (Mixed(0.2, groups=3), 3)])
def test_clip_groups_have_norms_of_their_own(tmp_path, clipping, groups):
    rounds, _ = run(
        tmp_path / "run.private", Mechanism(Deterministic(1, epochs=2), 1.0, clipping, "zero-out")
    )
    for entry in rounds:
        assert entry["clipped"] * groups == pytest.approx(round(entry["clipped"] * groups))
        assert entry["norm_10"] <= entry["norm_50"] <= entry["norm_90"]
        assert 0.0 < entry["signal_to_noise"] <= groups / math.sqrt(18) * (1 + 1e-6)


def test_looking_changes_nothing(tmp_path):
    def trained(**how):
        network = torch.nn.Sequential(
            torch.nn.Linear(5, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3)
        )
        for parameter in network.parameters():
            torch.nn.init.constant_(parameter, 0.1)
        torch.manual_seed(3)
        mechanism = Mechanism(Poisson(0.3, 6), 1.0)
        fit(
            network,
            CLASSES,
            data(),
            mechanism,
            lambda p: torch.optim.SGD(p, 0.5),
            records=24,
            insecure_seed=1,
            **how,
        )
        return torch.cat([p.detach().flatten() for p in network.parameters()])

    assert torch.equal(trained(), trained(diagnostics=tmp_path / "run.private"))


def test_only_the_owner_can_read_them_and_the_ledger_has_none(tmp_path):
    ledger, path = tmp_path / "run.ledger", tmp_path / "run.private"
    run(path, Mechanism(Deterministic(2), 1.0), ledger=ledger)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for name in ("loss", "accuracy", "norm_50", "clipped"):
        assert name not in ledger.read_text()


def test_an_old_file_is_not_written_over(tmp_path):
    path = tmp_path / "run.private"
    path.write_text("of another run")
    with pytest.raises(ValueError, match="diagnostics must be a new file in an existing directory"):
        run(path, Mechanism(Deterministic(2), 1.0))
    assert path.read_text() == "of another run"
    with pytest.raises(ValueError, match="existing directory"):
        run(tmp_path / "none" / "run.private", Mechanism(Deterministic(2), 1.0))


def test_a_resumed_run_goes_on_with_its_file(tmp_path):
    ledger, path, state = (tmp_path / f"run.{ending}" for ending in ("ledger", "private", "state"))
    mechanism, network = Mechanism(Deterministic(4), 1.0), model()

    def trainer(book):
        return PrivateTrainer(
            network,
            torch.optim.SGD(network.parameters(), 0.1),
            mechanism,
            ledger=book,
            diagnostics=path,
        )

    first = trainer(ledger)
    batches = first.batches(data())
    for _ in range(2):
        first.step(next(batches), CLASSES)
    first.save(state)
    first._run.files.ledger.close()
    second = trainer(Ledger.open(ledger, mechanism))
    second.load(state, data())
    for batch in second.batches(data()):
        second.step(batch, CLASSES)
    assert [entry["round"] for entry in lines(path) if "round" in entry] == [1, 2, 3, 4]


def test_an_empty_batch_has_no_loss(tmp_path):
    rounds, _ = run(tmp_path / "run.private", Mechanism(Poisson(1e-9, 2), 1.0), records=data(4))
    assert rounds == [{"round": i, "clip_norm": 1.0, "signal_to_noise": 0.0} for i in (1, 2)]


def test_outputs_that_are_no_classes_have_no_accuracy(tmp_path):
    network = torch.nn.Linear(5, 1)
    path = tmp_path / "run.private"
    x = data()[0]
    fit(
        network,
        torch.nn.MSELoss(),
        (x, x[:, :1]),
        Mechanism(Deterministic(1), 1.0),
        lambda p: torch.optim.SGD(p, 0.1),
        diagnostics=path,
    )
    assert "loss" in lines(path)[1]
    assert "accuracy" not in lines(path)[1]


def test_long_runs_are_looked_at_now_and_then(tmp_path):
    kept = Diagnostics(tmp_path / "run.private", rounds=10_000, noise_multiplier=1.0)

    class Clipper:
        def add(self, data, records, into, groups, norm, observe):
            observed.append(observe is not None)

    observed, total = [], FlatBuffer(model().parameters())
    for number in (3, 5):
        kept.add(Clipper(), DrawnBatch(number, (), 0), total, 1.0)
    assert observed == [False, True]
    assert [line["round"] for line in lines(tmp_path / "run.private")[1:]] == [6]


def test_scores_on_public_data_are_logged(tmp_path):
    path, seen = tmp_path / "run.log", []

    def score(network):
        seen.append(network)
        return {"accuracy": 0.5, "broken": math.nan}

    network = model()
    how = {"log": PublicLog(path, score, every=2)}
    fit(
        network,
        CLASSES,
        data(),
        Mechanism(Deterministic(5), 1.0),
        lambda p: torch.optim.SGD(p, 0.1),
        **how,
    )
    assert lines(path) == [{"round": number, "accuracy": 0.5} for number in (2, 4, 5)]
    assert all(one is network for one in seen)
    with pytest.raises(ValueError, match="every must be"):
        PublicLog(path, score, every=0)
