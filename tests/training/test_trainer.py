"""The training loop: exact sums, noise once a round, every departure noticed."""

import math
import os
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import Dataset, IterableDataset, TensorDataset  # noqa: E402

from verax import (  # noqa: E402
    Batch,
    Deterministic,
    Individual,
    Mechanism,
    Mixed,
    Poisson,
    Shuffle,
    WithoutReplacement,
    ledger,
)
from verax.ledger.run import NOT_PRIVATE  # noqa: E402
from verax.training import LeftMechanism, LocalSteps, PrivateTrainer  # noqa: E402
from verax.training.clipping.clipper import Clipper  # noqa: E402
from verax.training.clipping.flat_buffer import FlatBuffer  # noqa: E402
from verax.training.gradients.loss import PerExampleLoss  # noqa: E402

torch.set_num_threads(1)
X = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(2))
LOSS = nn.CrossEntropyLoss()


def make(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def trained(mechanism, data=(X, Y), model=None, loss=LOSS, **options):
    model = model or make()
    options.setdefault("insecure_seed", 7)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), 0.1), mechanism, **options)
    for batch in trainer.batches(data):
        trainer.step(batch, loss)
    return trainer, model


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def clipped_mean(model, x, y, norm):
    total = torch.zeros_like(weights(model))
    for i in range(len(x)):
        loss = functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        g = torch.cat([v.reshape(-1) for v in torch.autograd.grad(loss, list(model.parameters()))])
        total += g * min(1.0, norm / float(g.norm()))
    return total


# --- exactness ------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro_batch", [1, 3, 7, 256])
def test_without_noise_one_round_is_the_clipped_sum_over_the_expected_batch(micro_batch):
    model = make()
    before, want = weights(model), clipped_mean(model, X, Y, 0.5) / 40.0
    trained(Mechanism(Deterministic(1), 0.0, Individual(0.5)), model=model, micro_batch=micro_batch)
    torch.testing.assert_close(weights(model), before - 0.1 * want, rtol=1e-4, atol=1e-6)


def test_batch_clipping_clips_the_mean_gradient():
    model = make()
    before = weights(model)
    g = torch.cat(
        [v.reshape(-1) for v in torch.autograd.grad(LOSS(model(X), Y), list(model.parameters()))]
    )
    trained(Mechanism(Deterministic(1), 0.0, Batch(0.05)), model=model)
    torch.testing.assert_close(
        weights(model), before - 0.1 * g * 0.05 / g.norm(), rtol=1e-4, atol=1e-7
    )


def test_mixed_clipping_averages_the_clip_groups():
    model = make()
    before = weights(model)
    trained(Mechanism(Deterministic(1), 0.0, Mixed(0.05, groups=4)), model=model)
    moved = (before - weights(model)) / 0.1
    assert 0.0 < float(moved.norm()) <= 0.05


def test_mixed_clipping_with_one_group_is_batch_clipping():
    results = []
    for clipping in (Batch(0.05), Mixed(0.05, groups=1)):
        model = make()
        trained(Mechanism(Deterministic(2), 0.0, clipping), model=model)
        results.append(weights(model))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    "factory",
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, 0.1),
        lambda p: torch.optim.Adagrad(p, 0.1),
        lambda p: torch.optim.RMSprop(p, 0.1),
    ],
)
def test_local_steps_are_clipped_as_a_displacement(factory):
    model, reference = make(), make()
    local = factory(list(reference.parameters()))
    start = weights(reference)
    for _ in range(3):
        local.zero_grad()
        LOSS(reference(X), Y).backward()
        local.step()
    moved = start - weights(reference)
    trained(
        Mechanism(Deterministic(1), 0.0, Batch(0.2)),
        model=model,
        inner=LocalSteps(factory, steps=3),
    )
    torch.testing.assert_close(
        weights(model),
        start - 0.1 * moved * min(1.0, 0.2 / float(moved.norm())),
        rtol=1e-3,
        atol=1e-6,
    )


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_the_reduction_of_the_loss_makes_no_difference(reduction):
    results = []
    for loss in (
        nn.CrossEntropyLoss(reduction=reduction),
        lambda out, y: functional.cross_entropy(out, y),
    ):
        model = make()
        trained(Mechanism(Deterministic(2), 0.0), model=model, loss=loss)
        results.append(weights(model))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)


