"""Mistakes of people who come from plain PyTorch: noticed, or refused in words."""

import gc
import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from verax import (  # noqa: E402
    Batch,
    Deterministic,
    Individual,
    Mechanism,
    Mixed,
    Poisson,
    ledger,
)
from verax.training import LeftMechanism, PrivateTrainer, fit  # noqa: E402
from verax.training.step_guard import StepGuard  # noqa: E402

torch.set_num_threads(1)
X, Y = torch.randn(40, 6), torch.randint(0, 3, (40,))
LOSS = nn.CrossEntropyLoss()
RUN = Mechanism(Deterministic(batches=4), 1.0)
CLIPPINGS = pytest.mark.parametrize(
    "clipping", [Individual(), Batch(), Mixed(groups=2)], ids=lambda c: type(c).__name__
)


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.1)


def begun(**more):
    model = nn.Linear(6, 3)
    optimizer = sgd(model.parameters())
    return PrivateTrainer(model, optimizer, RUN, **more), model, optimizer


def test_steps_of_ones_own_stop_the_run_although_gradients_were_cleared(tmp_path):
    trainer, model, optimizer = begun(ledger=tmp_path / "run.ledger")
    batch = next(trainer.batches((X, Y)))
    optimizer.zero_grad()
    LOSS(model(batch.data[0]), batch.data[1]).backward()
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(LeftMechanism, match="the optimizer was stepped by something else"):
        trainer.step(batch, LOSS)
    assert ledger.read(tmp_path / "run.ledger").released == 0


