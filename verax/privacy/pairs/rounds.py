"""Rounds to compose: their dominating pairs, by direction of the neighbouring relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verax.privacy.pairs.base import DominatingPair
from verax.privacy.pairs.gaussian_mixture import MixturePair


@dataclass(frozen=True)
class PricedRound:
    """A dominating pair; ``dominated`` is a pair that an attack achieves, if it is not the same.

    ``symmetric`` rounds are dominated by the pair in either direction, as the attacker may choose
    round by round.
    """

    pair: DominatingPair
    dominated: DominatingPair | None = None
    symmetric: bool = False

    def __post_init__(self) -> None:
        if self.symmetric and not isinstance(self.pair, MixturePair):
            raise ValueError("symmetric rounds are known for pairs of mixtures only")

    @property
    def is_gaussian(self) -> bool:
        """Whether closed forms apply."""
        return self.pair.is_gaussian and self.dominated is None

    def reverse(self) -> PricedRound:
        """The other direction."""
        return PricedRound(
            self.pair.reverse(), self.dominated and self.dominated.reverse(), self.symmetric
        )


Rounds = Sequence[tuple[PricedRound, int]]
BOTH_DIRECTIONS = ("any", "replace")
"""Names of rounds that are the same in both directions, and so go with either."""


def join_phases(phases: Sequence[Mapping[str, Rounds]]) -> list[Rounds]:
    """Concatenate the phases' rounds direction by direction: one pair of data sets in each.

    Names are a direction, or a direction, a comma and an attack; where a phase lacks the attack,
    its first one in that direction will do. What a phase has in one direction only says nothing of
    the other: a record that is added in one phase is not removed in the next.
    """
    joined: list[Rounds] = []
    for name in max(phases, key=len):
        found = [_in_direction(phase, name) for phase in phases]
        if all(rounds is not None for rounds in found):
            joined.append([item for rounds in found if rounds is not None for item in rounds])
    return joined


def _in_direction(phase: Mapping[str, Rounds], name: str) -> Rounds | None:
    direction = name.split(",")[0]
    alike = (
        rounds
        for other, rounds in phase.items()
        if other.split(",")[0] in (direction, *BOTH_DIRECTIONS)
    )
    return phase.get(name) or next(alike, None)


def both_directions_of_attacks(attacks: Mapping[str, PricedRound], count: int) -> dict[str, Rounds]:
    """Attacks in both directions, under their names."""
    forth: dict[str, Rounds] = {f"remove, {name}": [(rnd, count)] for name, rnd in attacks.items()}
    back: dict[str, Rounds] = {
        f"add, {name}": [(rnd.reverse(), count)] for name, rnd in attacks.items()
    }
    return forth | back
