"""What breaks elsewhere works here, or is refused in words, through the trainer."""

import math
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset  # noqa: E402

from verax import (  # noqa: E402
    BallsInBins,
    Batch,
    BufferedShuffle,
    Deterministic,
    Individual,
    Mechanism,
    Mixed,
    NoGuarantee,
    Poisson,
    Shuffle,
    ledger,
)
from verax.training import LeftMechanism, MixedRecords, PrivateTrainer  # noqa: E402

torch.set_num_threads(1)
RECORDS = 7
NORM = 0.3


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def trainer_of(model, mechanism, **more):
    more.setdefault("insecure_seed", 1)
    return PrivateTrainer(model, torch.optim.SGD(list(model.parameters()), 1.0), mechanism, **more)


def by_loop(model, data, losses):
    """The clipped mean gradient, record by record, by plain autograd."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in parameters]
    for i in range(RECORDS):
        one = tuple(part[i : i + 1] for part in data)
        found = torch.autograd.grad(losses(model, one), parameters, allow_unused=True)
        found = [
            torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)
        ]
        size = math.sqrt(sum(float(g.square().sum()) for g in found))
        for into, g in zip(total, found, strict=True):
            into += g * min(1.0, NORM / size) / RECORDS
    return dict(zip([id(p) for p in parameters], total, strict=True))


def check(model, x, classes=3, loss=None, steps=2):
    """Rounds without noise equal a loop over records; the model stays as it was."""
    data = x, torch.randint(0, classes, (RECORDS,))
    loss = loss or nn.CrossEntropyLoss()
    keys, kinds = list(model.state_dict()), [type(m) for m in model.modules()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = trainer_of(
            model, Mechanism(Deterministic(1, epochs=steps), 0.0, Individual(NORM)), micro_batch=3
        )
        for batch in trainer.batches(data):
            before = weights(model)
            mean = by_loop(
                model, data, lambda m, one: functional.cross_entropy(m(*one[:-1]), one[-1])
            )
            trainer.step(batch, loss)
            for name, p in model.named_parameters():
                moved = before[name] - p.detach()
                wanted = mean.get(id(p), torch.zeros_like(moved))
                assert float((moved - wanted).norm()) <= 1e-4 * float(wanted.norm()) + 1e-6, name
    assert list(model.state_dict()) == keys
    assert [type(m) for m in model.modules()] == kinds
    assert not any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules()
    )


# --- models ---------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.decode = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.decode.weight = self.embed.weight

    def forward(self, x):
        return self.decode(self.embed(x).mean(dim=1))


class Keyword(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 3)

    def forward(self, x):
        return self.body(input=x)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.body(self.body(x).tanh()).tanh())


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.body(x, x, x, need_weights=False)[0].mean(dim=1))


class Last(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body, self.head = body, nn.Linear(6, 3)

    def forward(self, x):
        out = self.body(x)
        return self.head((out[0] if isinstance(out, tuple) else out).mean(dim=1))


class Expanded(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.place, self.head = nn.Embedding(9, 6), nn.Embedding(5, 6), nn.Linear(6, 3)

    def forward(self, x):
        places = torch.arange(x.shape[1]).expand(len(x), -1)  # not contiguous
        return self.head((self.word(x) + self.place(places)).mean(dim=1))


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.idle = nn.Linear(6, 3), nn.Linear(2, 2)

    def forward(self, x):
        return self.body(x)


class Checkpointed(nn.Module):
    """Activations computed again in the backward pass, in the way that autograd keeps track of."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(
            torch.utils.checkpoint.checkpoint(lambda v: self.body(v).tanh(), x, use_reentrant=False)
        )