def test_token_losses_are_averaged_or_added_up_within_a_record():
    out, goal = torch.randn(4, 3, 5), torch.randint(0, 3, (4, 5))
    model = nn.Identity()
    mean = PerExampleLoss(nn.CrossEntropyLoss())(model, (out, goal))
    total = PerExampleLoss(nn.CrossEntropyLoss(reduction="sum"))(model, (out, goal))
    torch.testing.assert_close(
        mean, functional.cross_entropy(out, goal, reduction="none").mean(dim=1)
    )
    torch.testing.assert_close(total, 5 * mean)


class Items(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, i):
        return X[i], int(Y[i])


def test_all_kinds_of_data_give_the_same_run():
    mechanism, results = Mechanism(Poisson(0.2, 4), 1.0), []
    named = {"x": X, "y": Y}
    for data, loss in (
        ((X, Y), LOSS),
        (TensorDataset(X, Y), LOSS),
        (Items(), LOSS),
        ((X.numpy(), Y.numpy()), LOSS),
        (
            named,
            lambda model, batch: functional.cross_entropy(
                model(batch["x"]), batch["y"], reduction="none"
            ),
        ),
    ):
        results.append(weights(trained(mechanism, data=data, loss=loss)[1]))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("data", [(X, Y), Items(), {"x": X, "y": Y}])
def test_empty_batches_are_rounds_with_noise(data):
    def loss(*args):
        raise AssertionError("nothing to evaluate")

    model = make()
    before = weights(model)
    trainer, _ = trained(Mechanism(Poisson(1e-9, 3), 1.0), data=data, model=model, loss=loss)
    assert trainer.rounds == 3
    assert (weights(model) != before).all()


