"""Batches whose records are held by objects: rebuilt from plain containers, or refused in words."""

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.utils.rnn import pack_sequence  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402
from torch.utils.data import default_collate  # noqa: E402

from verax import Batch, Deterministic, Individual, Mechanism, Mixed, Poisson  # noqa: E402
from verax.training import MixedRecords, PrivateTrainer  # noqa: E402
from verax.training.data.containers import Column, Fields, has_target, plain_containers  # noqa: E402
from verax.training.data.microbatch import can_be_cut, part, slices  # noqa: E402

torch.set_num_threads(1)
RECORDS, WIDTH, CLASSES = 24, 5, 3
X = torch.randn(RECORDS, WIDTH, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, CLASSES, (RECORDS,), generator=torch.Generator().manual_seed(2))


class Encoding(UserDict):
    """As transformers.BatchEncoding is: entries of ``data`` are attributes, too."""

    def __init__(self, data):
        super().__init__(data)
        self.hidden = "what the tokenizer knows of every text"

    def __getattr__(self, name):
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass
class Example:
    x: Any
    y: Any = None


Named = namedtuple("Named", ["x", "y"])


class Typed(NamedTuple):
    x: Any
    y: Any = None


class Remembering(Named):
    """With a place for more than its fields."""


HOLDERS = {
    "dict": dict,
    "ordered": OrderedDict,
    "user": UserDict,
    "encoding": lambda **held: Encoding(held),
    "dataclass": Example,
    "named": Named,
    "typed": Typed,
    "subclass": Remembering,
}


def fields_of(batch):
    return (batch["x"], batch["y"]) if isinstance(batch, dict) else (batch.x, batch.y)


class Standardising(nn.Module):
    """Sees every record through the mean and the spread of its batch."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.body((x - x.mean(0)) / (x.std(0) + 1e-3))


def by_fields(model, batch):
    x, y = fields_of(batch)
    return functional.cross_entropy(model(x), y, reduction="none")


class Opening(nn.Module):
    """Takes its inputs out of an object."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, held):
        return self.body(fields_of(held)[0])


def run(model, loss, data, collate=None, clipping=None, batches=2, records=None):
    torch.manual_seed(0)
    mechanism = Mechanism(Deterministic(batches), 1.0, clipping or Individual())
    trainer = PrivateTrainer(
        model, torch.optim.SGD(model.parameters(), 0.1), mechanism, insecure_seed=7, records=records
    )
    for batch in trainer.batches(data, collate_fn=collate):
        trainer.step(batch, loss)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def collated(make):
    def collate(rows):
        x, y = default_collate(rows)
        return make(x, y)

    return collate


ROWS = list(zip(X, Y, strict=True))


def whole(holder):
    """The batch is such an object; named tuples are inputs and a target as other tuples are."""
    loss = nn.CrossEntropyLoss() if holder in ("named", "typed", "subclass") else by_fields
    return loss, collated(lambda x, y: HOLDERS[holder](x=x, y=y)), lambda model: model


def inside(holder):
    """The inputs are."""
    make = collated(lambda x, y: (HOLDERS[holder](x=x, y=None), y))
    return nn.CrossEntropyLoss(), make, Opening


def beside(holder):
    """All of a record is, and a tensor beside it hides that."""

    def loss(model, batch):
        x, y = fields_of(batch["held"])
        return functional.cross_entropy(model(x), y, reduction="none")

    def make(x, y):
        return {"number": torch.arange(len(y)), "held": HOLDERS[holder](x=x, y=y)}

    return loss, collated(make), lambda model: model


PLACES = {"whole": whole, "inside": inside, "beside": beside}


# --- the check for mixing sees every tensor -------------------------------------------------------


@pytest.mark.parametrize("batches", [1, 4])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_model_that_standardises_over_the_batch_is_refused_whatever_holds_its_inputs(
    holder, place, batches
):
    loss, collate, wrap = PLACES[place](holder)
    with pytest.raises(MixedRecords, match="depends on the other records"):
        run(wrap(Standardising()), loss, ROWS, collate, batches=batches)


