"""What makes batches of records must keep them apart, unless the whole batch is clipped at once."""

import random
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader, Dataset, Subset, default_collate  # noqa: E402

from verax import Batch, Deterministic, Individual, Mechanism, Mixed, Shuffle  # noqa: E402
from verax.training import MixedRecords, PrivateTrainer  # noqa: E402
from verax.training.checks.collate import _FEW, CollateCheck  # noqa: E402
from verax.training.gradients.loss import PerExampleLoss  # noqa: E402

torch.set_num_threads(1)
RECORDS, WIDTH, CLASSES = 32, 6, 3
X = torch.randn(RECORDS, WIDTH, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, CLASSES, (RECORDS,), generator=torch.Generator().manual_seed(2))
ROWS = list(zip(X, Y, strict=True))
APART = [Individual(1.0), Mixed(1.0, groups=3)]
LOSS = nn.CrossEntropyLoss()


def run(data, clipping, loss=LOSS, model=None, batches=4, sampler=Deterministic, epochs=1):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, CLASSES))
    mechanism = Mechanism(sampler(batches, epochs), 1.0, clipping)
    trainer = PrivateTrainer(
        model, torch.optim.SGD(model.parameters(), 0.1), mechanism, insecure_seed=7
    )
    for batch in trainer.batches(data):
        trainer.step(batch, loss)
    return trainer


def loaded(collate, rows=ROWS, **options):
    return DataLoader(rows, batch_size=len(rows) // 4, collate_fn=collate, **options)


# --- what mixes -----------------------------------------------------------------------------------


def centred(rows):
    x, y = default_collate(rows)
    return x - x.mean(0), y


def mixed_up(rows):
    x, y = default_collate(rows)
    y = functional.one_hot(y, CLASSES).float()
    return 0.5 * x + 0.5 * x.roll(1, 0), 0.5 * y + 0.5 * y.roll(1, 0)


def mixed_at_random(rows):
    x, y = default_collate(rows)
    share, order = float(np.random.beta(1.0, 1.0)), torch.randperm(len(x))  # noqa: NPY002
    y = functional.one_hot(y, CLASSES).float()
    return share * x + (1.0 - share) * x[order], share * y + (1.0 - share) * y[order]


def mixed_now_and_then(rows):
    return mixed_at_random(rows) if random.random() < 0.5 else default_collate(rows)


def smoothed(rows):
    """Labels only."""
    x, y = default_collate(rows)
    y = functional.one_hot(y, CLASSES).float()
    return x, 0.9 * y + 0.1 * y.mean(0)


def scaled(rows):
    x, y = default_collate(rows)
    return x / x.abs().max(), y


MIXING = [centred, mixed_up, mixed_at_random, mixed_now_and_then, smoothed, scaled]


@pytest.mark.parametrize("clipping", APART)
@pytest.mark.parametrize("collate", MIXING)
def test_a_collate_that_mixes_records_is_refused_in_words(collate, clipping):
    with pytest.raises(
        MixedRecords,
        match=r"collate_fn.*depend on the other records.*or use batch clipping \(Batch\)",
    ):
        run(loaded(collate), clipping, batches=4)


@pytest.mark.parametrize("collate", MIXING)
def test_a_whole_batch_that_is_clipped_at_once_may_be_mixed(collate):
    assert run(loaded(collate), Batch(1.0)).rounds == 4


def test_mixing_is_seen_through_weights_that_are_zero():
    model = nn.Linear(WIDTH, CLASSES, bias=False)
    nn.init.zeros_(model.weight)
    watched = CollateCheck(centred, in_order=False)
    watched(ROWS)
    with pytest.raises(MixedRecords):
        watched.refuse_mixing(model, PerExampleLoss(LOSS))
    assert not model.weight.any()


def test_normalising_over_a_clip_group_hides_nothing():
    model = nn.Sequential(
        nn.BatchNorm1d(WIDTH, track_running_stats=False), nn.Linear(WIDTH, CLASSES)
    )
    with pytest.raises(MixedRecords):
        run(loaded(centred), Mixed(1.0, 2), model=model)


def test_what_all_records_share_must_not_be_made_of_them():
    def collate(rows):
        x, y = default_collate(rows)
        return {"x": x, "y": y, "mean": x.mean(0)}

    def loss(model, batch):
        return functional.cross_entropy(
            model(batch["x"] - batch["mean"]), batch["y"], reduction="none"
        )

    with pytest.raises(MixedRecords):
        run(loaded(collate), Individual(), loss)


def test_mixing_that_begins_later_is_found_later():
    calls = []

    def collate(rows):
        calls.append(rows)
        return centred(rows) if len(calls) > 20 else default_collate(rows)

    with pytest.raises(MixedRecords):
        run(loaded(collate), Individual(), epochs=8)


class AtOnce(Dataset):
    """Gives several records in one call."""

    def __init__(self, change):
        self.change = change

    def __len__(self):
        return RECORDS

    def __getitem__(self, number):
        return X[number], Y[number]

    def __getitems__(self, numbers):
        return list(zip(self.change(X[numbers]), Y[numbers], strict=True))


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: Subset(data, range(RECORDS))])
@pytest.mark.parametrize("clipping", APART)
def test_records_given_at_once_are_watched(clipping, wrap):
    assert run(wrap(AtOnce(lambda x: 2.0 * x)), clipping).rounds == 4
    with pytest.raises(MixedRecords, match="__getitems__"):
        run(wrap(AtOnce(lambda x: x - x.mean(0))), clipping)