def test_the_noise_has_the_stated_size_and_is_fresh_every_round():
    model = nn.Linear(200, 100, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    mechanism = Mechanism(Poisson(1e-9, 2), 3.0, Individual(0.5))
    trainer = PrivateTrainer(
        model, torch.optim.SGD(model.parameters(), 1.0), mechanism, insecure_seed=3
    )
    steps = []
    for batch in trainer.batches(
        (torch.randn(10**6, 1).expand(-1, 200), torch.zeros(10**6, dtype=torch.long))
    ):
        before = weights(model)
        trainer.step(batch, LOSS)
        steps.append((before - weights(model)) * mechanism.sampler.expected_batch(10**6))
    for step in steps:
        assert float(step.std()) == pytest.approx(1.5, rel=0.03)
        assert abs(float(step.mean())) < 0.05
    assert abs(float(torch.corrcoef(torch.stack(steps))[0, 1])) < 0.03


def test_two_runs_never_share_noise_unless_seeded():
    mechanism = Mechanism(Poisson(0.2, 2), 1.0)
    first, second = (weights(trained(mechanism, insecure_seed=None)[1]) for _ in range(2))
    assert not torch.equal(first, second)
    again = [weights(trained(mechanism, insecure_seed=5)[1]) for _ in range(2)]
    assert torch.equal(*again)


def test_an_empty_buffer_is_not_mistaken_for_parameters():
    with pytest.raises(ValueError, match="trainable parameter"):
        FlatBuffer([])


# --- leaving the mechanism ------------------------------------------------------------------------


def started(tmp_path, mechanism=None, **options):
    model = make()
    path = tmp_path / "run.ledger"
    trainer = PrivateTrainer(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        mechanism or Mechanism(Poisson(0.5, 4), 1.0),
        ledger=path,
        insecure_seed=1,
        **options,
    )
    return trainer, model, path


def test_a_whole_run_is_in_the_ledger(tmp_path):
    trainer, _, path = started(tmp_path)
    for batch in trainer.batches((X, Y)):
        trainer.step(batch, LOSS)
    run = ledger.read(path)
    assert run.complete
    assert run.released == 4
    assert run.insecure_seed
    assert "seed" not in path.read_text().replace("insecure_seed", "")


def test_a_foreign_batch_stops_the_run(tmp_path):
    trainer, _, path = started(tmp_path)
    batches = trainer.batches((X, Y))
    first = next(batches)
    trainer.step(first, LOSS)
    with pytest.raises(LeftMechanism, match="did not draw"):
        trainer.step(first, LOSS)
    with pytest.raises(LeftMechanism):
        next(trainer.batches((X, Y)))
    assert ledger.read(path).released == 1
    assert "did not draw" in ledger.read(path).ended.reason


def test_a_batch_left_half_done_stops_the_run(tmp_path):
    trainer, _, path = started(tmp_path)
    batches = trainer.batches((X, Y))
    next(batches)
    with pytest.raises(LeftMechanism, match="not stepped on"):
        next(batches)
    assert ledger.read(path).released == 0


def test_the_last_batch_left_half_done_stops_the_run_too(tmp_path):
    trainer, _, path = started(tmp_path)
    batches = trainer.batches((X, Y))
    for _ in range(3):
        trainer.step(next(batches), LOSS)
    next(batches)
    with pytest.raises(LeftMechanism, match="round 3 was drawn but not stepped on"):
        next(batches)
    run = ledger.read(path)
    assert run.released == 3
    assert "round 3 was drawn but not stepped on" in run.ended.reason


@pytest.mark.parametrize("last", [1, 3])
def test_a_loop_may_be_left_before_its_batch_is_stepped_on(tmp_path, last):
    trainer, _, path = started(tmp_path)
    for batch in trainer.batches((X, Y)):
        if batch.number == last:
            break
        trainer.step(batch, LOSS)
    assert ledger.read(path).released == last
    assert ledger.read(path).ended is None
    trainer.step(batch, LOSS)  # it is still there to be stepped on
    for batch in trainer.batches((X, Y)):
        trainer.step(batch, LOSS)
    assert ledger.read(path).complete


def test_a_loop_that_goes_on_after_the_run_was_stopped_hears_why(tmp_path):
    trainer, _, path = started(tmp_path, Mechanism(Deterministic(1), 1.0))
    batches = trainer.batches((X, Y))
    first = next(batches)
    for again in (lambda: trainer.step(replace(first), LOSS), lambda: next(batches)):
        with pytest.raises(LeftMechanism, match=r"did not draw.*the ledger says so"):
            again()
    assert "did not draw" in ledger.read(path).ended.reason


def test_a_backward_of_ones_own_is_noticed(tmp_path):
    trainer, model, _ = started(tmp_path)
    batch = next(trainer.batches((X, Y)))
    LOSS(model(X), Y).backward()
    with pytest.raises(LeftMechanism, match="not clipped"):
        trainer.step(batch, LOSS)


def test_gradients_of_public_training_are_dropped(tmp_path):
    model = make()
    functional.cross_entropy(model(X), Y).backward()
    trained(Mechanism(Poisson(0.3, 2), 1.0), model=model)
    assert all(p.grad is None for p in model.parameters())


def test_gradients_of_frozen_parameters_are_noticed_too(tmp_path):
    trainer, model, _ = started(tmp_path)
    batch = next(trainer.batches((X, Y)))
    functional.cross_entropy(model(X), Y).backward()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    next(model.parameters()).requires_grad_()
    next(model.parameters()).grad = None
    with pytest.raises(LeftMechanism, match="gradients that were not clipped"):
        trainer.step(batch, LOSS)


def test_gradients_that_are_not_finite_stop_the_run_and_are_marked_private(tmp_path):
    trainer, _, path = started(tmp_path, Mechanism(Deterministic(2), 1.0))
    x = X.clone()
    x[0, 0] = math.nan
    batch = next(trainer.batches((x, Y)))
    with pytest.raises(LeftMechanism, match="not finite"):
        trainer.step(batch, LOSS)
    assert ledger.read(path).ended.private


@pytest.mark.parametrize("clipping", [Batch(1.0), Mixed(1.0, groups=2)])
def test_batch_norm_is_allowed_over_a_clip_group_without_running_statistics(clipping):
    def model(track):
        return nn.Sequential(
            nn.Linear(6, 5), nn.BatchNorm1d(5, track_running_stats=track), nn.Linear(5, 3)
        )

    trained(Mechanism(Deterministic(2), 1.0, clipping), model=model(False))
    with pytest.raises(ValueError, match="track_running_stats=False"):
        trained(Mechanism(Deterministic(2), 1.0, clipping), model=model(True))


def test_bad_input_is_refused_in_words(tmp_path):
    model, mechanism = make(), Mechanism(Poisson(0.5, 4), 1.0)
    with pytest.raises(ValueError, match="LBFGS"):
        PrivateTrainer(model, torch.optim.LBFGS(model.parameters()), mechanism)
    with pytest.raises(ValueError, match="not the model's"):
        PrivateTrainer(model, torch.optim.SGD(make().parameters(), 0.1), mechanism)
    with pytest.raises(ValueError, match="mechanism must be"):
        PrivateTrainer(model, torch.optim.SGD(model.parameters(), 0.1), "poisson")
    with pytest.raises(ValueError, match="inner is for"):
        PrivateTrainer(
            model,
            torch.optim.SGD(model.parameters(), 0.1),
            mechanism,
            inner=LocalSteps(torch.optim.Adam),
        )
    with pytest.raises(ValueError, match="inner is for"):
        Clipper(model, PerExampleLoss(LOSS), Individual(), LocalSteps(torch.optim.Adam))

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(())

    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), 0.1), mechanism)
    for data, words in (
        (Stream(), "a stream"),
        ((X, Y[:3]), "equal length"),
        ((X[:0], Y[:0]), "at least one"),
        (5, "map-style"),
    ):
        with pytest.raises(ValueError, match=words):
            next(trainer.batches(data))


