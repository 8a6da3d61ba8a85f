"""Directions of a neighbouring relation, and attacks in them, followed through several phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from verax.privacy.composition import Round

Rounds = Sequence[tuple[Round, int]]


def join(phases: Sequence[Mapping[str, Rounds]]) -> list[Rounds]:
    """Concatenate the phases' rounds direction by direction; a phase that has only one goes with every direction.

    Names are a direction, or a direction, a comma and an attack; where a phase lacks the attack, its first one in that
    direction will do.
    """
    joined: list[Rounds] = []
    for name in max(phases, key=len):
        found = [_in_direction(phase, name) for phase in phases]
        if all(rounds is not None for rounds in found):
            joined.append([item for rounds in found if rounds is not None for item in rounds])
    return joined


def _in_direction(phase: Mapping[str, Rounds], name: str) -> Rounds | None:
    if len(phase) == 1:
        return next(iter(phase.values()))
    alike = (rounds for other, rounds in phase.items() if other.split(",")[0] == name.split(",")[0])
    return phase.get(name) or next(alike, None)


def each_way(attacks: Mapping[str, Round], count: int) -> dict[str, Rounds]:
    """Attacks in both directions, under their names."""
    forth: dict[str, Rounds] = {f"remove, {name}": [(rnd, count)] for name, rnd in attacks.items()}
    back: dict[str, Rounds] = {f"add, {name}": [(rnd.reverse(), count)] for name, rnd in attacks.items()}
    return forth | back