def test_schedules_and_other_optimizers_do_not_count():
    model = nn.Linear(6, 3)
    optimizer = sgd(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    trainer = PrivateTrainer(model, optimizer, RUN, schedule=schedule)
    for batch in trainer.batches((X, Y)):
        sgd(nn.Linear(2, 2).parameters()).step()
        trainer.step(batch, LOSS)
    assert trainer.rounds == 4


def test_an_optimizer_is_left_as_it_was():
    optimizer = sgd(nn.Linear(6, 3).parameters())
    watching = StepGuard(optimizer)
    assert len(optimizer._optimizer_step_post_hooks) == 1
    del watching
    gc.collect()
    assert not optimizer._optimizer_step_post_hooks


@CLIPPINGS
@pytest.mark.parametrize(
    "loss",
    [
        lambda o, y: functional.cross_entropy(o.detach(), y, reduction="none"),
        lambda o, y: (o.argmax(1) != y).float(),
    ],
)
def test_losses_without_a_gradient_are_refused(tmp_path, clipping, loss):
    run = Mechanism(Deterministic(batches=4), 1.0, clipping)
    with pytest.raises(ValueError, match="loss must have a gradient"):
        fit(nn.Linear(6, 3), loss, (X, Y), run, sgd, ledger=tmp_path / "run.ledger")
    assert ledger.read(tmp_path / "run.ledger").released == 0


def test_inference_mode_is_refused():
    with torch.inference_mode(), pytest.raises(ValueError, match=r"torch\.inference_mode is on"):
        fit(nn.Linear(6, 3), LOSS, (X, Y), RUN, sgd)


def test_gradients_that_happen_to_be_zero_are_no_mistake():
    dead = nn.Sequential(nn.Linear(6, 3), nn.ReLU())
    nn.init.constant_(dead[0].weight, 0.0)
    nn.init.constant_(dead[0].bias, -1.0)
    assert fit(dead, lambda o, y: o.sum(dim=1), (X, Y), RUN, sgd).trainer.rounds == 4


def test_batches_are_not_taken_apart_and_do_not_print_their_records():
    trainer, _, _ = begun()
    batch = next(trainer.batches((X, Y)))
    assert repr(batch) == "DrawnBatch(number=0)"
    for wrong in (lambda: [x for x, y in batch], lambda: batch[0], lambda: len(batch)):
        with pytest.raises(
            TypeError, match=r"give it to trainer\.step\(batch, loss\).*batch\.data"
        ):
            wrong()


def test_epochs_around_a_run_are_told_that_it_is_over():
    trainer, _, _ = begun()
    for batch in trainer.batches((X, Y)):
        trainer.step(batch, LOSS)
    with pytest.warns(UserWarning, match="the run is over: all its rounds were released"):
        assert list(trainer.batches((X, Y))) == []


def test_how_many_records_were_drawn_is_in_no_message():
    """A batch's size is a secret under Poisson sampling, and so are losses."""
    for loss in (
        lambda o, y: o[1:],
        lambda o, y: functional.cross_entropy(o, y, reduction="none") / len(y),
    ):
        with pytest.raises(ValueError, match="loss") as refused:
            fit(nn.Linear(6, 3), loss, (X, Y), Mechanism(Poisson(0.6, 9), 1.0), sgd)
        assert not any(c.isdigit() for c in str(refused.value).replace(", 3)", ""))


def test_a_mistake_in_the_first_round_does_not_cost_the_name_of_the_ledger(tmp_path):
    book = tmp_path / "run.ledger"
    with pytest.raises(RuntimeError):
        fit(nn.Linear(6, 3), LOSS, (X.double(), Y), RUN, sgd, ledger=book)
    assert ledger.read(book).released == 0
    fit(nn.Linear(6, 3), LOSS, (X, Y), Mechanism(Deterministic(batches=8), 1.0), sgd, ledger=book)
    assert ledger.read(book).released == 8
    before = book.read_bytes()
    with pytest.raises(ledger.LedgerError, match="path must be new"):
        fit(nn.Linear(6, 3), LOSS, (X, Y), RUN, sgd, ledger=book)
    assert book.read_bytes() == before


def test_a_run_that_was_stopped_by_its_data_keeps_its_ledger(tmp_path):
    with pytest.raises(LeftMechanism, match="look for NaN, infinite or huge values"):
        fit(nn.Linear(6, 3), LOSS, (X * torch.nan, Y), RUN, sgd, ledger=tmp_path / "run.ledger")
    with pytest.raises(ledger.LedgerError, match="path must be new"):
        fit(nn.Linear(6, 3), LOSS, (X, Y), RUN, sgd, ledger=tmp_path / "run.ledger")


def test_path_and_delta_of_a_statement_are_not_mistaken_for_each_other():
    run = fit(nn.Linear(6, 3), LOSS, (X, Y), RUN, sgd)
    with pytest.raises(ValueError, match="path must be the name of a file, got 1e-06"):
        run.statement(1e-6)
    with pytest.raises(ValueError, match="delta must be"):
        run.trainer.statement("report.html")
    with pytest.raises(ValueError, match="path must be the name of a file, got 3"):
        run.trainer.statement(1e-5, 3)


class Lengthless(torch.utils.data.Dataset):
    def __getitem__(self, i):
        return X[i], Y[i]


WRONG = {
    "loss": ({"loss": "cross_entropy"}, "loss must be a torch criterion"),
    "loss of a number": (
        {"loss": lambda o, y: 1},
        "loss must return a tensor with one value per record, got int",
    ),
    "model": ({"model": nn.Linear}, r"model must be a torch\.nn\.Module, got the class Linear"),
    "frozen": (
        {"model": nn.Linear(6, 3).requires_grad_(False)},
        "model must have parameters that are trained",
    ),
    "clip_norms": ({"clip_norms": 1.0}, "clip_norms must be a list of 4 norms or a function"),
    "file": ({"dataset": "data.csv"}, "dataset must be tensors"),
    "length": ({"dataset": Lengthless()}, "dataset must have a length, got Lengthless"),
    "collate": ({"collate_fn": 3, "dataset": [(X[0], Y[0])]}, "collate_fn must be a function"),
    "collate tensors": (
        {"collate_fn": list},
        "collate_fn is for data sets that give records by number",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kinds_are_refused_in_words(name):
    given, words = WRONG[name]
    what = {"model": nn.Linear(6, 3), "loss": LOSS, "dataset": (X, Y)} | given
    with pytest.raises(ValueError, match=words):
        fit(mechanism=RUN, optimizer=sgd, **what)


def test_a_schedule_in_place_of_what_makes_one_is_refused():
    model = nn.Linear(6, 3)
    made = torch.optim.lr_scheduler.StepLR(sgd(model.parameters()), 2)
    with pytest.raises(
        ValueError, match="schedule must be a function from the optimizer to a schedule"
    ):
        fit(model, LOSS, (X, Y), RUN, sgd, schedule=made)


class Ragged(torch.utils.data.Dataset):
    """Texts of different lengths."""

    def __len__(self):
        return 40

    def __getitem__(self, i):
        return torch.arange(1, 2 + i % 5), i % 3


def padded(records):
    texts = nn.utils.rnn.pad_sequence([text for text, _ in records], batch_first=True)
    return texts, torch.tensor([label for _, label in records])


class Bag(nn.Module):
    """Adds up its words, and if careless the padding, whose row begins at zero."""

    def __init__(self, careless=False):
        super().__init__()
        self.words, self.head, self.careless = (
            nn.Embedding(9, 8, padding_idx=0),
            nn.Linear(8, 3),
            careless,
        )

    def forward(self, text):
        found = self.words(text)
        if not self.careless:
            found = found * (text > 0).unsqueeze(-1)
        return self.head(found.sum(dim=1))


def test_texts_of_different_lengths_go_with_any_sampler():
    run = fit(Bag(), LOSS, Ragged(), Mechanism(Poisson(0.3, 9), 1.0), sgd, collate_fn=padded)
    assert run.trainer.rounds == 9
    with pytest.raises(ValueError, match="where it pads, let the model skip the padding"):
        fit(
            Bag(careless=True),
            LOSS,
            Ragged(),
            Mechanism(Poisson(0.3, 9), 1.0),
            sgd,
            collate_fn=padded,
        )


class Meanwhile(nn.Module):
    """A loss in whose midst somebody else does something, once."""

    def __init__(self, act):
        super().__init__()
        self.act, self.raised = act, []

    def __deepcopy__(self, memo):
        return self  # trials are made with copies: once is once

    def forward(self, output, target):
        act, self.act = self.act, None
        if act is not None:
            try:
                act()
            except RuntimeError as error:
                self.raised.append(str(error))
        return LOSS(output, target)


def in_a_thread(act):
    """Do it in another thread, and raise here what it raised."""

    def run():
        found = []

        def work():
            try:
                act()
            except RuntimeError as error:
                found.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        for error in found:
            raise error

    return run


@pytest.mark.parametrize(
    "how", [in_a_thread, lambda act: act], ids=["another thread", "within itself"]
)
@pytest.mark.parametrize("call", ["step", "batches", "save", "load"])
def test_a_round_is_of_one_thread_and_others_are_refused(tmp_path, how, call):
    """A second step on the same batch would release it again, and count it once."""
    trainer, *_ = begun(ledger=tmp_path / "run.ledger", insecure_seed=3)
    batches = trainer.batches((X, Y))
    batch = next(batches)
    loss = Meanwhile(
        how(
            {
                "step": lambda: trainer.step(batch, LOSS),
                "batches": lambda: next(batches),
                "save": lambda: trainer.save(tmp_path / "state"),
                "load": lambda: trainer.load(tmp_path / "state", (X, Y)),
            }[call]
        )
    )
    trainer.step(batch, loss)
    (said,) = loss.raised
    assert f"{call} was called while the trainer is in step" in said
    assert "Let one thread draw and step" in said
    assert ledger.read(tmp_path / "run.ledger").released == trainer.rounds == 1
    if call == "batches":  # Python ends a generator that raised
        batches = trainer.batches((X, Y))
    for later in batches:
        trainer.step(later, LOSS)
    assert ledger.read(tmp_path / "run.ledger").complete


def test_without_a_ledger_a_refused_step_adds_no_second_noise():
    """Both runs begin alike, and end with the same weights: the refused step has drawn nothing."""
    ends = []
    for disturbed in (False, True):
        torch.manual_seed(0)
        trainer, model, _ = begun(insecure_seed=3)
        for batch in trainer.batches((X, Y)):
            act = in_a_thread(lambda batch=batch, trainer=trainer: trainer.step(batch, LOSS))
            loss = Meanwhile(act if disturbed else None)
            trainer.step(batch, loss)
            assert len(loss.raised) == disturbed
        assert trainer.rounds == 4
        ends.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    assert torch.equal(*ends)