def test_a_subset_of_records_given_one_by_one_is_not_watched():
    own = np.random.default_rng(0)

    class Augmented(Dataset):
        def __len__(self):
            return RECORDS

        def __getitem__(self, number):
            return X[number] + float(own.normal()), Y[number]

    assert run(Subset(Augmented(), range(RECORDS)), Individual()).rounds == 4


# --- what does not --------------------------------------------------------------------------------


def in_words(model, batch):
    return functional.cross_entropy(model(batch["inputs"]), batch["labels"], reduction="none")


def renamed(rows):
    return {
        "inputs": torch.stack([x for x, _ in rows]),
        "labels": torch.stack([y for _, y in rows]),
    }


def cast(rows):
    x, y = default_collate(rows)
    return {"inputs": x.double().to(torch.float32).clamp(-1.0, 1.0), "labels": y.to(torch.int64)}


def named(rows):
    return {**renamed(rows), "names": [f"record {float(x[0])}" for x, _ in rows]}


@pytest.mark.parametrize("clipping", APART)
@pytest.mark.parametrize("collate", [renamed, cast])
def test_renaming_and_casting_pass(collate, clipping):
    assert run(loaded(collate), clipping, in_words, epochs=2).rounds == 8


@pytest.mark.parametrize("in_order", [False, True])
def test_names_that_the_loss_does_not_see_pass(in_order):
    watched = CollateCheck(named, in_order)
    watched(ROWS)
    watched.refuse_mixing(nn.Linear(WIDTH, CLASSES), in_words)


@pytest.mark.parametrize("clipping", APART)
def test_records_that_are_taken_to_pieces_pass(clipping):
    rows = [{"x": x, "y": y} for x, y in ROWS]

    def collate(found):
        y = torch.stack([row.pop("y") for row in found])
        return torch.stack([row["x"] for row in found]), y

    assert run(loaded(collate, rows), clipping).rounds == 4
    assert all(set(row) == {"x"} for row in rows)


def noisy(rows):
    """A draw for all."""
    x, y = default_collate(rows)
    return x + 0.1 * torch.randn_like(x), y


def turned(rows):
    """A draw for each, by Python and by numpy."""
    found = [(x.flip(0) if random.random() < 0.5 else x, y) for x, y in rows]
    return default_collate([(x * float(np.random.choice([0.5, 2.0])), y) for x, y in found])  # noqa: NPY002


@pytest.mark.parametrize("clipping", APART)
@pytest.mark.parametrize("collate", [noisy, turned])
def test_random_changes_of_each_record_pass(collate, clipping):
    assert run(loaded(collate), clipping, epochs=4).rounds == 16


def test_random_changes_that_no_seed_repeats_are_refused_in_words():
    own = np.random.default_rng(0)

    def collate(rows):
        x, y = default_collate(rows)
        return x + torch.from_numpy(own.normal(size=x.shape)).float(), y

    with pytest.raises(
        MixedRecords,
        match=r"although all seeds are set again.*drawing from the generators of torch",
    ):
        run(loaded(collate), Individual())


# --- text -----------------------------------------------------------------------------------------

TEXTS = [
    ("the cat sat on the mat and slept all day long " * 3)[: 5 + 7 * i % 41] for i in range(RECORDS)
]
SAID = list(zip(TEXTS, Y.tolist(), strict=True))
MASKED = 1


def tokenised(rows, ordered=False, masked=False):
    if ordered:
        rows = sorted(rows, key=lambda row: -len(row[0]))
    lists = [torch.tensor([ord(letter) for letter in text]) for text, _ in rows]
    tokens = nn.utils.rnn.pad_sequence(lists, batch_first=True)
    mask = tokens != 0
    if masked:
        hidden = torch.bernoulli(torch.full(tokens.shape, 0.15)).bool() & mask
        other = torch.randint(97, 123, tokens.shape)
        instead = torch.bernoulli(torch.full(tokens.shape, 0.5)).bool()
        tokens = torch.where(hidden, torch.where(instead, other, MASKED), tokens)
    return {"tokens": tokens, "mask": mask, "labels": torch.tensor([label for _, label in rows])}