FLAT, WORDS = torch.randn(RECORDS, 6), torch.randint(0, 9, (RECORDS, 5))
MODELS = {
    "tied weights": (Tied, WORDS, 9),
    "relu in place": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
        FLAT,
        3,
    ),
    "keyword inputs": (Keyword, FLAT, 3),
    "a module used twice": (Twice, FLAT, 3),
    "multi-head attention": (Attention, torch.randn(RECORDS, 4, 6), 3),
    "transformer encoder layer": (
        lambda: Last(nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)),
        torch.randn(RECORDS, 4, 6),
        3,
    ),
    "lstm": (lambda: Last(nn.LSTM(6, 6, batch_first=True)), torch.randn(RECORDS, 4, 6), 3),
    "gru": (lambda: Last(nn.GRU(6, 6, 2, batch_first=True)), torch.randn(RECORDS, 4, 6), 3),
    "linear on 3-D": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.Flatten(), nn.Linear(16, 3)),
        torch.randn(RECORDS, 4, 6),
        3,
    ),
    "linear on 4-D": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.Flatten(), nn.Linear(24, 3)),
        torch.randn(RECORDS, 2, 3, 6),
        3,
    ),
    "expanded indices": (Expanded, WORDS, 3),
    "unused parameters": (Unused, FLAT, 3),
    "checkpointed activations": (Checkpointed, FLAT, 3),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_break_elsewhere(name):
    make, x, classes = MODELS[name]
    check(make(), x, classes)


def test_unused_parameters_get_their_noise_like_all_others():
    model = Unused()
    before = weights(model)
    trainer = trainer_of(model, Mechanism(Deterministic(1), 1.0))
    for batch in trainer.batches((FLAT, torch.zeros(RECORDS, dtype=torch.long))):
        trainer.step(batch, nn.CrossEntropyLoss())
    assert all(bool((p.detach() != before[name]).all()) for name, p in model.named_parameters())


def test_parameters_frozen_and_unfrozen_between_steps():
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    data = FLAT, torch.randint(0, 3, (RECORDS,))
    trainer = trainer_of(model, Mechanism(Deterministic(1, epochs=3), 0.0, Individual(NORM)))
    for batch, frozen in zip(trainer.batches(data), (False, True, False), strict=True):
        model[0].requires_grad_(not frozen)
        before = weights(model)
        mean = by_loop(model, data, lambda m, one: functional.cross_entropy(m(one[0]), one[1]))
        trainer.step(batch, nn.CrossEntropyLoss())
        for name, p in model.named_parameters():
            wanted = mean.get(id(p), torch.zeros_like(p))
            torch.testing.assert_close(before[name] - p.detach(), wanted, rtol=1e-4, atol=1e-6)
            assert bool((before[name] == p.detach()).all()) == (frozen and name.startswith("0"))


@pytest.mark.parametrize(
    "norm",
    [
        lambda: nn.BatchNorm1d(5),
        lambda: nn.BatchNorm1d(5, affine=False),
        lambda: nn.BatchNorm1d(5).requires_grad_(False),
        lambda: nn.BatchNorm1d(5, track_running_stats=False).eval(),
        lambda: nn.SyncBatchNorm(5),
    ],
)
def test_batch_norm_in_any_disguise_is_refused_under_individual_clipping(norm):
    model = nn.Sequential(nn.Linear(6, 5), norm(), nn.Linear(5, 3))
    trainer = trainer_of(model, Mechanism(Deterministic(1), 1.0))
    batch = next(trainer.batches((FLAT, torch.zeros(RECORDS, dtype=torch.long))))
    before = weights(model)
    with pytest.raises(MixedRecords, match=r"nn\.GroupNorm or nn\.LayerNorm"):
        trainer.step(batch, nn.CrossEntropyLoss())
    assert trainer.rounds == 0
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


# --- losses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.CrossEntropyLoss(reduction="none"),
        functional.cross_entropy,
        lambda out, y: functional.cross_entropy(out, y, reduction="none"),
    ],
)
def test_no_reduction_makes_a_silent_factor(loss):
    check(nn.Linear(6, 3), FLAT, loss=loss)


def test_a_reduced_loss_of_a_dictionary_is_refused_in_words():
    """The criterion sees model and batch: nobody can ask it again record by record."""
    trainer = trainer_of(nn.Linear(6, 3), Mechanism(Deterministic(1), 1.0))
    data = {"x": FLAT, "y": torch.zeros(RECORDS, dtype=torch.long)}
    batch = next(trainer.batches(data))
    with pytest.raises(ValueError, match="one value per record"):
        trainer.step(
            batch, lambda model, batch: functional.cross_entropy(model(batch["x"]), batch["y"])
        )


# --- rounds ---------------------------------------------------------------------------------------


class Named(Dataset):
    def __len__(self):
        return RECORDS

    def __getitem__(self, i):
        return {"x": FLAT[i], "y": torch.tensor(0), "name": f"record {i}"}


