"""Random participation: what the server and the other clients see."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from verax import (
    BallsInBins,
    Deterministic,
    Mechanism,
    Poisson,
    RandomParticipation,
)
from verax.federated.observers import OBSERVERS, Federation, baseline
from verax.privacy.curves.gaussian import gaussian_epsilon
from verax.privacy.pld.composition import UPPER

RECORD = RandomParticipation(0.2, 0.1, 30, 10)


def alone(noise):
    return Mechanism(RECORD, noise).guarantee().epsilon(1e-5)


def epsilon(federation, observer, delta=1e-5):
    return federation.against(observer).guarantee().epsilon(delta)


def test_a_trusted_server_adds_the_noise():
    trusted = Federation(RECORD, central_noise=1.2)
    mine = alone(1.2)
    assert epsilon(trusted, "public").upper == mine.upper
    assert epsilon(trusted, "network").upper == mine.upper
    assert epsilon(trusted, "server").upper == math.inf
    silent = Federation(RECORD, central_noise=1.2, always_send=False)
    known = baseline("WCS", RECORD, 1.2).guarantee().epsilon(1e-5)
    assert epsilon(silent, "public").upper == mine.upper
    assert epsilon(silent, "network").upper == known.upper


def test_an_untrusted_server_sees_the_clients_own_noise_only():
    local = Federation(RECORD, local_noise=1.2, senders=100)
    assert epsilon(local, "server").upper == alone(1.2).upper
    assert epsilon(local, "public").upper == alone(12.0).upper
    assert epsilon(local, "client").upper == alone(1.2 * math.sqrt(99)).upper
    both = Federation(RECORD, central_noise=5.0, local_noise=1.2, senders=100)
    assert epsilon(both, "public").upper == alone(13.0).upper
    seen = Federation(RECORD, local_noise=1.2, senders=100, always_send=False)
    known = baseline("WCS", RECORD, 1.2).guarantee().epsilon(1e-5).upper
    for observer in OBSERVERS:  # the sum's variance tells, and the others' noise may be missing
        assert epsilon(seen, observer).upper == known


def test_whole_clients():
    poisson, bins = (
        Federation(Poisson(0.1, 10), central_noise=2.0),
        Federation(BallsInBins(10, 3), central_noise=2.0),
    )
    assert (poisson.unit, Federation(RECORD).unit) == ("client", "record")
    for federation in (poisson, bins):
        same = Mechanism(federation.sampler, 2.0).guarantee().epsilon(1e-5).upper
        assert epsilon(federation, "public").upper == pytest.approx(same, rel=1e-9)
    always = Federation(BallsInBins(10, 3), local_noise=2.0, always_send=False)
    assert epsilon(always, "server").upper == pytest.approx(
        gaussian_epsilon(math.sqrt(3) / 2.0, 1e-5, UPPER), rel=1e-9
    )
    assert isinstance(always.against("server").mechanism.sampler, Deterministic)
    once = (
        Federation(Poisson(0.1, 1), local_noise=2.0, always_send=False)
        .against("server")
        .guarantee()
        .delta(0.3)
    )
    exact = 0.1 * (stats.norm.cdf(0.25 - 0.6) - math.exp(0.3) * stats.norm.cdf(-0.25 - 0.6))
    assert once.lower <= exact * (1 + 1e-9)
    assert once.upper == pytest.approx(exact, rel=1e-6)


def test_the_statement_says_who_is_protected_from_whom():
    words = Federation(RECORD, local_noise=1.0).against("server").statement(1e-5)
    assert words.startswith("Any one record of this client is protected from the server")
    assert "cannot tell whether it takes part" in words
    words = (
        Federation(Poisson(0.1, 5), central_noise=1.0, always_send=False).against("network").words
    )
    assert words.startswith("This client, with all its records, is protected")
    assert "participation is known" in words
    assert "trusted to add its noise" in words


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"sampler": Deterministic(3)},
            "^sampler must be RandomParticipation, Poisson or BallsInBins",
        ),
        ({"sampler": RECORD, "central_noise": -1.0}, "^central_noise must be"),
        ({"sampler": RECORD, "local_noise": math.inf}, "^local_noise must be"),
        ({"sampler": RECORD, "senders": 0}, "^senders must be"),
        ({"sampler": RECORD, "colluding": 0.5}, "^colluding must be"),
    ],
)
def test_federations_are_checked(fields, message):
    with pytest.raises(ValueError, match=message):
        Federation(**fields)


def test_observers_and_baselines_are_named():
    with pytest.raises(ValueError, match=r"^observer must be one of"):
        Federation(RECORD).against("everyone")
    with pytest.raises(ValueError, match=r"^baseline must be one of"):
        baseline("XS", RECORD, 1.0)
