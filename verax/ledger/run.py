"""What ran, and the guarantee of the rounds that a ledger records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from verax import checks
from verax.display import visible
from verax.ledger.clip_norms import NormSchedule
from verax.ledger.entries import Event, LedgerError, Log
from verax.mechanism import Individual, Mechanism, Phases
from verax.privacy.curves.exposure import NoiselessRounds
from verax.privacy.guarantee import Bracket, Guarantee

STOPPING = ("any", "independent")
NOT_PRIVATE = "The randomness of this run came from a seed that somebody chose: it is NOT private."
PUBLIC_NUMBER = "that the number of records is public (records= gives another)"


@dataclass(frozen=True)
class Run:
    """The content of a ledger: what was declared, how many rounds were released, what happened.

    >>> import tempfile
    >>> from verax import Mechanism, Poisson
    >>> from verax.training import Ledger
    >>> from verax import ledger
    >>> path = tempfile.mkdtemp() + "/run.ledger"
    >>> with Ledger.create(
    ...     path, Mechanism(Poisson(rate=0.01, steps=1000), noise_multiplier=1.0)
    ... ) as book:
    ...     book.release(0, clip_norm=1.0, noise_multiplier=1.0)
    >>> run = ledger.read(path)
    >>> run.released, run.declared, run.complete
    (1, 1000, False)
    >>> run.guarantee().epsilon(delta=1e-5).upper
    1.8289...
    >>> run.guarantee(stopping="independent").epsilon(delta=1e-5).upper < 1.5
    True
    """

    path: str
    mechanism: Phases
    released: int
    """How many of the declared rounds, from the first on, were released or may have been."""
    events: tuple[Event, ...]
    head: str
    """Hash of the last line; it fixes all of the ledger up to there."""
    id: str
    """Random, and the same in every copy of the ledger."""
    time: str
    """When the run began."""
    verax: str
    population: int | None
    insecure_seed: bool
    torn: bool
    """Whether a crash cut the last line short. If it may have been a round, it counts as one."""
    clip_norms: NormSchedule | None = None
    """The declared clip norms and for how many rounds each, if they are not the mechanism's own."""
    unit: str = "record"
    """Who is protected as a whole: a record, or a client."""

    @classmethod
    def of(cls, log: Log) -> Run:
        """What a checked ledger says."""
        header = log.header
        return cls(
            log.name,
            header.mechanism,
            log.released,
            tuple(log.events),
            log.head,
            header.run,
            header.time,
            header.verax,
            header.population,
            header.insecure_seed,
            bool(log.missing),
            header.clip_norms,
            header.unit,
        )

    @property
    def name(self) -> str:
        """The ledger's path, as it may be shown."""
        return visible(self.path)

    @property
    def declared(self) -> int:
        """Number of rounds of the whole run."""
        return sum(len(phase.sampler) for phase in self.mechanism.mechanisms)

    @property
    def complete(self) -> bool:
        """Whether every declared round was released."""
        return self.released == self.declared

    @property
    def ended(self) -> Event | None:
        """How the run ended, if it has."""
        return self.events[-1] if self.events and self.events[-1].kind != "resumed" else None

    def guarantee(self, group: int = 1, geometry: str = "any", stopping: str = "any") -> Guarantee:
        """The proved privacy of what ran; see :func:`compose`."""
        return compose([self], group, geometry, stopping)

    def account(self) -> str:
        """What happened, in words."""
        amount = "all" if self.complete else f"{self.released} of the"
        resumed = sum(event.kind == "resumed" for event in self.events)
        again = f", resumed {'once' if resumed == 1 else f'{resumed} times'}" if resumed else ""
        lines = [f"{self.name}: {amount} {self.declared} declared rounds were released{again}."]
        if self.clip_norms is not None:
            least, most = min(self.clip_norms)[0], max(self.clip_norms)[0]
            lines.append(
                f"Clip norms were declared round by round, {least:g} to {most:g}, with noise in "
                "proportion: the cost of a round does not depend on its norm."
            )
        if self.insecure_seed:
            lines.append(
                "NOT PRIVATE: the run's randomness came from a seed that somebody chose "
                "(insecure_seed)."
            )
        if self.torn:
            lines.append(
                "A crash cut the last entry short; it is counted as a round wherever it may have "
                "been one."
            )
        if self.ended and self.ended.reason:
            lines.append(f"Stopped: {self.ended.reason.rstrip('.')}.")
            if self.ended.private:
                lines.append(
                    "That it stopped there shows something of the data, without noise: this is not "
                    "covered."
                )
        elif self.ended is None:
            lines.append("The run is not over, or broke off.")
        lines.append(f"Run {self.id}, begun {self.time} with verax {self.verax}, head {self.head}.")
        return "\n".join(lines)