@pytest.mark.parametrize(
    "data",
    [
        (FLAT, torch.zeros(RECORDS, dtype=torch.long)),
        {"x": FLAT, "y": torch.zeros(RECORDS, dtype=torch.long)},
        TensorDataset(FLAT, torch.zeros(RECORDS, dtype=torch.long)),
        Named(),
    ],
)
@pytest.mark.parametrize("clipping", [Individual(), Batch(), Mixed(groups=2)])
def test_empty_batches(data, clipping, tmp_path):
    model = nn.Linear(6, 3)
    trainer = trainer_of(
        model, Mechanism(Poisson(1e-9, 3), 1.0, clipping), ledger=tmp_path / "run.ledger"
    )
    for batch in trainer.batches(data):
        first = batch.data["x"] if isinstance(batch.data, dict) else batch.data[0]
        assert first.shape == (0, 6)
        before = weights(model)
        trainer.step(batch, nn.CrossEntropyLoss())
        assert all(bool((p.detach() != before[name]).any()) for name, p in model.named_parameters())
    assert ledger.read(tmp_path / "run.ledger").complete


def test_two_backwards_before_a_step_are_noticed():
    model = nn.Linear(6, 3)
    y = torch.zeros(RECORDS, dtype=torch.long)
    trainer = trainer_of(model, Mechanism(Deterministic(1), 1.0))
    batch = next(trainer.batches((FLAT, y)))
    for _ in range(2):
        functional.cross_entropy(model(FLAT), y).backward()
    with pytest.raises(LeftMechanism, match="not clipped"):
        trainer.step(batch, nn.CrossEntropyLoss())


def test_a_backward_whose_gradients_were_cleared_does_no_harm():
    model = nn.Linear(6, 3)
    functional.cross_entropy(model(FLAT), torch.zeros(RECORDS, dtype=torch.long)).backward()
    model.zero_grad()
    check(model, FLAT)


def test_leaving_a_batch_half_done_is_noticed(tmp_path):
    trainer = trainer_of(
        nn.Linear(6, 3), Mechanism(Shuffle(3), 1.0), ledger=tmp_path / "run.ledger"
    )
    data = FLAT, torch.zeros(RECORDS, dtype=torch.long)
    for _ in trainer.batches(data):
        break  # an exception in one's own loop, say, and then the loop is begun again
    with pytest.raises(LeftMechanism, match="not stepped on"):
        next(trainer.batches(data))
    assert "not stepped on" in ledger.read(tmp_path / "run.ledger").ended.reason


def test_lbfgs_is_refused_in_words():
    model = nn.Linear(6, 3)
    with pytest.raises(ValueError, match=r"LBFGS.*use SGD, Adam"):
        PrivateTrainer(
            model, torch.optim.LBFGS(model.parameters()), Mechanism(Deterministic(1), 1.0)
        )


# --- streams and samplers of one's own ------------------------------------------------------------


class Passing(IterableDataset):
    """A stream that counts how often it is begun."""

    def __init__(self, size=20):
        self.size, self.passes = size, 0

    def __iter__(self):
        self.passes += 1
        return ((torch.full((6,), float(i)), 0) for i in range(self.size))


class Sized(Passing):
    def __len__(self):
        return self.size


@pytest.mark.parametrize("sampler", [Deterministic(4, epochs=2), BufferedShuffle(5, 2, epochs=3)])
def test_streams_give_the_batches_of_the_sampler(sampler):
    whole = torch.arange(20.0).unsqueeze(1).repeat(1, 6), torch.zeros(20, dtype=torch.long)
    seen = []
    for data, more in ((whole, {}), (Passing(), {"records": 20}), (Sized(), {})):
        model = nn.Linear(6, 3)
        trainer = trainer_of(model, Mechanism(sampler, 1.0), **more)
        rounds = []
        for batch in trainer.batches(data):
            rounds.append(batch.data[0][:, 0].tolist())
            trainer.step(batch, nn.CrossEntropyLoss())
            if isinstance(data, Passing):
                assert (
                    len(trainer._rounds.data._held) <= 2 * 20 // 5
                )  # no more than the buffer holds
        seen.append(rounds)
        if isinstance(data, Passing):
            assert data.passes == sampler.epochs
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("sampler", [Poisson(0.2, 4), Shuffle(4), BallsInBins(4)])
def test_streams_are_refused_where_any_record_may_come_next(sampler):
    with pytest.raises(
        ValueError, match=r"a stream: use the sampler BufferedShuffle\(batches, buffer\)"
    ):
        next(trainer_of(nn.Linear(6, 3), Mechanism(sampler, 1.0), records=20).batches(Passing()))