@pytest.mark.parametrize("holder", ["user", "encoding"])
def test_it_is_refused_too_where_the_data_set_itself_gives_such_objects(holder):
    rows = [(HOLDERS[holder](x=x), y) for x, y in ROWS]

    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = Standardising()

        def forward(self, held):
            return self.body(held["x"])

    assert type(default_collate(rows)[0]) is type(rows[0][0])
    with pytest.raises(MixedRecords, match="depends on the other records"):
        run(Inside(), nn.CrossEntropyLoss(), rows, batches=4)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("holder", HOLDERS)
def test_what_keeps_records_in_an_object_from_batch_to_batch_is_refused(holder, place):
    class Forgetless(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.seen = nn.Linear(WIDTH, CLASSES), [torch.zeros(WIDTH)]

        def forward(self, x):
            before = self.seen[-1]
            self.seen.append(x.detach().mean(0))
            return self.body(x - before)

    loss, collate, wrap = PLACES[place](holder)
    with pytest.raises(
        ValueError, match=r"depend on earlier batches|changes from one pass to the next"
    ):
        run(wrap(Forgetless()), loss, ROWS, collate, Batch(), batches=4)


# --- and models get what they need ----------------------------------------------------------------


@pytest.mark.parametrize("clipping", [Individual(), Batch(), Mixed(groups=2)], ids=repr)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("holder", HOLDERS)
def test_objects_train_the_model_that_plain_tuples_train(holder, place, clipping):
    def network():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, CLASSES))

    loss, collate, wrap = PLACES[place](holder)
    found = run(wrap(network()), loss, ROWS, collate, clipping)
    usual = run(network(), nn.CrossEntropyLoss(), (X, Y), clipping=clipping)
    torch.testing.assert_close(found, usual, rtol=1e-4, atol=1e-6)


def test_a_whole_data_set_may_be_such_an_object():
    def network():
        torch.manual_seed(3)
        return nn.Linear(WIDTH, CLASSES)

    def loss(model, batch):
        return functional.cross_entropy(model(batch.x), batch.y, reduction="none")

    usual = run(network(), nn.CrossEntropyLoss(), (X, Y))
    for data in (Encoding({"x": X, "y": Y}), Example(X, Y.numpy())):
        torch.testing.assert_close(run(network(), loss, data), usual, rtol=1e-4, atol=1e-6)


def test_entries_are_attributes_and_arguments():
    batch = plain_containers(Encoding({"x": X, "y": Y}), RECORDS)
    assert batch.x is batch["x"] is {**batch}["x"] is X
    with pytest.raises(
        AttributeError, match=r"no 'to', only the fields 'x', 'y'.*not the methods of its type"
    ):
        batch.to("cpu")
    check_is_due = pytree.tree_map(lambda x: 2 * x, batch)
    assert type(check_is_due) is Fields
    assert torch.equal(check_is_due.x, 2 * X)


def test_nothing_but_leaves_comes_through():
    """Neither what a tokenizer keeps beside the tensors, nor an attribute of a tuple."""
    tuples = Remembering(X, Y)
    tuples.mean = X.mean(0)
    for held in (Encoding({"x": X, "y": Y}), tuples):
        batch = plain_containers(held, RECORDS)
        assert not hasattr(batch, "hidden")
        assert not hasattr(batch, "mean")
        assert [id(leaf) for leaf in pytree.tree_leaves(batch)] == [id(X), id(Y)]


def test_containers_in_containers_are_opened():
    batch = plain_containers({"a": [Example(Encoding({"x": X}), (Y,))]}, RECORDS)
    assert batch["a"][0].x.x is X
    assert batch["a"][0].y[0] is Y


# --- leaves ---------------------------------------------------------------------------------------


class AnyFactor(Enum):
    TEXT = 1


def test_arrays_become_tensors_and_constants_stay():
    batch = plain_containers(
        {
            "x": X.numpy(),
            "reversed": np.arange(3.0)[::-1],
            "n": 3,
            "kind": AnyFactor.TEXT,
            "none": None,
        },
        RECORDS,
    )
    assert torch.equal(batch["x"], X)
    assert batch["reversed"].tolist() == [2.0, 1.0, 0.0]
    assert (batch["n"], batch["kind"], batch["none"]) == (3, AnyFactor.TEXT, None)