def compose(
    runs: Sequence[Run], group: int = 1, geometry: str = "any", stopping: str = "any"
) -> Guarantee:
    """The proved privacy of several runs on the same data, together.

    Args:
        runs: what ran, each ledger once; all protect the same unit.
        group: how many records are protected together.
        geometry: see :meth:`verax.mechanism.Phases.guarantee`.
        stopping: how it came that a run has fewer rounds than declared. "any": perhaps by looking
            at what was released so far, so that the whole declared run is charged. "independent":
            by a crash, a deadline or another cause that data and results had no say in (a fact that
            the caller must know), so that only what was released is charged, in whole epochs where
            the sampler has them. Stopping because of what the private data look like is itself a
            release, which neither covers.
    """
    _check_runs(runs)
    independent = checks.choice("stopping", stopping, STOPPING) == "independent"
    declared = Phases(tuple(phase for run in runs for phase in run.mechanism.mechanisms))
    charged = [
        released(run.mechanism, run.released, up=True) if independent else run.mechanism
        for run in runs
    ]
    certain = [released(run.mechanism, run.released, up=False) for run in runs]
    above = _composed_guarantee(charged, group, geometry) or _no_release_guarantee(declared, group)
    # an attacker of what was released sees the smaller run, whatever is charged
    if charged != certain:
        below = _composed_guarantee(certain, group, geometry)
        above = replace(
            above,
            lowers=below.lowers if below else (),
            lower_by=below.lower_by if below else "nothing that an attack could be sure to see",
        )
    assuming = "; ".join([above.assuming] * bool(above.assuming) + _assumptions(runs, independent))
    return replace(above, assuming=assuming, unit=runs[0].unit)


def if_independent(runs: Sequence[Run], group: int = 1) -> Guarantee | None:
    """The guarantee with "independent" stopping, if that is possible and makes a difference."""
    if all(run.complete for run in runs) or any(run.ended and run.ended.private for run in runs):
        return None
    return compose(runs, group, stopping="independent")


def released(mechanism: Phases, rounds: int, up: bool) -> Phases | None:
    """The mechanism of the first ``rounds``; a part of an epoch counts in full or not at all.

    Releasing less than a whole epoch is post-processing of releasing all of it, so ``up`` is never
    too cheap.
    """
    phases = []
    for phase in mechanism.mechanisms:
        here = min(rounds, len(phase.sampler))
        rounds -= here
        if here == len(phase.sampler):
            phases.append(phase)
        elif here and (sampler := phase.sampler.prefix(here, up)) is not None:
            phases.append(replace(phase, sampler=sampler))
    return Phases(tuple(phases)) if phases else None


def attacked(guarantee: Guarantee, mechanism: Mechanism, rounds: int) -> Guarantee:
    """The guarantee with lower bounds from attacks that see the first ``rounds`` only."""
    if rounds >= len(mechanism.sampler):
        return guarantee
    seen = released(Phases((mechanism,)), rounds, up=False)
    if seen is None:
        return replace(guarantee, lowers=(), lower_by="nothing was released")
    attacks = seen.guarantee()
    return replace(guarantee, lowers=attacks.lowers, lower_by=attacks.lower_by)


def at_most(part: Bracket, whole: Bracket) -> Bracket:
    """What part of a run costs, known to be no more than the whole of it does.

    Each is computed on its own, to an accuracy of its own, so that the part's bound may lie above.

    >>> at_most(Bracket(1.5, 2.25), Bracket(1.75, 2.0))
    Bracket(lower=1.5000, upper=2.0000)
    """
    if part.upper <= whole.upper:
        return part
    return replace(part, upper=whole.upper, upper_by=whole.upper_by, evidence=whole.evidence)


def _composed_guarantee(
    parts: Sequence[Phases | None], group: int, geometry: str
) -> Guarantee | None:
    phases = tuple(phase for part in parts if part for phase in part.mechanisms)
    return Phases(phases).guarantee(group, geometry) if phases else None


def _no_release_guarantee(declared: Phases, group: int) -> Guarantee:
    none, why = [NoiselessRounds(0.0)], "nothing was released"
    return Guarantee(declared, checks.count("group", group), none, none, why, why)


def _assumptions(runs: Sequence[Run], independent: bool) -> list[str]:
    """The assumptions of the guarantee, in words."""
    assumed = []
    if len(runs) > 1:
        assumed.append("that no run was described after looking at the results of another")
    if independent and not all(run.complete for run in runs):
        assumed.append("that neither data nor results had a say in when a run ended")
    if any(run.insecure_seed for run in runs):
        assumed.append("that nobody can guess the seed that somebody chose")
    if any(
        run.population is None and any(map(tells_number, run.mechanism.mechanisms)) for run in runs
    ):
        assumed.append(
            PUBLIC_NUMBER if runs[0].unit == "record" else "that the number of clients is public"
        )
    return assumed


def tells_number(mechanism: Mechanism) -> bool:
    """Whether updates are divided by the number of records, in which neighbours differ."""
    known = mechanism.sampler.most_records is not None
    individual = isinstance(mechanism.clipping, Individual)
    return individual and mechanism.relation == "add-remove" and not known


def _check_runs(runs: Sequence[Run]) -> None:
    if not runs:
        raise ValueError("runs must hold at least one Run, got none")
    seen: dict[str, Run] = {}
    for run in runs:
        if run.id in seen:
            raise LedgerError(
                f"{seen[run.id].name} and {run.name} are copies of one run, {run.id}; report it "
                "once. If both copies went on, rounds were released twice and neither ledger knows"
            )
        seen[run.id] = run
    if len({run.unit for run in runs}) > 1:
        first, other = runs[0], next(run for run in runs if run.unit != runs[0].unit)
        raise LedgerError(
            f"{first.name} protects one {first.unit} and {other.name} one {other.unit}: what "
            "protects a record does not protect all data of a client; report them one by one"
        )
