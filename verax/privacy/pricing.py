"""What pricing a sampler means: who is protected, and the analysis that every sampler has.

To price a new sampler, register a function in a module of ``verax.privacy.samplers`` that returns an
:class:`Analysis`. Its ``uppers`` map each direction of the neighbouring relation to the rounds whose composition
dominates the mechanism; its ``lowers`` do the same for explicit attacks, and are None where the dominating rounds are
achieved exactly. Name the theorem on each side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import singledispatch

from verax.checks import NoGuarantee
from verax.mechanism import Individual, Mechanism
from verax.privacy.averages import FINE
from verax.privacy.curve import Curve
from verax.privacy.directions import Rounds
from verax.samplers.base import Sampler

_FEW_PHASES, _COARSEST = 4, 6.0  # phases that are all priced finely; and how much coarser the grids of many may be


@dataclass(frozen=True)
class Group:
    """Which records are protected together: how many, and whether their gradients are orthogonal to each other.

    ``beside`` is how many more records than declared there may be: the rest of a group that is added one by one.
    ``people`` is the number of all records, if a phase declares it. ``phases`` is how many different phases there are:
    the share of each in the whole is the smaller, and so may be its accuracy.
    """

    size: int = 1
    orthogonal: bool = False
    beside: int = 0
    people: int | None = None
    phases: int = 1

    @property
    def fine(self) -> float:
        """How fine the grid of one of many phases must be."""
        return FINE * min(max(math.sqrt(self.phases / _FEW_PHASES), 1.0), _COARSEST)

    def split(self, mechanism: Mechanism) -> tuple[int, int]:
        """Copies and size: orthogonal records, clipped one by one, are seen apart, like runs with one record each."""
        apart = self.orthogonal and isinstance(mechanism.clipping, Individual)
        return (self.size, 1) if apart else (1, self.size)


@dataclass(frozen=True)
class Analysis:
    """Dominating rounds per direction, attacks per name (None: the dominating rounds themselves), and the theorems."""

    uppers: Mapping[str, Rounds]
    lowers: Mapping[str, Rounds] | None
    upper_by: str
    lower_by: str
    visible: float
    """Probability that without noise an attacker would see the group at all, at most."""
    shown: float | None = None
    """The same, at least, where it is less: the probability that one record alone shows without noise."""
    sure: bool = False
    """Whether the attacks' laws have heavy atoms, so that their curves must be refined from both sides."""
    sharper: Mapping[str, Curve] = field(default_factory=dict)
    """Further upper bounds, by direction, for a run that has no other phases."""
    triangle: bool = False
    """Whether the triangle inequality, from one record to the group, may give less."""


class OneRecordOnly(NoGuarantee):
    """Raised by analyses of one record: larger groups are then priced by the triangle inequality.

    ``absent`` says that only a record's absence can be priced, so that replacing it takes two steps.
    """

    def __init__(self, absent: bool) -> None:
        super().__init__("one record only")
        self.absent = absent


def one_record_only(mechanism: Mechanism, group: Group, absent: bool = False) -> None:
    """Leave groups, and with ``absent`` replacement, to the triangle inequality."""
    if group.size > 1 or (absent and mechanism.relation == "replace"):
        raise OneRecordOnly(absent and mechanism.relation == "replace")


@singledispatch
def price(sampler: Sampler, mechanism: Mechanism, group: Group) -> Analysis:
    """The analysis of one mechanism, chosen by the class of its sampler."""
    raise _unknown(sampler)


def refuse_unknown(sampler: Sampler) -> None:
    """Refuse what has no analysis of its own; also a subclass of a known sampler, which may draw something else."""
    if type(sampler) not in price.registry:
        raise _unknown(sampler)


def _unknown(sampler: Sampler) -> NoGuarantee:
    return NoGuarantee(
        f"no privacy analysis is known for {type(sampler).__name__}, so nobody can say what it costs: use one of "
        "verax's samplers, or register an analysis in verax.privacy.samplers"
    )


def shift_unit(mechanism: Mechanism) -> float:
    """How far one sampled record can move the noisy sum, in standard deviations of the noise."""
    return (1.0 if isinstance(mechanism.clipping, Individual) else 2.0) / (mechanism.noise_multiplier or math.inf)


def fixed_batches_only(mechanism: Mechanism) -> None:
    """Refuse add-remove for samplers whose batches have fixed sizes: adding a record would move others."""
    if mechanism.relation == "add-remove":
        raise NoGuarantee(
            f"{type(mechanism.sampler).__name__} has fixed batch sizes, so adding or removing a record moves other "
            "records between batches and no add-remove analysis is sound; use relation='zero-out' or 'replace'"
        )