@pytest.mark.parametrize(
    ("leaf", "complaint"),
    [
        (
            SimpleNamespace(x=X),
            r"batch\['a'\]\[1\] must be tensors, .* got SimpleNamespace: nobody can look into it",
        ),
        ({"a", "b"}, "got set"),
        (iter([X]), "got list_iterator"),
        (lambda: X, "got function"),
        (Example, "got type"),
        (
            pack_sequence([torch.zeros(3), torch.zeros(2)]),
            "got a PackedSequence.*pad in collate_fn",
        ),
        (np.array([object()]), "got object"),
        (
            np.array(["2020-01-01"], dtype="datetime64[D]"),
            "numbers that torch knows, got datetime64",
        ),
        (np.ma.masked_array([1.0, 2.0], mask=[True, False]), "got a masked array: fill in"),
    ],
)
def test_leaves_that_nobody_can_look_into_are_refused_in_words(leaf, complaint):
    with pytest.raises(ValueError, match=complaint):
        plain_containers({"a": (X, leaf)}, RECORDS)


@pytest.mark.parametrize("clipping", [Individual(), Batch(), Mixed(groups=2)], ids=repr)
@pytest.mark.parametrize(
    "make", [lambda x, y: SimpleNamespace(x=x, y=y), lambda x, y: (SimpleNamespace(x=x), y)]
)
def test_a_run_says_so_before_anything_is_released(make, clipping):
    with pytest.raises(
        ValueError, match=r"got SimpleNamespace.*let collate_fn return what is in it"
    ):
        run(nn.Linear(WIDTH, CLASSES), by_fields, ROWS, collated(make), clipping)


def test_a_batch_without_any_tensor_is_no_empty_error():
    def loss(model, batch):
        return model(X[[int(number) for number in batch.n]]).square()

    rows = [str(number) for number in range(RECORDS)]
    found = run(nn.Linear(WIDTH, 1), loss, rows, lambda rows: Encoding({"n": rows}))
    assert len(found) == WIDTH + 1


# --- texts ----------------------------------------------------------------------------------------


class Letters(nn.Module):
    """Reads texts, padded to the longest, as a tokenizer in a model does."""

    def __init__(self, dropout=0.0, mixing=False):
        super().__init__()
        self.table, self.dropout = nn.Embedding(128, 6, padding_idx=0), nn.Dropout(dropout)
        self.head, self.mixing = nn.Linear(6, CLASSES), mixing

    def forward(self, texts):
        long = max(map(len, texts))
        read = torch.tensor([[*map(ord, text)] + [0] * (long - len(text)) for text in texts])
        heard = (read > 0).unsqueeze(-1).float()
        found = (self.dropout(self.table(read)) * heard).sum(1) / heard.sum(1)
        return self.head(found - found.mean(0) if self.mixing else found)


TEXTS = [("word " * (1 + i % 7) + str(i), i % CLASSES) for i in range(160)]


def as_lists(rows):
    return [text for text, _ in rows], torch.tensor([label for _, label in rows])


def as_dictionary(rows):
    return Encoding(
        {
            "text": np.array([text for text, _ in rows]),
            "y": torch.tensor([label for _, label in rows]),
        }
    )


def of_texts(model, batch):
    return functional.cross_entropy(model(batch.text), batch.y, reduction="none")


