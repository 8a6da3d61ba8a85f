"""Composed privacy loss distributions that are kept for the next question."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from verax.privacy.pld.convolve import PrivacyLossDistribution

MOST_POINTS = 2**24  # of all PLDs in a cache


class PldCache:
    """Composed PLDs by side and parameters; the oldest are dropped where they get too large."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[float, ...], PrivacyLossDistribution] = OrderedDict()

    def get(
        self, key: tuple[float, ...], make: Callable[[], PrivacyLossDistribution]
    ) -> PrivacyLossDistribution:
        """The PLD of this key, composed if it is not there."""
        found = self._found.pop(key, None) or make()
        self._found[key] = found
        while (
            len(self._found) > 1 and sum(len(one.pmf) for one in self._found.values()) > MOST_POINTS
        ):
            self._found.popitem(last=False)
        return found

    def on(self, side: int) -> list[PrivacyLossDistribution]:
        """All on one side."""
        return [found for key, found in self._found.items() if key[0] == side]