# --- what it cost, and going on -------------------------------------------------------------------


def test_the_guarantee_is_that_of_the_declared_run_and_progress_that_of_its_rounds():
    model, mechanism = make(), Mechanism(Poisson(0.5, 4), 2.0)
    trainer = PrivateTrainer(
        model, torch.optim.SGD(model.parameters(), 0.1), mechanism, insecure_seed=1
    )
    assert trainer.so_far is None
    trainer.step(next(trainer.batches((X, Y))), LOSS)
    whole, part = trainer.guarantee.epsilon(1e-5), trainer.so_far.epsilon(1e-5)
    assert part.upper < whole.lower
    assert whole.upper == mechanism.guarantee().epsilon(1e-5).upper
    assert trainer.statement(1e-5).startswith(NOT_PRIVATE)


def test_the_statement_as_a_page(tmp_path):
    trainer, _ = trained(Mechanism(Shuffle(4), 2.0), insecure_seed=None)
    text = trainer.statement(1e-5, tmp_path / "report.html")
    assert "NOT private" not in text
    assert "Shuffle(batches=4" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    "mechanism",
    [
        Mechanism(Poisson(0.3, 6), 1.0),
        Mechanism(Shuffle(3, 2), 1.0),
        Mechanism(WithoutReplacement(8, 40, 6), 1.0, Mixed(1.0, groups=2)),
    ],
)
def test_resuming_goes_on_with_the_very_same_run(tmp_path, mechanism):
    _, whole = trained(mechanism, insecure_seed=9)
    first = make()
    trainer = PrivateTrainer(
        first, torch.optim.SGD(first.parameters(), 0.1), mechanism, insecure_seed=9
    )
    batches = trainer.batches((X, Y))
    for _ in range(2):
        trainer.step(next(batches), LOSS)
    trainer.save(tmp_path / "state")
    assert os.stat(tmp_path / "state").st_mode & 0o077 == 0
    second = make(5)
    later = PrivateTrainer(second, torch.optim.SGD(second.parameters(), 0.1), mechanism)
    later.load(tmp_path / "state", (X, Y))
    for batch in later.batches((X, Y)):
        later.step(batch, LOSS)
    assert later.rounds == 6
    torch.testing.assert_close(weights(second), weights(whole))
    assert "a ledger would know" in later.guarantee.assuming


def test_rounds_that_the_state_forgot_are_spent_not_repeated(tmp_path):
    trainer, _, path = started(tmp_path)
    batches = trainer.batches((X, Y))
    trainer.step(next(batches), LOSS)
    trainer.save(tmp_path / "state")
    trainer.step(next(batches), LOSS)  # released, but never saved: a crash follows
    trainer._run.files.ledger.close()
    model = make()
    book = ledger.Ledger.open(path, trainer.mechanism)
    later = PrivateTrainer(
        model, torch.optim.SGD(model.parameters(), 0.1), trainer.mechanism, ledger=book
    )
    later.load(tmp_path / "state", (X, Y))
    assert later.rounds == 2
    numbers = []
    for batch in later.batches((X, Y)):
        numbers.append(batch.number)
        later.step(batch, LOSS)
    assert numbers == [2, 3]
    assert "a ledger would know" not in later.guarantee.assuming
    assert ledger.read(path).complete


