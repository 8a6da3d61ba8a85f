"""A state kept during a run: the same program resumes it, and nothing is forgotten."""

import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from itertools import pairwise
from pathlib import PurePosixPath

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402
from torch.optim import lr_scheduler  # noqa: E402

from verax import (  # noqa: E402
    BallsInBins,
    Individual,
    Mechanism,
    Mixed,
    Poisson,
    Shuffle,
    ledger,
)
from verax.training import PrivateTrainer, PublicLog, fit  # noqa: E402
from verax.training.checkpoint import RunDeclaration, read_state  # noqa: E402
from verax.training.checkpoint_file import read_secret  # noqa: E402

torch.set_num_threads(1)
X, Y = torch.randn(60, 5), torch.randint(0, 3, (60,))
MECHANISM = Mechanism(Shuffle(batches=6, epochs=2), 1.0, Individual(0.5))
LOSS = nn.CrossEntropyLoss()


@pytest.fixture
def every_round(monkeypatch):
    monkeypatch.setattr("verax.training.checkpoint_file._SHARE", 1e9)


def make(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def adam(parameters):
    return torch.optim.Adam(parameters, 0.05)


def trained(folder, mechanism=MECHANISM, seed=0, data=(X, Y), model=None, optimizer=adam, **more):
    """The model and the run; with a ledger and a state, unless they are given."""
    model = model or make(seed)
    more = {"ledger": folder / "run.ledger", "state": folder / "state"} | more
    return model, fit(model, LOSS, data, mechanism, optimizer, progress=False, **more)


def trainer_of(folder, **more):
    model = make()
    return PrivateTrainer(
        model, adam(model.parameters()), MECHANISM, state=folder / "state", **more
    )


def interrupted(number, folder, *args, **more):
    """The same, until somebody presses Ctrl-C in a round."""
    step = PrivateTrainer.step

    def stopping(self, batch, loss):
        if batch.number == number:
            raise KeyboardInterrupt
        step(self, batch, loss)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateTrainer, "step", stopping)
        with pytest.raises(KeyboardInterrupt):
            trained(folder, *args, **more)


SCHEDULES = {
    "none": None,
    "steps": lambda o: lr_scheduler.MultiStepLR(o, [3, 8], 0.3),
    "cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, 12),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 12),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda n: 0.9**n),
    "numpy": lambda o: lr_scheduler.LambdaLR(o, lambda n: np.cos(n / 20)),
    "warm": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 4), lr_scheduler.ExponentialLR(o, 0.8)], [4]
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize(
    "mechanism",
    [MECHANISM, Mechanism(Poisson(0.3, 12), 1.0, Mixed(0.5, 3))],
    ids=["shuffle", "poisson"],
)
def test_the_same_call_goes_on_with_the_very_same_run(tmp_path, every_round, mechanism, schedule):
    options = {"mechanism": mechanism, "schedule": schedule, "insecure_seed": 4}
    once, _ = trained(tmp_path, ledger=None, state=None, **options)
    for number in (0, 1, 7):
        interrupted(number, tmp_path, seed=number, **options)
    again, run = trained(tmp_path, seed=9, **options)
    torch.testing.assert_close(weights(again), weights(once))
    book = ledger.read(tmp_path / "run.ledger")
    assert book.complete
    assert book.released == len(mechanism.sampler) == run.trainer.rounds


def test_rounds_since_the_last_state_are_spent(tmp_path, monkeypatch):
    # saved before the first round, and never again
    monkeypatch.setattr("verax.training.checkpoint_file._SHARE", 1e-9)
    schedule = SCHEDULES["lambda"]
    interrupted(5, tmp_path, schedule=schedule)
    assert torch.load(tmp_path / "state", weights_only=True)["rounds"] == 0
    seen, step = [], PrivateTrainer.step
    monkeypatch.setattr(
        PrivateTrainer, "step", lambda self, *args: (seen.append(args[0].number), step(self, *args))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, run = trained(tmp_path, schedule=schedule)
    assert seen == [5, 6, 7, 8, 9, 10, 11]
    assert run.trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.9**12)
    assert ledger.read(tmp_path / "run.ledger").complete


def test_no_record_is_used_twice_in_an_epoch(tmp_path, every_round):
    """Each of a data set's records tells when it was fetched."""

    class Watched(torch.utils.data.Dataset):
        def __init__(self):
            self.fetched = []

        def __len__(self):
            return len(X)

        def __getitem__(self, i):
            self.fetched.append(i)
            return X[i], Y[i]

    data = Watched()
    for number in (2, 3, 5):
        interrupted(number, tmp_path, Mechanism(Shuffle(batches=6), 1.0), data=data)
        del data.fetched[10 * number :]  # drawn, but never stepped on: it is drawn again
    trained(tmp_path, Mechanism(Shuffle(batches=6), 1.0), data=data)
    assert sorted(data.fetched) == list(range(60))


