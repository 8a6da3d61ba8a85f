"""The iterator behind every sampler's ``draw``: lazy, and resumable after any round.

A run is a sequence of *passes*, each drawn without looking at the ones before (a round of Poisson
sampling, an epoch of shuffling). A pass is a sequence of *stages*; a stage makes all its random
draws at once and then hands out its batches. So the state of a run is small: where the generator
stood at the start of each stage of the current pass, and how many batches of the last stage were
taken. Resuming draws those stages again. Because no draw is pending between two batches, the
generator may be shared, say with the noise: the state also holds where it stood when the state was
taken, and resuming puts it back there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from verax import checks
from verax.samplers.base import Indices, Sampler

Stage = Iterable[Indices]
Draw = Callable[[int, np.random.Generator], Iterator[Stage]]
"""Draws one pass: advancing the iterator draws a stage, iterating over the stage draws nothing."""

# Bit generators that :func:`resume` can make itself.
NUMPY_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
# What a saved state holds.
FIELDS = ("sampler", "population", "passes", "starts", "taken", "now")


class Batches(Iterator[Indices]):
    """The batches of one run, in order.

    Args:
        sampler: the description the batches follow.
        population: number of records.
        rng: the source of all randomness. It advances as batches are drawn, so a second run with it
            is fresh.
        draw: draws one pass.
        passes: number of passes in the run.
    """

    def __init__(
        self, sampler: Sampler, population: int, rng: np.random.Generator, draw: Draw, passes: int
    ) -> None:
        if not isinstance(rng, np.random.Generator):
            raise ValueError(f"rng must be a numpy.random.Generator, got {rng!r}")
        self._sampler, self._draw = sampler, draw
        self._population = checks.count("population", population)
        self._rng, self._bits = rng, rng.bit_generator
        self._total, self._passes = passes, 0
        self._starts: list[Any] = []
        self._stages: Iterator[Stage] = iter(())
        self._stage: Iterator[Indices] = iter(())
        self._taken = 0

    def __next__(self) -> Indices:
        while (batch := next(self._stage, None)) is None:
            self._advance()
        self._taken += 1
        return batch

    def _advance(self) -> None:
        """Draw the next stage, of this pass or of the next one."""
        before = self._bits.state
        if (stage := next(self._stages, None)) is None:
            if self._passes == self._total:
                raise StopIteration
            self._passes += 1
            self._starts.clear()
            self._stages = self._draw(self._population, self._rng)
            stage = next(self._stages)
        self._starts.append(before)
        self._stage, self._taken = iter(stage), 0

    def state(self) -> dict[str, Any]:
        """Everything :func:`resume` needs, as JSON values, a few hundred bytes for most generators.

        **Secret.** Anyone who reads it can redraw the batches, past and future, and the noise if it
        shares the generator: the run's guarantee holds only against those who never see it. Keep it
        with the raw data; never publish it in a checkpoint.
        """
        return {
            "sampler": repr(self._sampler),
            "population": self._population,
            "passes": self._passes,
            "starts": [_plain(start) for start in self._starts],
            "taken": self._taken,
            "now": _plain(self._bits.state),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from ``state`` of a run of the same sampler on the same number of records."""
        _check(state)
        for name, mine in (("sampler", repr(self._sampler)), ("population", self._population)):
            if state[name] != mine:
                raise ValueError(f"state must be of a run with {name} {mine}, got {state[name]}")
        self._passes = checks.count("state passes", state["passes"], 0, self._total)
        self._starts, self._taken = [], 0
        self._stages, self._stage = iter(()), iter(())
        if state["starts"]:
            self._stages = self._draw(self._population, self._rng)
        for start in map(_native, state["starts"]):
            self._bits.state = start
            self._starts.append(start)
            self._stage = iter(next(self._stages))
        for _ in range(checks.count("state taken", state["taken"], 0)):
            next(self._stage)
            self._taken += 1
        self._bits.state = _native(state["now"])


def resume(
    sampler: Sampler, state: dict[str, Any], population: int, rng: np.random.Generator | None = None
) -> Iterator[Indices]:
    """Continue from :meth:`Batches.state` with the batches the interrupted run would have drawn.

    Args:
        sampler: the sampler of the interrupted run.
        state: what ``state()`` returned, perhaps after a trip through JSON. It is secret.
        population: the number of records of the interrupted run.
        rng: a generator of the same kind, set to where the interrupted run's stood. By default a
            new one; needed when the run's other randomness shares the generator, or its bit
            generator is not one of numpy's own.

    >>> import numpy as np
    >>> from verax.samplers import Shuffle, resume
    >>> sampler = Shuffle(batches=4, epochs=2)
    >>> run = sampler.draw(10, np.random.default_rng(0))
    >>> _ = next(run), next(run)
    >>> again = resume(sampler, run.state(), population=10)
    >>> all(np.array_equal(a, b) for a, b in zip(run, again, strict=True))
    True
    """
    _check(state)
    if rng is None:
        kind = state["now"].get("bit_generator") if isinstance(state["now"], dict) else None
        if kind not in NUMPY_GENERATORS:
            raise ValueError(
                "rng must be given for a bit generator that is not numpy's own, "
                f"got state of {kind!r}"
            )
        rng = np.random.Generator(getattr(np.random, kind)())
    run = sampler.draw(population, rng)
    if not isinstance(run, Batches):
        raise ValueError(
            f"sampler must draw resumable batches as verax's own samplers do, got {sampler!r}"
        )
    run.restore(state)
    return run


def _check(state: Any) -> None:
    if not isinstance(state, dict) or set(state) != set(FIELDS):
        found = type(state).__name__
        raise ValueError(
            f"state must be what a run's state() returned, got {found} with other fields"
        )


def _plain(state: Any) -> Any:
    """A bit generator's state with arrays as lists, for JSON."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    if isinstance(state, np.ndarray | np.generic):
        return state.tolist()
    return state


def _native(state: Any) -> Any:
    """The inverse of :func:`_plain`: numpy's own bit generators hold words in unsigned arrays."""
    if isinstance(state, dict):
        return {name: _native(value) for name, value in state.items()}
    return np.array(state, dtype=np.uint64) if isinstance(state, list) else state
