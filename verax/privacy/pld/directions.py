"""Directions of a neighbouring relation, and attacks in them, followed through several phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from verax.privacy.pld.composition import Round

Rounds = Sequence[tuple[Round, int]]


EITHER = ("any", "replace")
"""Names of rounds that are the same in both directions, and so go with either."""


def join(phases: Sequence[Mapping[str, Rounds]]) -> list[Rounds]:
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
        rounds for other, rounds in phase.items() if other.split(",")[0] in (direction, *EITHER)
    )
    return phase.get(name) or next(alike, None)


def each_way(attacks: Mapping[str, Round], count: int) -> dict[str, Rounds]:
    """Attacks in both directions, under their names."""
    forth: dict[str, Rounds] = {f"remove, {name}": [(rnd, count)] for name, rnd in attacks.items()}
    back: dict[str, Rounds] = {
        f"add, {name}": [(rnd.reverse(), count)] for name, rnd in attacks.items()
    }
    return forth | back