def test_after_the_last_round_no_secret_is_left_in_the_state(tmp_path):
    model, _ = trained(tmp_path)
    held = torch.load(tmp_path / "state", weights_only=True)
    assert held["sampler"] is held["sampling"] is held["seeded"] is held["records"] is None
    assert os.stat(tmp_path / "state").st_mode & 0o077 == 0
    made = make(5)
    made.load_state_dict(held["model"])
    assert torch.equal(weights(made), weights(model))


def test_a_run_that_left_its_mechanism_is_not_gone_on_with(tmp_path):
    trainer = trainer_of(tmp_path, ledger=tmp_path / "run.ledger")
    next(trainer.batches((X, Y)))
    with pytest.raises(ledger.LeftMechanism):
        trainer.step(None, LOSS)
    with pytest.raises(ledger.RunOver, match="stopped after 0 rounds") as refused:
        trained(tmp_path)
    assert "The last weights that were kept are in" in refused.value.__notes__[0]


def test_a_run_that_died_between_its_last_round_and_its_end_is_finished(tmp_path, monkeypatch):
    def die(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ledger.Ledger, "finish", die)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path)
    assert ledger.read(tmp_path / "run.ledger").ended is None
    before = torch.load(tmp_path / "state", weights_only=True)["model"]
    with pytest.warns(UserWarning, match="is over"):
        model, run = trained(tmp_path, seed=3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert run.trainer.rounds == 12
    assert ledger.read(tmp_path / "run.ledger").complete


def test_without_a_ledger_the_guarantee_says_what_nobody_knows(tmp_path, every_round):
    interrupted(4, tmp_path, ledger=None)
    _, run = trained(tmp_path, ledger=None)
    assert run.trainer.rounds == 12
    assert "a ledger would know" in run.guarantee.assuming


def test_a_run_keeps_its_ledger_and_its_schedule(tmp_path, every_round):
    interrupted(4, tmp_path)
    with pytest.raises(ValueError, match=r"ledger must be that of the run in .* got None"):
        trained(tmp_path, ledger=None)
    with pytest.raises(ValueError, match="which is not there: bring it back"):
        trained(tmp_path, ledger=tmp_path / "other.ledger")
    with pytest.raises(ValueError, match="schedule must be given as it was"):
        trained(tmp_path, schedule=SCHEDULES["steps"])
    with pytest.raises(ValueError, match="declares"):
        trained(tmp_path, Mechanism(Shuffle(batches=6, epochs=2), 0.5, Individual(0.5)))
    with pytest.raises(ValueError, match="records that the run began with"):
        trained(tmp_path, data=(X[:54], Y[:54]))
    assert ledger.read(tmp_path / "run.ledger").released == 4
    trained(tmp_path)
    assert ledger.read(tmp_path / "run.ledger").complete


def test_a_new_run_does_not_take_the_ledger_of_another(tmp_path):
    trained(tmp_path, state=None)
    with pytest.raises(ledger.LedgerError, match="path must be new"):
        trained(tmp_path)
    assert not (tmp_path / "state").exists()


def test_a_damaged_state_is_refused_in_words(tmp_path, every_round):
    interrupted(4, tmp_path)
    whole, rng = (tmp_path / "state").read_bytes(), np.random.default_rng(0)
    (tmp_path / "state").write_bytes(whole[:-300])
    with pytest.raises(ValueError, match="must be a state that save"):
        trained(tmp_path)
    for _ in range(100):
        start = int(rng.integers(len(whole)))
        (tmp_path / "damaged").write_bytes(whole[:start] + rng.bytes(50) + whole[start + 50 :])
        with suppress(ValueError):  # or it hit weights, say, or padding
            read_state(tmp_path / "damaged", RunDeclaration(MECHANISM, None, None), None)


def test_an_unreadable_state_of_a_schedule_is_found_before_the_first_round(tmp_path):
    class Odd(lr_scheduler.ExponentialLR):
        def __init__(self, optimizer, odd):
            self.odd = odd
            super().__init__(optimizer, 0.9)

    for odd, words in ((PurePosixPath("x"), "PurePosixPath"), (lambda: 0, "pickle")):
        with pytest.raises(
            ValueError, match=f"state must be tensors and plain values, got .*{words}"
        ):
            trained(tmp_path, schedule=lambda o, odd=odd: Odd(o, odd))
        assert [path.name for path in tmp_path.iterdir()] == ["run.ledger"]
    _, run = trained(tmp_path)  # nothing was released so far
    assert run.trainer.rounds == ledger.read(tmp_path / "run.ledger").released == 12


def test_an_unreadable_state_of_an_optimizer_leaves_the_one_before(tmp_path, every_round):
    class Odd(torch.optim.SGD):
        def step(self, closure=None):
            self.state[self.param_groups[0]["params"][0]]["odd"] = PurePosixPath("x")
            return super().step(closure)

    with pytest.raises(ValueError, match="got pathlib"):
        trained(tmp_path, optimizer=lambda p: Odd(p, 0.1))
    assert ledger.read(tmp_path / "run.ledger").released == 1
    assert torch.load(tmp_path / "state", weights_only=True)["rounds"] == 0


def test_a_run_keeps_its_optimizer_and_its_model(tmp_path, every_round):
    interrupted(4, tmp_path, schedule=SCHEDULES["cosine"])
    for more, words in (
        ({"optimizer": lambda p: torch.optim.SGD(p, 0.1)}, "optimizer must be the Adam"),
        ({"schedule": SCHEDULES["warm"]}, "schedule must be the CosineAnnealingLR"),
        ({"model": nn.Linear(5, 3)}, "model must be that of the saved run"),
    ):
        with pytest.raises(ValueError, match=words):
            trained(tmp_path, **{"schedule": SCHEDULES["cosine"]} | more)
    assert ledger.read(tmp_path / "run.ledger").released == 4  # the wrong ones cost no round


def test_a_state_that_was_saved_elsewhere_is_read_here(tmp_path, every_round, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        interrupted(4, tmp_path)
    trained(tmp_path)


@pytest.mark.parametrize("what", ["ledger", "diagnostics", "log"])
@pytest.mark.parametrize("ending", ["", ".new"])
def test_the_state_is_a_file_of_its_own(tmp_path, what, ending):
    shared = tmp_path / f"state{ending}"
    with pytest.raises(
        ValueError, match=f"state must be a file of its own, got .* the {what}, too"
    ):
        trained(
            tmp_path, **{what: PublicLog(shared, lambda model: {}) if what == "log" else shared}
        )
    assert not list(tmp_path.iterdir())


def test_a_place_where_no_state_can_be_is_refused_before_the_run_begins(tmp_path):
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "nowhere" / "state", tmp_path / "folder"):
        with pytest.raises(ValueError, match="state must be a file in an existing folder"):
            trained(tmp_path, state=place)
    assert not (tmp_path / "run.ledger").exists()


def test_a_program_that_goes_elsewhere_keeps_its_state_where_it_was(
    tmp_path, every_round, monkeypatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    model = make()
    model.register_forward_pre_hook(lambda *_: os.chdir(tmp_path / "elsewhere"))
    interrupted(4, tmp_path, model=model, state="state")
    assert torch.load(tmp_path / "state", weights_only=True)["rounds"] == 4
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("killed", [False, True])
def test_a_run_that_died_before_its_first_state_begins(tmp_path, killed):
    trainer_of(tmp_path, ledger=tmp_path / "run.ledger").close()
    assert not (tmp_path / "state").exists()
    if killed:
        (tmp_path / "state").touch()
    trained(tmp_path)
    assert ledger.read(tmp_path / "run.ledger").complete


@pytest.mark.parametrize("begun", [False, True])
def test_two_do_not_go_on_from_one_state_also_without_a_ledger(tmp_path, every_round, begun):
    if begun:
        interrupted(4, tmp_path, ledger=None)
    first = trainer_of(tmp_path)
    batches = first.batches((X, Y))
    for _ in range(2):
        with pytest.raises(ledger.LedgerBusy, match="is being written by this or another process"):
            trainer_of(tmp_path)
        first.step(next(batches), LOSS)
    first.save(tmp_path / "state")  # by hand
    first.step(next(batches), LOSS)
    with pytest.raises(ledger.LedgerBusy):
        trainer_of(tmp_path)
    batches.close()
    first.close()
    with pytest.raises(ledger.LedgerBusy, match="was let go"):
        next(first.batches((X, Y)))
    _, run = trained(tmp_path, ledger=None)
    assert run.trainer.rounds == 12


def test_a_state_that_somebody_replaced_is_not_written_over(tmp_path, every_round):
    trainer = trainer_of(tmp_path)
    batches = trainer.batches((X, Y))
    trainer.step(next(batches), LOSS)
    (tmp_path / "other").write_text("of somebody else")
    (tmp_path / "other").replace(tmp_path / "state")
    with pytest.raises(ledger.LedgerBusy, match="replaced by another process"):
        next(batches)
    assert (tmp_path / "state").read_text() == "of somebody else"


def test_a_refused_attempt_lets_go_of_what_it_opened(tmp_path, every_round):
    """As in a notebook, where the last error is kept."""
    interrupted(4, tmp_path)
    kept = []
    (tmp_path / "folder").mkdir()
    for more in (
        {"insecure_seed": 3},
        {"clip_norms": [0.3] * 12},
        {"diagnostics": tmp_path / "folder"},
    ):
        with pytest.raises(ValueError, match=r"insecure_seed|clip_norms|diagnostics") as refused:
            trained(tmp_path, **more)
        kept.append(refused)
    trained(tmp_path)
    assert ledger.read(tmp_path / "run.ledger").complete


def test_a_batch_that_could_not_be_fetched_is_fetched_again(tmp_path, every_round):
    class Flaky(torch.utils.data.Dataset):
        fetched = 0

        def __len__(self):
            return len(X)

        def __getitem__(self, i):
            Flaky.fetched += 1
            if Flaky.fetched == 25:
                raise OSError("not now")
            return X[i], Y[i]

    trainer = trainer_of(tmp_path, ledger=tmp_path / "run.ledger")
    numbers = []
    for _ in range(2):
        with suppress(OSError):
            for batch in trainer.batches(Flaky()):
                trainer.step(batch, LOSS)
                numbers.append(batch.number)
    assert numbers == list(range(12))
    assert ledger.read(tmp_path / "run.ledger").complete


def test_a_state_that_others_may_read_is_not_written_into(tmp_path):
    (tmp_path / "state.new").touch(0o666)
    trainer_of(tmp_path).save(tmp_path / "state")
    assert os.stat(tmp_path / "state").st_mode & 0o077 == 0


def test_a_full_disk_leaves_the_state_before(tmp_path, every_round, monkeypatch):
    save, times = torch.save, []

    def full(*args):
        times.append(args)
        if len(times) == 4:
            raise OSError(28, "No space left on device")
        save(*args)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(OSError, match="No space left"):
            trained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.ledger", "state"]
    assert torch.load(tmp_path / "state", weights_only=True)["rounds"] == 2
    trained(tmp_path)
    assert ledger.read(tmp_path / "run.ledger").complete


def test_what_looks_at_the_data_is_no_schedule():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for schedule, complaint in (
        (lr_scheduler.ReduceLROnPlateau(optimizer), "must not look"),
        (0.1, "must be a torch"),
    ):
        with pytest.raises(ValueError, match=f"schedule {complaint}"):
            PrivateTrainer(model, optimizer, MECHANISM, schedule=schedule)


def test_writing_takes_a_small_part_of_the_time(tmp_path):
    times, save = [], PrivateTrainer._save

    def slow(self, path):
        times.append(time.monotonic())
        time.sleep(0.01)
        save(self, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateTrainer, "_save", slow)
        trained(tmp_path, Mechanism(BallsInBins(bins=30, epochs=2), 1.0))
    between = [later - earlier for earlier, later in pairwise(times[:-1])]
    assert all(gap >= 0.2 for gap in between)


SCRIPT = """
import sys, time, torch
from torch import nn
from verax import Mechanism, Shuffle
from verax.training import PrivateTrainer
folder = sys.argv[1]
torch.set_num_threads(1)
torch.manual_seed(0)
x, y, model = torch.randn(60, 5), torch.randint(0, 3, (60,)), nn.Linear(5, 3)
mechanism = Mechanism(Shuffle(batches=60, epochs=5), 1.0)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
files = {"ledger": folder + "/run.ledger", "state": folder + "/state"}
trainer = PrivateTrainer(model, optimizer, mechanism, **files)
print("ready", flush=True)
for batch in trainer.batches((x, y)):
    trainer.step(batch, nn.CrossEntropyLoss())
    time.sleep(0.002)
"""


def test_a_program_that_is_killed_again_and_again_gets_to_its_end(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    for attempt in range(3):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        if attempt < 2:
            time.sleep(0.1 + 0.2 * attempt)
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=600)
    book = ledger.read(tmp_path / "run.ledger")
    assert book.complete
    assert book.released == 300


def test_a_pickle_is_no_state_and_says_so_without_a_warning(tmp_path):
    path = tmp_path / "state"
    path.write_bytes(pickle.dumps({"round": 1}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read_secret(path)
    assert found is None or found == {"round": 1}
