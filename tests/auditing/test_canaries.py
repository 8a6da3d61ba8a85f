"""Canaries in one run: the theorem's numbers, its confidence, its power in real training."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from verax import Deterministic, Mechanism, Poisson, WithoutReplacement
from verax.auditing.canaries import (
    audit_canaries,
    epsilon_from_guesses,
    largest_probabilities,
    right_guesses_at_most,
)
from verax.privacy.numerics.distributions import binomial_probability


def slowly(m, r, v, eps, delta):
    """The corollary, written out term by term."""
    law = stats.binom(r, 1.0 / (1.0 + math.exp(-eps)))
    window = max((law.cdf(v - 1) - law.cdf(v - 1 - i)) / i for i in range(1, m + 1))
    return min(law.sf(v - 1) + 2.0 * m * delta * window, 1.0)


@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-3])
@pytest.mark.parametrize(
    ("m", "r", "v"), [(10, 10, 9), (50, 20, 15), (50, 20, 20), (80, 60, 48), (30, 30, 1)]
)
def test_the_bound_is_the_corollary_and_covers_what_lies_between(m, r, v, delta):
    for low in (0.0, 0.3, 1.0, 2.5):
        at = right_guesses_at_most(m, r, v, delta, (low, low))
        assert at == pytest.approx(slowly(m, r, v, low, delta), rel=1e-7)
        wide = right_guesses_at_most(m, r, v, delta, (low, low + 0.4))
        assert wide >= max(
            slowly(m, r, v, low + part, delta) for part in np.linspace(0.0, 0.4, 5)
        ) * (1.0 - 1e-12)


@pytest.mark.parametrize(
    ("n", "low", "high"), [(1, 0.5, 0.6), (40, 0.5, 0.5), (40, 0.5, 0.8), (900, 0.7, 0.72)]
)
def test_largest_probabilities_are_at_least_the_largest(n, low, high):
    found, k = largest_probabilities(n, low, high), np.arange(n + 1)
    rates = np.clip(k / n, low, high)
    truth = [binomial_probability(n, rate, hits).lower for hits, rate in enumerate(rates.tolist())]
    assert (found >= np.array(truth) * (1.0 - 1e-13)).all()
    assert found == pytest.approx(truth, rel=1e-4, abs=1e-280)


def test_published_numbers():
    """Appendix D: 75 of 100 guesses at 1,000 canaries, delta 1e-4; p-value at epsilon log 3."""
    assert epsilon_from_guesses(1000, 100, 75, 1e-4, 0.95) == pytest.approx(0.673, abs=2e-3)
    assert right_guesses_at_most(100, 100, 75, 0.0, (math.log(3.0),) * 2) == pytest.approx(
        0.553, abs=1e-3
    )


def test_bounds_move_the_right_way():
    found = [
        epsilon_from_guesses(1000, 100, right, 1e-5, 0.95) for right in (50, 60, 70, 80, 90, 100)
    ]
    assert found == sorted(found)
    assert found[0] == 0.0
    assert epsilon_from_guesses(1000, 100, 90, 1e-3, 0.95) < epsilon_from_guesses(
        1000, 100, 90, 0.0, 0.95
    )
    assert epsilon_from_guesses(1000, 100, 90, 0.0, 0.99) < epsilon_from_guesses(
        1000, 100, 90, 0.0, 0.95
    )
    best = epsilon_from_guesses(1000, 100, 100, 0.0, 0.95)
    exact = 0.05**0.01  # q^100 = 0.05
    assert best <= math.log(exact / (1.0 - exact)) < best + 3e-4


def test_randomised_response_is_not_refuted_too_often_and_nearly_reached():
    """Pure privacy, worst case: each guess is right with probability e^eps / (1 + e^eps)."""
    epsilon, count = 1.0, 400
    law = stats.binom(count, 1.0 / (1.0 + math.exp(-epsilon)))
    wrong = sum(
        law.pmf(right)
        for right in range(count + 1)
        if epsilon_from_guesses(count, count, right, 0.0, 0.9) > epsilon
    )
    assert 0.05 < wrong <= 0.1


def test_the_delta_term_covers_a_run_that_gives_records_away():
    """Each canary's coin is shown with probability delta, otherwise answered e^eps to 1."""
    m, delta, epsilon = 60, 0.01, 0.8
    q = 1.0 / (1.0 + math.exp(-epsilon))
    law = stats.binom(m, delta + (1.0 - delta) * q)
    for right in range(m + 1):
        assert law.sf(right - 1) <= right_guesses_at_most(
            m, m, right, delta, (epsilon, epsilon)
        ) * (1.0 + 1e-12)
    assert law.sf(49) > stats.binom(m, q).sf(49)  # so the term is needed


