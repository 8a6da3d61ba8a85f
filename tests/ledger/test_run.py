"""What a ledger is worth: the guarantee of what module."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from verax import (
    BallsInBins,
    BufferedShuffle,
    Deterministic,
    Mechanism,
    NoGuarantee,
    Poisson,
    RandomAllocation,
    RandomParticipation,
    Shuffle,
    TruncatedPoisson,
    WithoutReplacement,
)
from verax.ledger import Ledger, LedgerError, read
from verax.ledger import run as module

RUN = Mechanism(Poisson(0.01, 8), 1.5)
EVERY = [
    Poisson(0.2, 7),
    TruncatedPoisson(0.2, 7, 9, 30),
    WithoutReplacement(4, 30, 7),
    Deterministic(3, 4),
    Shuffle(3, 4),
    Shuffle(3, 4, reshuffle=False),
    BufferedShuffle(4, 2, 3),
    BallsInBins(3, 4),
    RandomAllocation(2, 5, 3),
    RandomParticipation(0.5, 0.3, 29, 7),
]

pytestmark = pytest.mark.usefixtures("no_waiting")


@pytest.mark.parametrize("sampler", EVERY, ids=repr)
def test_a_part_of_a_run_is_a_shorter_run(sampler):
    """With the same generator, what is charged begins with the batches that were released."""

    def drawn(what, most=10**6):
        return [batch.tolist() for batch in islice(what.draw(30, np.random.default_rng(3)), most)]

    for rounds in range(1, len(sampler)):
        more, less = sampler.prefix(rounds, up=True), sampler.prefix(rounds, up=False)
        assert len(less or ()) <= rounds <= len(more) <= len(sampler)
        assert drawn(more, rounds) == drawn(sampler, rounds)
        assert less is None or drawn(less) == drawn(sampler, len(less))
        independent = not hasattr(sampler, "epochs")
        assert (more == less) == (independent or rounds % (len(sampler) // sampler.epochs) == 0)


# of an attack that alternates, in a single round
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
@pytest.mark.parametrize("sampler", EVERY, ids=repr)
def test_the_stated_epsilon_never_falls_as_a_run_goes_on(path, sampler, go_on):
    mechanism = Mechanism(sampler, 2.0)
    whole = mechanism.guarantee().epsilon(1e-3)
    before = 0.0
    with Ledger.create(path, mechanism) as book:
        for number in range(len(sampler) + 1):
            run = read(path)
            charged = run.guarantee(stopping="independent").epsilon(1e-3)
            assert before <= charged.upper * 1.002
            assert charged.upper <= whole.upper * 1.002
            anyhow = run.guarantee().epsilon(1e-3)
            assert anyhow.upper == pytest.approx(whole.upper, rel=2e-3)
            # no attack is claimed on rounds that were not released
            assert anyhow.lower <= charged.upper
            before = charged.upper
            if number < len(sampler):
                go_on(book, 1)
    assert run.complete
    assert charged.lower == pytest.approx(whole.lower, rel=2e-3)


def test_independent_rounds_are_charged_one_by_one(path, written):
    run = read(written(path, 5))
    truth = Mechanism(Poisson(0.01, 5), 1.5).guarantee(group=3).epsilon(1e-5)
    assert run.guarantee(group=3, stopping="independent").epsilon(1e-5) == truth


def test_the_bracket_of_a_part_of_an_epoch_is_honest(path, written):
    run = read(written(path, 5, Mechanism(Deterministic(3, 4), 2.0)))
    bracket = run.guarantee(stopping="independent").epsilon(1e-5)
    assert bracket.upper == pytest.approx(
        Mechanism(Deterministic(3, 2), 2.0).guarantee().epsilon(1e-5).upper, rel=2e-3
    )
    assert bracket.lower == pytest.approx(
        Mechanism(Deterministic(3, 1), 2.0).guarantee().epsilon(1e-5).lower, rel=2e-3
    )
    assert run.guarantee().epsilon(1e-5).lower == bracket.lower


def test_nothing_released_costs_nothing(path, written):
    run = read(written(path, 0))
    nothing = run.guarantee(group=2, stopping="independent")
    assert float(nothing.epsilon(1e-9)) == 0.0
    assert float(nothing.delta(0.0)) <= 1e-300
    assert run.guarantee().epsilon(1e-5).lower == 0.0 < run.guarantee().epsilon(1e-5).upper


def test_a_run_without_noise_is_infinite(path, written):
    run = read(written(path, 1, Mechanism(Poisson(0.5, 3), 0.0)))
    assert float(run.guarantee(stopping="independent").epsilon(1e-5)) == float("inf")


def test_phases_that_have_not_begun_are_not_charged(path, written):
    both = Mechanism(Poisson(0.1, 4), 2.0) + Mechanism(Poisson(0.1, 4), 1.0)
    run = read(written(path, 3, both))
    truth = Mechanism(Poisson(0.1, 3), 2.0).guarantee().epsilon(1e-5)
    assert run.guarantee(stopping="independent").epsilon(1e-5) == truth
    assert run.guarantee().epsilon(1e-5).upper == both.guarantee().epsilon(1e-5).upper


def test_what_the_numbers_assume_is_said(path, written):
    run = read(written(path, 3, insecure_seed=True))
    guessed = "that nobody can guess the seed that somebody chose"
    assert (
        run.guarantee().assuming
        == f"{guessed}; that the number of records is public (records= gives another)"
    )
    assert replace(run, population=100).guarantee().assuming == guessed
    assert "neither data nor results had a say" in run.guarantee(stopping="independent").assuming
    with pytest.raises(ValueError, match="stopping must be one of 'any', 'independent'"):
        run.guarantee(stopping="no")


def test_stopping_by_results_breaks_the_smaller_epsilon():
    """Why the whole declared run is charged unless the end was independent.

    Whoever stops once the privacy loss is large breaks the smaller claim. One Gaussian release per
    epoch, up to 100. Stopped in the first epoch in which the loss exceeds by 0.5 the epsilon of the
    epochs so far, the claim "epsilon of what ran, at delta" is wrong by a factor of four in delta.
    """
    shift, delta, runs, rng = 0.3, 0.01, 50_000, np.random.default_rng(1)
    loss, going, excess = np.zeros(runs), np.ones(runs, dtype=bool), np.zeros(runs)
    for epochs in range(1, 101):
        loss += rng.normal(shift**2 / 2, shift, runs)
        claimed = Mechanism(Deterministic(1, epochs), 1 / shift).guarantee().epsilon(delta).upper
        ends = going & (loss > claimed + 0.5)
        excess[ends] = 1.0 - np.exp(claimed - loss[ends])
        going &= ~ends
    assert excess.mean() > 4 * delta
    whole = Mechanism(Deterministic(1, 100), 1 / shift).guarantee().epsilon(delta).upper
    assert np.clip(1.0 - np.exp(whole - loss), 0.0, None).mean() < 1.1 * delta


# Several runs


def test_runs_on_the_same_data_add_up(path, tmp_path, written):
    other = tmp_path / "other.ledger"
    runs = [
        read(written(path, 8, finish=True)),
        read(written(other, 2, Mechanism(Poisson(0.1, 4), 2.0))),
    ]
    together = module.compose(runs, group=2, stopping="independent")
    truth = (RUN + Mechanism(Poisson(0.1, 2), 2.0)).guarantee(group=2).epsilon(1e-5)
    assert together.epsilon(1e-5) == truth
    assert "that no run was described after looking at the results of another" in together.assuming
    assert (
        module.compose(runs).epsilon(1e-5).upper
        > module.compose(runs, stopping="independent").epsilon(1e-5).upper
    )


def test_runs_under_different_relations_do_not_add_up(path, tmp_path, written):
    runs = [read(written(path, 1)), read(written(tmp_path / "b", 1, Mechanism(Shuffle(4), 1.0)))]
    with pytest.raises(NoGuarantee, match="add-remove and zero-out"):
        module.compose(runs)


def test_copies_of_one_run_do_not_add_up(path, tmp_path, written, go_on):
    written(path, 1)
    twin = tmp_path / "twin.ledger"
    twin.write_bytes(path.read_bytes())
    with Ledger.open(twin) as book:
        go_on(book, 1)
    with pytest.raises(LedgerError, match=r"run\.ledger and .*twin\.ledger are copies of one run"):
        module.compose([read(path), read(twin)])
    with pytest.raises(ValueError, match="at least one Run, got none"):
        module.compose([])


# The package


def test_reading_a_ledger_needs_no_torch(path, written):
    written(path, 1)
    code = (
        "import sys, verax.training\n"
        "heavy = 'verax.training.', 'torch', 'scipy'\n"
        "assert not any(name.startswith(heavy) for name in sys.modules)\n"
        "from verax.training import DamagedLedger, Ledger, Run\n"
        "from verax.ledger.ledger import read\n"
        "read(sys.argv[1]).guarantee().epsilon(1e-5)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.stderr == ""
    assert done.returncode == 0


def test_unknown_names_are_unknown():
    import verax.training

    with pytest.raises(AttributeError, match="no attribute 'Leger'"):
        verax.training.Leger  # noqa: B018


@pytest.mark.parametrize("name", ["entries", "ledger", "run"])
def test_examples(name):
    """Also where torch is missing and the package's examples are left out."""
    result = doctest.testmod(
        importlib.import_module(f"verax.ledger.{name}"), optionflags=doctest.ELLIPSIS
    )
    assert result.failed == 0


def test_runs_that_protect_different_units_are_not_taken_together(tmp_path, written):
    runs = [read(written(tmp_path / unit, 3, unit=unit)) for unit in ("record", "client")]
    with pytest.raises(
        LedgerError, match=r"record protects one record and .*client one client: what protects a"
    ):
        module.compose(runs)
    both = [runs[1], read(written(tmp_path / "other", 3, unit="client"))]
    assert module.compose(both).unit == "client"