class Reader(nn.Module):
    """Attention over letters, with dropout."""

    def __init__(self, heed=True, middle=None):
        super().__init__()
        self.heed, self.middle = heed, middle or nn.Identity()
        self.letters, self.out = nn.Embedding(128, 8), nn.Linear(8, CLASSES)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)

    def forward(self, tokens, mask):
        found = self.layer(self.letters(tokens), src_key_padding_mask=~mask if self.heed else None)
        weights = (mask if self.heed else torch.ones_like(mask)).unsqueeze(2).float()
        return self.out(self.middle((found * weights).sum(1) / weights.sum(1)))


def read_aloud(model, batch):
    return functional.cross_entropy(
        model(batch["tokens"], batch["mask"]), batch["labels"], reduction="none"
    )


@pytest.mark.parametrize("clipping", APART)
def test_padding_that_the_model_does_not_see_passes(clipping):
    model = Reader()
    assert (
        run(
            loaded(tokenised, SAID, shuffle=True), clipping, read_aloud, model, sampler=Shuffle
        ).rounds
        == 4
    )
    assert model.training
    assert model.layer.training


def test_padding_passes_where_a_clip_group_is_normalised():
    model = Reader(middle=nn.BatchNorm1d(8, track_running_stats=False))
    assert run(loaded(tokenised, SAID), Mixed(1.0, 2), read_aloud, model).rounds == 4


@pytest.mark.parametrize("clipping", APART)
def test_padding_that_the_model_sees_is_refused(clipping):
    with pytest.raises(MixedRecords):
        run(loaded(tokenised, SAID), clipping, read_aloud, Reader(heed=False))


def test_sorting_passes_record_by_record_and_is_refused_where_clip_groups_are_cut():
    data = loaded(lambda rows: tokenised(rows, ordered=True), SAID)
    assert run(data, Individual(), read_aloud, Reader(), epochs=2).rounds == 8
    with pytest.raises(MixedRecords, match="changes their order"):
        run(data, Mixed(1.0, 3), read_aloud, Reader())


@pytest.mark.parametrize("clipping", APART)
def test_hiding_letters_at_random_passes(clipping):
    data = loaded(lambda rows: tokenised(rows, masked=True), SAID)
    assert run(data, clipping, read_aloud, Reader(), epochs=4).rounds == 16


@pytest.mark.parametrize("clipping", APART)
def test_random_numbers_for_each_letter_pass(clipping):
    def collate(rows):
        found = [(text, torch.rand(len(text)) < 0.1, label) for text, label in rows]
        return tokenised(
            [
                ("".join(a for a, out in zip(t, gone, strict=True) if not out) + ".", y)
                for t, gone, y in found
            ]
        )

    assert run(loaded(collate, SAID), clipping, read_aloud, Reader(), epochs=2).rounds == 8


def test_random_numbers_that_depend_on_the_records_are_refused_in_words():
    def collate(rows):
        x, y = default_collate(rows)
        for _ in range(1 + int(1e3 * x.abs().sum()) % 97):
            random.random()
        return x + torch.tensor([[random.random()] for _ in rows]), y

    with pytest.raises(MixedRecords, match="as many random numbers as depends on the records"):
        run(loaded(collate), Individual())


# --- what it leaves behind ------------------------------------------------------------------------


def test_a_look_does_not_touch_anybody_s_randomness_or_the_model():
    watched = CollateCheck(mixed_at_random, in_order=False)
    watched(ROWS)
    model = nn.Linear(WIDTH, CLASSES)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(MixedRecords):
        watched.refuse_mixing(model, PerExampleLoss(LOSS))
    assert torch.get_rng_state().equal(states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()  # noqa: NPY002
    assert all(p.equal(old) for p, old in zip(model.parameters(), before, strict=True))


ALIVE = weakref.WeakSet()


class Snapshot:
    """A record that somebody may still hold."""

    def __init__(self, number):
        self.number = number
        ALIVE.add(self)

    def __deepcopy__(self, memo):
        return Snapshot(self.number)


def test_no_record_is_kept_after_its_round():
    def collate(rows):
        numbers = [row.number for row in rows]
        return X[numbers], Y[numbers]

    class Made(Dataset):
        def __len__(self):
            return RECORDS

        def __getitem__(self, number):
            return Snapshot(number)

    mechanism = Mechanism(Deterministic(4), 1.0, Individual())
    model = nn.Linear(WIDTH, CLASSES)
    trainer = PrivateTrainer(
        model, torch.optim.SGD(model.parameters(), 0.1), mechanism, insecure_seed=7
    )
    kept = []
    for batch in trainer.batches(DataLoader(Made(), batch_size=8, collate_fn=collate)):
        kept.append(len(ALIVE))
        trainer.step(batch, LOSS)
        assert not ALIVE
    assert kept == [_FEW, _FEW, 0, _FEW]


def test_an_error_on_trial_says_that_it_was_one():
    def collate(rows):
        if len(rows) != 8:
            raise RuntimeError("8 records, please")
        return default_collate(rows)

    with pytest.raises(RuntimeError, match="8 records") as error:
        run(loaded(collate), Individual())
    assert "collate_fn mixes" in error.value.__notes__[0]
