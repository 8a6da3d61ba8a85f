"""What pricing a sampler means: who is protected, and what every sampler must say.

To price a new sampler, register a subclass of :class:`SamplerPricing` in a module of
``verax.privacy.samplers``. The ``uppers`` of its analysis map each direction of the neighbouring
relation to the rounds whose composition dominates the mechanism; its ``lowers`` do the same for
explicit attacks, and are None where the dominating rounds are achieved exactly. Name the theorem on
each side.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from verax.checks import NoGuarantee
from verax.mechanism import Individual, Mechanism
from verax.privacy.curves.base import Curve
from verax.privacy.numerics import Array
from verax.privacy.numerics.lattice import CELLS, LatticePmf
from verax.privacy.pairs.one_of_many import FINE
from verax.privacy.pairs.rounds import Rounds
from verax.samplers.base import Sampler

if TYPE_CHECKING:
    from verax.privacy.strong.displacement import Displacement

S = TypeVar("S", bound=Sampler)
P = TypeVar("P", bound="type[SamplerPricing[Any]]")
_PRICINGS: dict[type[Sampler], type[SamplerPricing[Any]]] = {}
# phases that are all priced finely, and how much coarser the grids of many may be
FEW_PHASES, _COARSEST = 4, 6.0


@dataclass(frozen=True)
class ProtectedGroup:
    """Which records are protected together, and how accurately that is to be priced.

    Args:
        size: how many records.
        orthogonal: whether their gradients are orthogonal to each other.
        extra_records: how many more records than declared there may be: the rest of a group that
            is added one by one.
        population: the number of all records, if a phase declares it.
        other_records: the most other records of the same client, if a phase declares it.
        phases: how many different phases there are: the more, the less accurate each may be.
        for_triangle: whether the triangle inequality goes on from one record's bound: tiny deltas
            count then, and attacks are left out.
        cells: how many cells the pmf of a displacement may have.
    """

    size: int = 1
    orthogonal: bool = False
    extra_records: int = 0
    population: int | None = None
    other_records: int | None = None
    phases: int = 1
    for_triangle: bool = False
    cells: int = CELLS

    @property
    def grid_step(self) -> float:
        """How fine the grid of one of many phases must be."""
        return FINE * min(max(math.sqrt(self.phases / FEW_PHASES), 1.0), _COARSEST)

    def is_counted_singly(self, mechanism: Mechanism) -> bool:
        """Whether a round costs the number of its records, not that squared."""
        return self.orthogonal and isinstance(mechanism.clipping, Individual)

    def split(self, mechanism: Mechanism) -> tuple[int, int]:
        """Copies and size: orthogonal records, clipped one by one, are like runs with one each."""
        return (self.size, 1) if self.is_counted_singly(mechanism) else (1, self.size)


@dataclass(frozen=True)
class Analysis:
    """Dominating rounds per direction, attacks per name, and the theorems.

    Attacks are None where they are the dominating rounds themselves.
    """

    uppers: Mapping[str, Rounds]
    lowers: Mapping[str, Rounds] | None
    upper_by: str
    lower_by: str
    exposure: float = 1.0
    """Probability that without noise an attacker would see the group at all, at most."""
    least_exposure: float | None = None
    """The same, at least, where it is less: the probability that one record alone shows without
    noise.
    """
    refine_attacks: bool = False
    """Whether the attacks' pmfs have heavy atoms, so that their curves must be refined from both
    sides.
    """
    extra_uppers: Mapping[str, Curve] = field(default_factory=dict)
    """Further upper bounds, by direction, for a run that has no other phases."""


class OneRecordOnly(NoGuarantee):
    """Raised by analyses of one record: larger groups are then priced by the triangle inequality.

    ``absent`` says that only a record's absence can be priced, so that replacing it takes two
    steps.
    """

    def __init__(self, absent: bool) -> None:
        super().__init__("one record only")
        self.absent = absent


def require_one_record(mechanism: Mechanism, group: ProtectedGroup, absent: bool = False) -> None:
    """Leave groups, and with ``absent`` replacement, to the triangle inequality."""
    if group.size > 1 or (absent and mechanism.relation == "replace"):
        raise OneRecordOnly(absent and mechanism.relation == "replace")


class SamplerPricing(ABC, Generic[S]):
    """Everything that a sampler costs; one subclass per sampler, registered with :func:`prices`.

    What decides a bound has no default: a new sampler says all of it, if only that nothing is known
    (``NoGuarantee``, or None). What has one only saves time.
    """

    slow_bound: ClassVar[bool]
    """Whether the upper bound takes a good part of a second."""
    slow_attack: ClassVar[bool]
    """Whether the lower bound does."""
    slow_groups: ClassVar[bool]
    """Whether either does for a group of records."""
    closed_form: ClassVar[bool] = False
    """Whether the whole run is one Gaussian mechanism, exact at any noise."""

    def __init__(self, sampler: S) -> None:
        self.sampler = sampler

    @abstractmethod
    def analysis(self, mechanism: Mechanism, group: ProtectedGroup) -> Analysis:
        """Dominating rounds and attacks, with their theorems.

        ``NoGuarantee`` where nothing is proved; :class:`OneRecordOnly` where groups are left to the
        triangle inequality.
        """

    @abstractmethod
    def displacement(self, mechanism: Mechanism, group: ProtectedGroup) -> Displacement:
        """How far the group moves the sums: all that counts where there is hardly any noise."""

    @abstractmethod
    def touched_clip_groups(self, mechanism: Mechanism, group: ProtectedGroup) -> LatticePmf:
        """For adversary A1: the pmf of squared numbers of touched clip-groups, summed over rounds.

        ``NoGuarantee`` where what the others do depends on the group.
        """

    @abstractmethod
    def empty_group_probability(
        self, clip_groups: int, group: int, population: int, relation: str
    ) -> float:
        """At most the probability that in one round some clip-group is empty but for the group."""

    @abstractmethod
    def others_in_batch(self, population: int) -> tuple[Array, Array, Array] | None:
        """The pmf of the number of others in a batch.

        Three: without the record, with it outside, and with it inside the batch.

        None where rounds are not independent and identically distributed.
        """

    def similar(self) -> Sampler:
        """A sampler that costs about as much and is priced at once: where a search begins."""
        return self.sampler

    def dominating(self) -> Sampler:
        """A sampler that costs one record no less and has no slow attacks, or the same one."""
        return self.sampler

    def coarse_bound(self, mechanism: Mechanism) -> tuple[list[Rounds], str] | None:
        """Dominating rounds on a coarser grid, and their theorem, for searches over many plans.

        None if there is no such grid.
        """
        return None

    def known_participation(self) -> Sampler | None:
        """The sampler as those price it who see when a client takes part; None if unknown."""
        return None

    def refuse_larger_group(self, size: int) -> None:
        """Raise ``ValueError`` for a group of more records than the sampler declares."""
        most = self.sampler.most_records
        if most is not None and size > most:
            raise ValueError(f"group must be at most {most}, got {size}")

    def population_known_to_attack(self, population: int | None) -> int | None:
        """The number of records that an attack may count on; None if it may be any."""
        return population


def prices(kind: type[Sampler]) -> Callable[[P], P]:
    """Register what a sampler costs."""

    def add(pricing: P) -> P:
        _PRICINGS[kind] = pricing
        return pricing

    return add


def pricing(kind: type[Sampler]) -> type[SamplerPricing[Any]]:
    """The pricing of a class of samplers.

    A subclass is not priced as its base: it may draw something else.
    """
    if kind not in _PRICINGS:
        raise NoGuarantee(
            f"no privacy analysis is known for {kind.__name__}, so nobody can say "
            "what it costs: use one of "
            "verax's samplers, or register an analysis with verax.privacy.samplers.base.prices"
        )
    return _PRICINGS[kind]


def pricing_of(sampler: Sampler) -> SamplerPricing[Any]:
    """The pricing of one sampler."""
    return pricing(type(sampler))(sampler)


def analysis_of(mechanism: Mechanism, group: ProtectedGroup) -> Analysis:
    """The analysis of one mechanism, by the pricing of its sampler."""
    return pricing_of(mechanism.sampler).analysis(mechanism, group)


def ever_sampled(rate: float, rounds: int) -> float:
    """The probability of being sampled in at least one of many independent rounds."""
    return -math.expm1(rounds * math.log1p(-rate)) if rate < 1.0 else 1.0


def presence_shift(mechanism: Mechanism) -> float:
    """How far one record's presence moves the sum, in standard deviations of the noise."""
    return (1.0 if isinstance(mechanism.clipping, Individual) else 2.0) / (
        mechanism.noise_multiplier or math.inf
    )


def neighbour_shift(mechanism: Mechanism) -> float:
    """How far one sampled record moves the noisy sum between neighbours.

    Twice as far where it is replaced.
    """
    alone = isinstance(mechanism.clipping, Individual) and mechanism.relation != "replace"
    return (1.0 if alone else 2.0) / mechanism.noise_multiplier


def no_strong_analysis_error(sampler: Sampler) -> NoGuarantee:
    """What to raise where adversary A1 has no analysis."""
    return NoGuarantee(
        f"adversary A1 has no analysis for {type(sampler).__name__}: what the "
        "others do depends on the group there; "
        "use adversary='A0', or Poisson, WithoutReplacement, Shuffle, Deterministic or BallsInBins"
    )


def refuse_add_remove(mechanism: Mechanism) -> None:
    """Refuse add-remove for batches of fixed size: adding a record would move others."""
    if mechanism.relation == "add-remove":
        raise NoGuarantee(
            f"{type(mechanism.sampler).__name__} has fixed batch sizes, so adding "
            "or removing a record moves other "
            "records between batches and no add-remove analysis is sound; use "
            "relation='zero-out' or 'replace'"
        )