def test_resuming_never_draws_the_noise_of_a_forgotten_round_again(tmp_path):
    """Weights and data are such that every step is pure noise: equal steps would be equal noise."""
    mechanism, steps = Mechanism(Poisson(1e-9, 3), 1.0), []
    model = make()
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), 0.1), mechanism)
    batches = trainer.batches((X, Y))
    trainer.step(next(batches), LOSS)
    trainer.save(tmp_path / "state")
    start = weights(model)
    trainer.step(next(batches), LOSS)
    steps.append(weights(model) - start)
    later = PrivateTrainer(model, torch.optim.SGD(model.parameters(), 0.1), mechanism)
    later.load(tmp_path / "state", (X, Y))
    assert torch.equal(weights(model), start)
    later.step(next(later.batches((X, Y))), LOSS)
    steps.append(weights(model) - start)
    assert not bool((steps[0] == steps[1]).any())


def test_a_state_of_another_mechanism_is_refused(tmp_path):
    trainer, model, _ = started(tmp_path)
    trainer.save(tmp_path / "state")
    other = PrivateTrainer(model, trainer.optimizer, Mechanism(Poisson(0.5, 4), 2.0))
    with pytest.raises(ValueError, match="must hold a run of"):
        other.load(tmp_path / "state", (X, Y))


def test_a_state_of_another_run_of_the_same_mechanism_is_refused(tmp_path):
    states = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        trainer, model, path = started(tmp_path / name, Mechanism(Shuffle(4), 1.0))
        trainer.step(next(trainer.batches((X, Y))), LOSS)
        states.append(tmp_path / name / "state")
        trainer.save(states[-1])
        trainer.close()
    book = ledger.Ledger.open(path)
    later = PrivateTrainer(model, trainer.optimizer, trainer.mechanism, ledger=book)
    with pytest.raises(ValueError, match="must hold a state of the run in"):
        later.load(states[0], (X, Y))
    later.load(states[1], (X, Y))
    assert later.rounds == 1


def test_a_state_goes_on_with_as_many_records_as_it_began_with(tmp_path):
    trainer, model, path = started(tmp_path)
    trainer.batches((X, Y)).__next__()
    trainer.step(trainer._rounds.pending, LOSS)
    trainer.save(tmp_path / "state")
    trainer.close()
    book = ledger.Ledger.open(path, trainer.mechanism)
    later = PrivateTrainer(model, trainer.optimizer, trainer.mechanism, ledger=book)
    with pytest.raises(ValueError, match="must have the 40 records that the run began with"):
        later.load(tmp_path / "state", (X[:20], Y[:20]))


def test_a_state_holds_no_noise_unless_it_came_from_a_seed(tmp_path):
    for seed in (None, 3):
        model = make()
        trainer = PrivateTrainer(
            model,
            torch.optim.SGD(model.parameters(), 0.1),
            Mechanism(Poisson(0.3, 4), 1.0, Mixed(1.0, 2)),
            insecure_seed=seed,
        )
        trainer.step(next(trainer.batches((X, Y))), LOSS)
        trainer.save(tmp_path / "state")
        held = torch.load(tmp_path / "state", weights_only=True)
        key = trainer._run.sources.noise.state()["key"]
        assert (key in repr(held)) is (seed is not None)
        assert trainer._run.sources.sampling.state()["key"] in repr(held)


@pytest.mark.parametrize("content", [b"", b"no state", None])
def test_files_that_are_no_state_are_refused_in_words(tmp_path, content):
    trainer, model, _ = started(tmp_path)
    path = tmp_path / "state"
    if content is None:
        torch.save(model.state_dict(), path)
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="must be a state that save"):
        trainer.load(path, (X, Y))


def test_saving_in_the_middle_of_a_round_is_refused(tmp_path):
    trainer, _, _ = started(tmp_path)
    next(trainer.batches((X, Y)))
    with pytest.raises(ValueError, match="not stepped on"):
        trainer.save(tmp_path / "state")


