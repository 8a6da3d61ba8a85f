"""Rounds to compose: their dominating pairs, by direction of the neighbouring relation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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

    @staticmethod
    def gaussian(shift: float) -> PricedRound:
        """N(shift) against N(0)."""
        return PricedRound(MixturePair.gaussian(shift))

    @staticmethod
    def subsampled(rate: float, shift: float) -> PricedRound:
        """A shift with probability ``rate`` against none."""
        return PricedRound(MixturePair.subsampled(rate, shift))

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
    found = _by_name(phases)
    return _different(parts for parts in found if all(part is not None for part in parts))


def join_attacks(phases: Sequence[Mapping[str, Rounds]]) -> list[Rounds]:
    """The same for attacks, which may look away where a phase has nothing in their direction.

    So an attack on all phases proves at least what it proves in one of them.
    """
    return _different(_by_name(phases))


def _by_name(phases: Sequence[Mapping[str, Rounds]]) -> list[list[Rounds | None]]:
    """For each name that some phase has: the rounds of every phase, None where it has none."""
    names = dict.fromkeys(name for phase in phases for name in phase)
    directed = [name for name in names if _direction(name) not in BOTH_DIRECTIONS]
    return [[_in_direction(phase, name) for phase in phases] for name in directed or [*names][:1]]


def _different(joined: Iterable[Sequence[Rounds | None]]) -> list[Rounds]:
    """Each sequence of rounds once."""
    found: list[Rounds] = []
    for parts in joined:
        rounds = [item for part in parts if part is not None for item in part]
        if rounds not in found:
            found.append(rounds)
    return found


def _direction(name: str) -> str:
    return name.split(",")[0]


def _in_direction(phase: Mapping[str, Rounds], name: str) -> Rounds | None:
    alike = (
        rounds
        for other, rounds in phase.items()
        if _direction(other) in (_direction(name), *BOTH_DIRECTIONS)
    )
    return phase.get(name) or next(alike, None)


def both_directions_of_attacks(attacks: Mapping[str, PricedRound], count: int) -> dict[str, Rounds]:
    """Attacks in both directions, under their names."""
    forth: dict[str, Rounds] = {f"remove, {name}": [(rnd, count)] for name, rnd in attacks.items()}
    back: dict[str, Rounds] = {
        f"add, {name}": [(rnd.reverse(), count)] for name, rnd in attacks.items()
    }
    return forth | back