@pytest.mark.parametrize("clipping", [Individual(), Batch(), Mixed(groups=3)], ids=repr)
@pytest.mark.parametrize(
    ("collate", "loss"),
    [(None, nn.CrossEntropyLoss()), (as_lists, nn.CrossEntropyLoss()), (as_dictionary, of_texts)],
)
@pytest.mark.parametrize("batches", [2, 20])
def test_batches_of_more_than_32_texts_and_of_fewer_train(collate, loss, clipping, batches):
    """With dropout, whose numbers are others where a longer text is in the batch."""
    texts = TEXTS[:: max(batches // 5, 1)]
    assert run(Letters(dropout=0.3), loss, texts, collate, clipping, batches).isfinite().all()


def test_gradients_of_texts_are_those_of_their_tokens():
    def network():
        torch.manual_seed(3)
        return Letters()

    class Reading(nn.Module):
        def __init__(self, body):
            super().__init__()
            self.body = body

        def forward(self, numbers):
            return self.body([TEXTS[i][0] for i in numbers.tolist()])

    numbers, labels = torch.arange(len(TEXTS)), torch.tensor([label for _, label in TEXTS])
    usual = run(Reading(network()), nn.CrossEntropyLoss(), (numbers, labels))
    found = run(network(), nn.CrossEntropyLoss(), TEXTS, as_lists)
    torch.testing.assert_close(found, usual, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batches", [2, 20])
def test_a_model_that_mixes_texts_is_refused(batches):
    with pytest.raises(MixedRecords, match="depends on the other records"):
        run(Letters(mixing=True), nn.CrossEntropyLoss(), TEXTS, as_lists, batches=batches)


@pytest.mark.parametrize("clipping", [Individual(), Mixed(groups=2)], ids=repr)
def test_a_collate_that_mixes_texts_is_refused(clipping):
    def collate(rows):
        texts, labels = as_lists(rows)
        return [text + texts[0] for text in texts], labels

    with pytest.raises(MixedRecords, match="collate_fn"):
        run(Letters(), nn.CrossEntropyLoss(), TEXTS, collate, clipping)


def test_as_many_texts_as_records_are_one_each_and_others_are_for_all():
    batch = plain_containers(
        {"text": ("a", "b", "c"), "names": ["height", "weight"], "x": torch.arange(3)}, 3
    )
    assert isinstance(batch["text"], Column)
    some = part(batch, slice(1, 3), 3)
    assert some["text"] == ["b", "c"]
    assert some["names"] == ["height", "weight"]
    assert can_be_cut(some, 2)
    assert has_target(["a", "b"])
    assert not has_target(plain_containers(["a", "b"], 2))


def test_what_is_for_all_records_is_not_cut():
    batch = {"x": torch.arange(7), "scale": torch.tensor([1.0, 2.0]), "offset": torch.tensor(3.0)}
    pieces = slices(batch, 3, 7)
    assert [piece["x"].tolist() for piece, _ in pieces] == [[0, 1, 2], [3, 4, 5], [6]]
    assert all(
        piece["scale"].tolist() == [1.0, 2.0] and float(piece["offset"]) == 3.0
        for piece, _ in pieces
    )


@pytest.mark.parametrize("clipping", [Individual(), Mixed(groups=3)], ids=repr)
def test_what_is_for_all_records_reaches_each_of_them(clipping):
    """Also where records go through the model one by one, and in clip-groups."""
    scale = torch.linspace(0.5, 2.0, WIDTH)

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.weight = nn.Parameter(torch.randn(CLASSES, WIDTH))  # in no layer that has a rule

        def forward(self, x, scale=scale):
            return (x * scale) @ self.weight.T

    def loss(model, batch):
        return functional.cross_entropy(
            model(batch["x"], batch["scale"]), batch["y"], reduction="none"
        )

    make = collated(lambda x, y: {"x": x, "y": y, "scale": scale})
    found = run(Scaled(), loss, ROWS, make, clipping)
    usual = run(Scaled(), nn.CrossEntropyLoss(), (X, Y), clipping=clipping)
    torch.testing.assert_close(found, usual, rtol=1e-4, atol=1e-6)


def test_an_empty_batch_of_texts_counts_in_buffers_as_any_other():
    class Counting(Letters):
        def __init__(self):
            super().__init__()
            self.register_buffer("passes", torch.tensor(0.0))

        def forward(self, texts):
            self.passes += 1.0
            return super().forward([text or "-" for text in texts])

    model = Counting()
    mechanism = Mechanism(Poisson(1e-9, 3), 1.0)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), 0.1), mechanism)
    for batch in trainer.batches(TEXTS):
        assert batch.records == 0
        trainer.step(batch, nn.CrossEntropyLoss())
    assert model.passes == 3.0