# --- ledgers that are already there ---------------------------------------------------------------


def test_a_ledger_must_declare_the_run_that_is_trained(tmp_path):
    mechanism = Mechanism(Poisson(0.5, 4), 1.0)
    for number, (declared, facts, words) in enumerate(
        [
            (Mechanism(Poisson(0.1, 4), 1.0), {}, "declare the mechanism"),
            (mechanism, {"clip_norms": [1.0, 1.0, 1.0, 2.0]}, "declare the clip_norms"),
            (mechanism, {"insecure_seed": False}, "insecure_seed must not"),
        ]
    ):
        with ledger.Ledger.create(tmp_path / str(number), declared, **facts) as book:
            model = make()
            with pytest.raises(ValueError, match=words):
                PrivateTrainer(
                    model,
                    torch.optim.SGD(model.parameters(), 0.1),
                    mechanism,
                    ledger=book,
                    insecure_seed=None if number < 2 else 1,
                )


def test_a_seeded_state_does_not_go_into_a_ledger_that_says_it_is_secret(tmp_path):
    mechanism, model = Mechanism(Poisson(0.5, 4), 1.0), make()
    trainer = PrivateTrainer(
        model, torch.optim.SGD(model.parameters(), 0.1), mechanism, insecure_seed=1
    )
    trainer.save(tmp_path / "state")
    later = PrivateTrainer(
        model, torch.optim.SGD(model.parameters(), 0.1), mechanism, ledger=tmp_path / "run.ledger"
    )
    with pytest.raises(ValueError, match="insecure_seed must not"):
        later.load(tmp_path / "state", (X, Y))


def test_a_run_whose_sampler_state_is_lost_is_not_resumed_with_new_batches(tmp_path):
    trainer, _, path = started(tmp_path, Mechanism(Shuffle(4), 1.0))
    trainer.step(next(trainer.batches((X, Y))), LOSS)
    trainer._run.files.ledger.close()
    model = make()
    book = ledger.Ledger.open(path, trainer.mechanism)
    later = PrivateTrainer(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        trainer.mechanism,
        ledger=book,
        insecure_seed=1,
    )
    with pytest.raises(ValueError, match="load\\(\\) the state"):
        next(later.batches((X, Y)))


def test_rounds_spent_before_the_first_batch_of_a_state_are_dropped(tmp_path):
    """The state was saved before any draw; two rounds were released before the crash."""
    trainer, _, path = started(tmp_path, Mechanism(Shuffle(4), 1.0))
    trainer.save(tmp_path / "state")
    drawn = []
    for batch in trainer.batches((X, Y)):
        drawn.append(batch.data[0])
        trainer.step(batch, LOSS)
        if trainer.rounds == 2:
            break
    trainer._run.files.ledger.close()
    model = make()
    book = ledger.Ledger.open(path, trainer.mechanism)
    later = PrivateTrainer(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        trainer.mechanism,
        ledger=book,
        insecure_seed=1,
    )
    later.load(tmp_path / "state", (X, Y))
    for batch in later.batches((X, Y)):
        drawn.append(batch.data[0])
        later.step(batch, LOSS)
    # every record once
    assert torch.equal(torch.cat(drawn).sort(dim=0).values, X.sort(dim=0).values)


def test_the_data_keep_their_number_during_a_run():
    model = make()
    trainer = PrivateTrainer(
        model, torch.optim.SGD(model.parameters(), 0.1), Mechanism(Poisson(0.5, 4), 1.0)
    )
    trainer.step(next(trainer.batches((X, Y))), LOSS)
    with pytest.raises(ValueError, match="dataset must have the 40 records"):
        next(trainer.batches((X[:39], Y[:39])))


# --- clip norms round by round, a public number of records ----------------------------------------


