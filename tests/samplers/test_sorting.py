"""Balanced cuts and linear-time sorts against the obvious ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verax.samplers import sorting


@given(st.integers(1, 50), st.integers(0, 200))
def test_edges_are_balanced_and_cover_everything(parts: int, total: int) -> None:
    sizes = np.diff(sorting.balanced_edges(total, parts))
    assert sizes.sum() == total
    assert sizes.tolist() == [total // parts + (t < total % parts) for t in range(parts)]


@pytest.mark.parametrize(
    "bound", [1, 2, 255, 256, 257, 65_535, 65_536, 65_537, 10**6, 2**32, 2**32 + 1, 2**53]
)
def test_stable_order(bound: int) -> None:
    keys = sorting.uniform_labels(np.random.default_rng(0), 3000, bound)
    assert int(keys.max()) < bound
    keys[::7] = keys[0]  # ties
    assert np.array_equal(
        sorting.stable_order(keys, bound), np.argsort(keys.astype(np.int64), kind="stable")
    )


@pytest.mark.parametrize("bound", [1, 7, 300, 70_000])
def test_by_label(bound: int) -> None:
    keys = sorting.uniform_labels(np.random.default_rng(1), 1000, bound)
    order, cuts = sorting.sort_by_label(keys, bound)
    for label, run in enumerate(sorting.split_at(order, cuts)):
        assert np.array_equal(run, np.flatnonzero(keys == label))