def all_of(trainer, data):
    for batch in trainer.batches(data):
        trainer.step(batch, nn.CrossEntropyLoss())


def test_a_stream_must_have_the_length_that_was_declared(tmp_path):
    with pytest.raises(ValueError, match="records must say how many"):
        next(trainer_of(nn.Linear(6, 3), Mechanism(Deterministic(4), 1.0)).batches(Passing()))
    for records, words in ((19, "more records"), (21, "fewer records")):
        path = tmp_path / f"{records}.ledger"
        trainer = trainer_of(
            nn.Linear(6, 3), Mechanism(Deterministic(4), 1.0), records=records, ledger=path
        )
        with pytest.raises(LeftMechanism, match=words):
            all_of(trainer, Passing())
        assert words in ledger.read(path).ended.reason


def test_a_stream_can_be_resumed(tmp_path):
    mechanism = Mechanism(BufferedShuffle(5, 2, epochs=2), 1.0)
    rounds = []
    for stop in (10, 3, 7):  # all at once; then with a pause after 3 rounds
        trainer = trainer_of(nn.Linear(6, 3), mechanism, records=20)
        if stop == 7:
            trainer.load(tmp_path / "state", Passing())
        for batch, _ in zip(trainer.batches(Passing()), range(stop), strict=False):
            rounds.append(batch.data[0][:, 0].tolist())
            trainer.step(batch, nn.CrossEntropyLoss())
            if len(rounds) == 13:
                trainer.save(tmp_path / "state")
                break
    assert rounds[:10] == rounds[10:]


class Loaded(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return torch.full((6,), float(i)), 0


def test_a_loader_is_taken_if_the_mechanism_describes_its_batches():
    for sampler, loader in (
        (Shuffle(3, epochs=2), DataLoader(Loaded(), batch_size=4, shuffle=True)),
        (Deterministic(3), DataLoader(Loaded(), batch_size=4)),
    ):
        trainer = trainer_of(nn.Linear(6, 3), Mechanism(sampler, 1.0))
        for batch in trainer.batches(loader):
            assert len(batch.data[0]) == 4
            trainer.step(batch, nn.CrossEntropyLoss())
        assert trainer.rounds == len(sampler)


@pytest.mark.parametrize(
    ("sampler", "loader", "words"),
    [
        (
            Poisson(0.2, 4),
            DataLoader(Loaded(), 4, shuffle=True),
            r"those of Shuffle\(batches=3.*Pass loader\.dataset",
        ),
        (Shuffle(3), DataLoader(Loaded(), 4), r"those of Deterministic\(batches=3"),
        (
            Shuffle(3, 2, reshuffle=False),
            DataLoader(Loaded(), 4, shuffle=True),
            "whose batches are those of Shuffle",
        ),
        (Shuffle(3), DataLoader(Loaded(), 5, shuffle=True), "no law that can be priced"),
        (
            Shuffle(2),
            DataLoader(Loaded(), 5, shuffle=True, drop_last=True),
            "no law that can be priced",
        ),
        (
            Shuffle(3),
            DataLoader(Loaded(), 4, sampler=RandomSampler(Loaded(), replacement=True)),
            "no law that can be priced",
        ),
        (Shuffle(3), DataLoader(Loaded(), batch_sampler=[[0, 1], [2, 3]]), "with list of"),
        (Deterministic(3), DataLoader(Passing(12), 4), "no law that can be priced"),
    ],
)
def test_other_batches_of_ones_own_are_refused(sampler, loader, words):
    with pytest.raises(ValueError, match=words):
        next(trainer_of(nn.Linear(6, 3), Mechanism(sampler, 1.0)).batches(loader))


def test_a_sampler_that_nobody_can_price_is_refused_before_anything_is_trained():
    class Own(Poisson):
        def draw(self, population, rng):
            return iter([[0]] * self.steps)

    with pytest.raises(NoGuarantee, match="no privacy analysis"):
        trainer_of(nn.Linear(6, 3), Mechanism(Own(0.1, 3), 1.0))
