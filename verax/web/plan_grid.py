"""Which pairs of batch size and epochs a plan page computes for each sampler."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from verax.planning.frontier import spread, usual_batches
from verax.privacy.samplers.base import SamplerPricing, pricing
from verax.samplers import registry

MOST_PLANS = 400
# Plans of samplers that take a third of a second each.
MOST_SLOW_PLANS = 60


def pricing_named(name: str) -> type[SamplerPricing[Any]]:
    """The pricing of the sampler of this name."""
    return pricing(registry.named(name).kind)


def is_slow(name: str) -> bool:
    """Whether a plan with the sampler of this name takes long."""
    return pricing_named(name).slow_bound


@dataclass(frozen=True)
class PlanGrid:
    """The plans for ranges of batch sizes and epochs, as fine as there is time for.

    ``batch`` and ``epochs`` are as people type them: see :func:`numbers`.
    """

    records: int
    batch: str
    epochs: str
    samplers: tuple[str, ...]

    def check_size(self) -> None:
        """Refuse more plans than are computed for one request."""
        points = self.points()
        long = [way for way, _, _ in points if is_slow(way)]
        if len(points) > MOST_PLANS or len(long) > MOST_SLOW_PLANS:
            raise ValueError(
                f"batch, epochs and sampler make {len(points)} plans, {len(long)} of them of "
                f"{' or '.join(dict.fromkeys(long)) or 'slow samplers'}; at most {MOST_PLANS} "
                f"and {MOST_SLOW_PLANS} are computed here: give shorter ranges, "
                "such as epochs 1:100:8"
            )

    def points(self) -> tuple[tuple[str, int, int], ...]:
        """Sampler, batch and epochs of every plan: corners first, then ever finer meshes."""
        return tuple(
            (way, size, count) for way, pairs in self._meshes.items() for size, count in pairs
        )

    def notes(self) -> tuple[str, ...]:
        """Which samplers have fewer plans than the ranges allow, because these take long."""
        lengths = {way: len(mesh) for way, mesh in self._meshes.items()}
        pairs = len(self._mesh(math.inf))
        return tuple(
            f"{', '.join(way for way in lengths if lengths[way] == some)}: {some} of {pairs} "
            "pairs of batch and epochs, evenly spread; shorter ranges show all"
            for some in sorted(set(lengths.values()))
            if some < pairs
        )

    @cached_property
    def _meshes(self) -> dict[str, list[tuple[int, int]]]:
        """The pairs of batch and epochs for every sampler: as fine as there is time for."""
        ways = self.samplers
        long = [way for way in ways if is_slow(way)]
        dense = self._mesh(MOST_SLOW_PLANS / max(len(long), 1))
        quick = (MOST_PLANS - len(long) * len(dense)) / max(len(ways) - len(long), 1)
        usual = self._mesh(quick)
        return {way: dense if is_slow(way) else usual for way in ways}

    def _mesh(self, most: float) -> list[tuple[int, int]]:
        """Pairs of batch and epochs, corners first; at most ``most`` unless a range counts them."""
        sizes = numbers("batch", self.batch, 2.0) if self.batch else usual_batches(self.records)
        passes = numbers("epochs", self.epochs, 2.0**0.5)
        if len(sizes) * len(passes) > 4 * MOST_PLANS:
            raise ValueError(
                f"batch and epochs make {len(sizes) * len(passes)} pairs, at most {MOST_PLANS} here"
            )
        for every in range(1, max(len(sizes), len(passes)) + 1):
            fewer = sizes if _has_count(self.batch) else _thin(sizes, every)
            shorter = passes if _has_count(self.epochs) else _thin(passes, every)
            if len(fewer) * len(shorter) <= most:
                break
        pairs = [
            (max(_mesh_level(i), _mesh_level(j)), size, count)
            for i, size in enumerate(fewer)
            for j, count in enumerate(shorter)
        ]
        return [(size, count) for _, size, count in sorted(pairs)]


def numbers(name: str, words: str, ratio: float) -> list[int]:
    """Whole numbers from 10, 5,10,20, 1:100 or 1:100:50; ranges are spread by equal factors.

    >>> numbers("epochs", "1:100:5", 2.0), numbers("batch", "64:512", 2.0)
    ([1, 3, 10, 32, 100], [64, 128, 256, 512])
    """
    found: set[int] = set()
    for word in words.split(","):
        try:
            parts = [int(part) for part in word.split(":")]
            match parts:
                case [one] if one > 0:
                    found.add(one)
                case [low, high]:
                    found.update(spread(low, high, ratio=ratio))
                case [low, high, count] if count <= MOST_PLANS:
                    found.update(spread(low, high, count))
                case _:
                    raise ValueError
        except ValueError:
            raise ValueError(
                f"{name} must be such as 10, 5,10,20, 1:100 or 1:100:20, got {words!r}"
            ) from None
    return sorted(found)


def _thin(values: list[int], every: int) -> list[int]:
    """About one in ``every`` of the values, evenly spread, with both ends.

    >>> _thin([1, 2, 4, 8, 16, 32], 2)
    [1, 4, 8, 32]
    """
    last = len(values) - 1
    steps = -(-last // every)
    return [values[round(i * last / steps)] for i in range(steps + 1)] if last else values


def _has_count(words: str) -> bool:
    """Whether the range gives the number of its values."""
    return bool(words) and all(word.count(":") != 1 for word in words.split(","))


def _mesh_level(i: int) -> float:
    """Sorts places of a range: first its start, then multiples of ever smaller powers of two."""
    return -float(i & -i) if i else -float("inf")
