"""What runs: who is in each batch, how it is clipped, how much noise, under which relation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from verax import checks
from verax.samplers.base import Sampler

if TYPE_CHECKING:
    from verax.privacy.guarantee import Guarantee

ADVERSARIES = ("A0", "A1")
GEOMETRIES = ("any", "orthogonal")
RELATIONS = ("add-remove", "zero-out", "replace")
UNITS = ("record", "client")  # who is protected as a whole


@dataclass(frozen=True)
class Individual:
    """Clip each record's gradient to ``norm``, then sum.

    Adding a record moves the sum by at most ``norm``.
    """

    norm: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("norm", self.norm)


@dataclass(frozen=True)
class Batch:
    """Clip the whole batch's aggregate to ``norm``. One record moves it by at most ``2 * norm``."""

    norm: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("norm", self.norm)


@dataclass(frozen=True)
class Mixed:
    """Clip ``groups`` aggregates to ``norm`` each, then sum.

    Every record picks its group uniformly at random.
    """

    norm: float = 1.0
    groups: int = 1

    def __post_init__(self) -> None:
        checks.positive("norm", self.norm)
        checks.count("groups", self.groups)


Clipping = Individual | Batch | Mixed


@dataclass(frozen=True)
class Mechanism:
    """One run of DP-SGD, described once: the same object draws the batches and prices them.

    Args:
        sampler: who is in each batch, and for how many rounds.
        noise_multiplier: standard deviation of the noise divided by the clip norm. Zero means no
            noise: epsilon is infinite.
        clipping: what is clipped before the noise is added.
        relation: which data sets are neighbours; by default the one natural to the sampler
            (`add-remove` where a record's presence does not move other records, `zero-out` for
            fixed batches).

    >>> from verax import Mechanism, Poisson
    >>> run = Mechanism(Poisson(rate=0.01, steps=1000), noise_multiplier=1.0)
    >>> run.guarantee().epsilon(delta=1e-5)
    Bracket(lower=1.8278, upper=1.8290)
    """

    sampler: Sampler
    noise_multiplier: float
    clipping: Clipping = Individual()
    relation: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.sampler, Sampler):
            raise ValueError(
                "sampler must be a verax sampler such as Poisson(rate, steps), "
                f"got {self.sampler!r}"
            )
        if not isinstance(self.clipping, Individual | Batch | Mixed):
            raise ValueError(f"clipping must be Individual, Batch or Mixed, got {self.clipping!r}")
        checks.nonnegative("noise_multiplier", self.noise_multiplier)
        object.__setattr__(self, "relation", self.relation or self.sampler.relation)
        checks.choice("relation", self.relation, RELATIONS)

    def guarantee(
        self,
        group: int = 1,
        geometry: str = "any",
        adversary: str = "A0",
        population: int | None = None,
    ) -> Guarantee:
        """The proved privacy of this run for any ``group`` records: :meth:`Phases.guarantee`."""
        return Phases((self,)).guarantee(group, geometry, adversary, population)

    def __add__(self, other: Mechanism | Phases) -> Phases:
        return Phases((self,)) + other


@dataclass(frozen=True)
class Phases:
    """Mechanisms run one after the other, all declared before the first one starts.

    They protect the same records, with ``RandomParticipation`` the same client's. The rest of the
    data may change from phase to phase: neighbours then differ in the group's records in every
    phase, so populations that phases declare may differ. The records that ``RandomParticipation``
    declares are the most that the client has: upper bounds take each phase at its word, attacks
    count on the least of them in every phase.

    >>> from verax import Mechanism, Poisson
    >>> warm_up = Mechanism(Poisson(rate=0.01, steps=100), noise_multiplier=2.0)
    >>> main = Mechanism(Poisson(rate=0.02, steps=900), noise_multiplier=1.0)
    >>> (warm_up + main).guarantee().epsilon(delta=1e-5).upper < 4
    True
    """

    mechanisms: tuple[Mechanism, ...]

    def __post_init__(self) -> None:
        if not self.mechanisms:
            raise ValueError("mechanisms must hold at least one Mechanism, got none")
        relations = sorted({m.relation for m in self.mechanisms})
        if len(relations) > 1:
            raise checks.NoGuarantee(
                f"phases must share one neighbouring relation, got {' and '.join(relations)}; "
                "give each Mechanism the same relation="
            )

    @property
    def relation(self) -> str:
        """The neighbouring relation that all phases share."""
        return self.mechanisms[0].relation

    def guarantee(
        self,
        group: int = 1,
        geometry: str = "any",
        adversary: str = "A0",
        population: int | None = None,
    ) -> Guarantee:
        """The proved privacy of all phases together for any ``group`` records.

        Args:
            group: how many records are protected together.
            geometry: "any", or "orthogonal" if the group's gradients are orthogonal to each other
                in every round, under "replace" the old and new ones of each record to those of the
                others (a fact about the model and the data that the caller must know). It matters
                for individual clipping.
            adversary: "A0" sees all noisy sums, as differential privacy has it; "A1" is also told
                where the group's records fell, the strong adversary of "shuffling and batch
                clipping".
            population: number of records, where A1's answer for a group in shuffled batches may
                depend on it.
        """
        # privacy depends on this module, not the reverse
        from verax.privacy import analysis
        from verax.privacy.samplers import base

        orthogonal = checks.choice("geometry", geometry, GEOMETRIES) == "orthogonal"
        who = base.ProtectedGroup(checks.count("group", group), orthogonal)
        if population is not None:
            checks.count("population", population)
        if checks.choice("adversary", adversary, ADVERSARIES) == "A1":
            return analysis.analyse_strong(self, who, population)
        return analysis.analyse(self, who)

    def guarantee_with_more_records(self, others: int) -> Guarantee:
        """One record's guarantee where there may be ``others`` more records than declared."""
        from verax.privacy import analysis
        from verax.privacy.samplers import base

        return analysis.analyse(self, base.ProtectedGroup(extra_records=others))

    def __add__(self, other: Mechanism | Phases) -> Phases:
        return Phases(
            self.mechanisms + (other.mechanisms if isinstance(other, Phases) else (other,))
        )
