"""Sketches steer; what they leave out of the nodes of many kinds of rounds hardly moves them."""

import numpy as np
import pytest

from verax.privacy.pairs.one_of_many import dominating_one_of_many
from verax.privacy.pld import saddle_point
from verax.privacy.pld.saddle_point import SaddlePointEstimate


def test_fewer_nodes_keep_the_mass_and_the_largest_loss():
    losses, masses = np.linspace(-3.0, 5.0, 1001), np.linspace(-9.0, -6.0, 1001)
    loss, log_mass = saddle_point._thinned(losses, masses, 100)
    assert len(loss) == len(log_mass) <= 100
    assert loss[-1] == losses[-1]
    assert (np.diff(loss) > 0.0).all()
    assert np.exp(log_mass).sum() == pytest.approx(np.exp(masses).sum())


def test_fewer_nodes_hardly_move_a_sketch(monkeypatch):
    rounds = [(dominating_one_of_many(20, 1.0), 10)]
    full = SaddlePointEstimate(rounds, -12.0, 1e-4).cumulants(1.0)
    monkeypatch.setattr(saddle_point, "_NODES", 0)
    assert SaddlePointEstimate(rounds, -12.0, 1e-4).cumulants(1.0) == pytest.approx(full, rel=0.05)