@pytest.mark.parametrize("clipping", [Individual(9.0), Batch(9.0), Mixed(9.0, groups=2)])
def test_clip_norms_follow_their_schedule_and_noise_is_in_proportion(tmp_path, clipping):
    norms = [0.5, 0.25, 0.25, 0.001]
    mechanism = Mechanism(Deterministic(1, epochs=4), 0.0, clipping)
    model = make()
    trainer = PrivateTrainer(
        model,
        torch.optim.SGD(model.parameters(), 1.0),
        mechanism,
        clip_norms=lambda t: norms[t],
        insecure_seed=1,
    )
    for batch in trainer.batches((X, Y)):
        before = weights(model)
        trainer.step(batch, LOSS)
        moved = float((before - weights(model)).norm())
        assert 0.1 * norms[batch.number] < moved <= norms[batch.number] * (1 + 1e-6)
    empty = Mechanism(Poisson(1e-9, 4), 3.0, clipping)
    wide = nn.Linear(200, 100)
    data = torch.zeros(10, 200), torch.zeros(10, dtype=torch.long)
    path = tmp_path / "run.ledger"
    trainer = PrivateTrainer(
        wide,
        torch.optim.SGD(wide.parameters(), 1.0),
        empty,
        clip_norms=norms,
        ledger=path,
        insecure_seed=1,
        records=10**9,
    )
    for batch in trainer.batches(data):
        before = weights(wide)
        trainer.step(batch, LOSS)
        scale = trainer._gradient_step.clipper(LOSS).denominator(1.0)
        moved = (before - weights(wide)) * scale
        assert float(moved.std()) == pytest.approx(3.0 * norms[batch.number], rel=0.03)
    run = ledger.read(path)
    assert run.clip_norms == ((0.5, 1), (0.25, 2), (0.001, 1))
    assert run.guarantee().epsilon(1e-5) == empty.guarantee().epsilon(1e-5)
    assert "declared round by round, 0.001 to 0.5" in run.account()


@pytest.mark.parametrize(
    ("norms", "words"),
    [
        ([1.0, 2.0], "one norm for each of the 4 rounds"),
        (lambda t: -1.0, "clip_norms of round 0 must be positive"),
        (lambda t: math.nan if t == 2 else 1.0, "clip_norms of round 2"),
    ],
)
def test_clip_norms_must_be_norms_of_all_rounds(norms, words):
    model = make()
    with pytest.raises(ValueError, match=words):
        PrivateTrainer(
            model,
            torch.optim.SGD(model.parameters(), 0.1),
            Mechanism(Poisson(0.5, 4), 1.0),
            clip_norms=norms,
        )


def test_a_state_with_other_clip_norms_is_refused(tmp_path):
    mechanism, model = Mechanism(Poisson(0.5, 4), 1.0), make()
    trainers = [
        PrivateTrainer(model, torch.optim.SGD(model.parameters(), 0.1), mechanism, clip_norms=norms)
        for norms in (None, [1.0, 1.0, 1.0, 2.0])
    ]
    trainers[0].save(tmp_path / "state")
    with pytest.raises(ValueError, match="run of clip_norms"):
        trainers[1].load(tmp_path / "state", (X, Y))


def test_updates_are_scaled_by_a_public_number_of_records():
    """Neighbours are then divided by the same; and the guarantee names the assumption otherwise."""
    mechanism, moved = Mechanism(Poisson(1.0, 1), 0.0), []
    for records in (None, 80):
        model = make()
        before = weights(model)
        trainer, _ = trained(mechanism, model=model, records=records)
        moved.append(before - weights(model))
        assert ("number of records is public" in trainer.guarantee.assuming) is (records is None)
    torch.testing.assert_close(moved[0], 2 * moved[1], rtol=1e-4, atol=1e-7)
    with pytest.raises(ValueError, match="records must be"):
        trained(mechanism, records=0)


class Slow(Dataset):
    """Records that are fetched many at a time."""

    def __init__(self):
        self.calls = []

    def __len__(self):
        return 10**12

    def __getitem__(self, i):
        raise AssertionError("one by one")

    def __getitems__(self, numbers):
        self.calls.append(len(numbers))
        return [(torch.full((6,), i / 10**12), i % 3) for i in numbers]


@pytest.mark.parametrize(("clipping", "looks"), [(Batch(), 0), (Individual(), 2)])
def test_huge_data_are_fetched_a_batch_at_a_time(clipping, looks):
    data = Slow()
    trained(Mechanism(WithoutReplacement(20, 10**12, 3), 1.0, clipping), data=data)
    # eight of four records, to see whether they are mixed, and two larger ones, whether they know
    # their number
    assert sorted(data.calls) == [4] * 8 * looks + [5] * looks + [9] * looks + [20] * 3