def test_an_honest_gaussian_is_not_refuted_and_a_lie_is():
    noise = np.random.default_rng(3)

    def run(included):
        return included + 0.8 * noise.standard_normal(included.size)

    honest = Mechanism(Deterministic(1), 0.8).guarantee()
    audits = [audit_canaries(run, 500, honest, insecure_seed=seed) for seed in range(20)]
    assert not any(audit.refuted for audit in audits)
    assert min(audit.lower for audit in audits) > 0.5
    lie = audit_canaries(run, 500, 0.4, insecure_seed=1)
    assert lie.refuted
    assert lie.statement().splitlines()[1].startswith("Refuted: the run has epsilon at least")
    assert audits[1].statement().splitlines()[1].startswith("Not refuted")


def test_scores_that_say_nothing_prove_nothing():
    """Also if they are all alike: ties are broken by a coin, not by the order of the canaries."""
    found = [
        audit_canaries(lambda included: np.zeros(included.size), 200, 1.0, insecure_seed=s)
        for s in range(30)
    ]
    assert sum(audit.lower > 0.0 for audit in found) <= 4
    constant = audit_canaries(lambda included: np.arange(included.size), 200, 1.0, insecure_seed=0)
    assert constant.guesses <= 200


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_training_run(noise):
    """Canaries with random labels that the model can memorise, with and without noise."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("cryptography")
    from verax.training import fit

    torch.manual_seed(0)
    count, rng = 300, torch.Generator().manual_seed(4)
    x = torch.eye(count)
    y = torch.randint(0, 2, (count,), generator=rng)
    claim = Mechanism(Poisson(0.2, 30), 1.0).guarantee()

    def run(included):
        kept = torch.from_numpy(included)
        model = torch.nn.Linear(count, 2)
        torch.nn.init.zeros_(model.weight)
        data = (x[kept], y[kept])
        mechanism = Mechanism(Poisson(0.2, 30), noise)
        fit(
            model,
            torch.nn.CrossEntropyLoss(),
            data,
            mechanism,
            lambda p: torch.optim.SGD(p, 20.0),
            records=count,
            insecure_seed=1,
        )
        with torch.no_grad():
            return -torch.nn.functional.cross_entropy(model(x), y, reduction="none").numpy()

    audit = audit_canaries(run, count, 3.0 if noise == 0.0 else claim, insecure_seed=5)
    assert audit.refuted == (noise == 0.0), audit.statement()
    assert audit.lower > (3.0 if noise == 0.0 else 0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"canaries": 1}, "canaries must"),
        ({"delta": 0.0}, "delta must"),
        ({"confidence": 1.0}, "confidence must"),
        ({"guesses": [3]}, "guesses must be even"),
        ({"guesses": []}, "guesses must be even"),
        ({"guesses": [400]}, "guesses must"),
        ({"claim": -1.0}, "claim must"),
        (
            {"claim": Mechanism(WithoutReplacement(2, 20, 3), 1.0).guarantee()},
            "one record under add-remove",
        ),
        (
            {"claim": Mechanism(Poisson(0.1, 3), 1.0).guarantee(group=2)},
            "one record under add-remove",
        ),
        ({"run": lambda included: np.zeros(3)}, "run must return 100 scores"),
        ({"run": lambda included: np.full(included.size, np.nan)}, "run must return 100 scores"),
    ],
)
def test_bad_input_names_itself(change, message):
    asked = {
        "run": lambda included: np.zeros(included.size),
        "canaries": 100,
        "claim": 1.0,
    } | change
    with pytest.raises(ValueError, match=message):
        audit_canaries(**asked)
