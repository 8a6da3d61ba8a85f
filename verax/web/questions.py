"""What can be asked, with bounds on everything: checked before anything is computed.

Names are those of the Python API and of the command line. The bounds keep answers within seconds;
what is larger can be asked of the command line.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from verax import checks
from verax.federated.observers import Federation
from verax.mechanism import Batch, Clipping, Individual, Mixed
from verax.planning import Target
from verax.planning.frontier import spread, usual_batches
from verax.privacy.samplers.base import SamplerPricing, pricing
from verax.samplers import RandomParticipation, registry
from verax.web.tasks import Limits, Setting

MOST_ROUNDS = 10_000_000
MOST_PLANS = 400
LARGEST_LIMIT = 1e9  # of noise: none
MOST_SLOW_PLANS = 60  # of samplers whose plans take a third of a second each


def pricing_named(name: str) -> type[SamplerPricing[Any]]:
    """The pricing of the sampler of this name."""
    return pricing(registry.named(name).kind)


def slow(name: str) -> bool:
    """Whether a plan with the sampler of this name takes long."""
    return pricing_named(name).slow_bound


def _known(name: str) -> str:
    return checks.choice("sampler", name, registry.plannable())


SamplerName = Annotated[
    str,
    AfterValidator(_known),
    WithJsonSchema({"type": "string", "enum": list(registry.plannable())}),
]
ClippingName = Literal["individual", "batch", "mixed"]
RelationName = Literal["", "add-remove", "zero-out", "replace"]

Records = Annotated[int, Field(ge=1, le=10**9, description="Number of records.")]
BatchSize = Annotated[
    int, Field(ge=1, le=10**9, description="Expected batch size, at most `records`.")
]
Epochs = Annotated[int, Field(ge=1, le=10_000, description="Passes over the data.")]
Noise = Annotated[
    float,
    Field(
        ge=0.05, le=1000.0, allow_inf_nan=False, description="Noise standard deviation / clip norm."
    ),
]
Delta = Annotated[
    float, Field(ge=1e-30, le=0.5, allow_inf_nan=False, description="The delta of the guarantee.")
]
Group = Annotated[int, Field(ge=1, le=64, description="How many records are protected together.")]
Rate = Annotated[float, Field(ge=1e-6, le=1.0, allow_inf_nan=False)]
Format = Annotated[Literal["html", "json", "txt"], Field(description="A page, JSON, or prose.")]
ClipGroups = Annotated[
    int, Field(ge=1, le=1000, description="Number of clip-groups, for mixed clipping.")
]


def clipping_of(name: str, groups: int) -> Clipping:
    """The clipping of this name."""
    kinds: dict[str, Clipping] = {
        "individual": Individual(),
        "batch": Batch(),
        "mixed": Mixed(groups=groups),
    }
    return kinds[name]


class Question(BaseModel):
    """Anything that is asked; what it does not know is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Described(Question):
    """Parts that questions about a run share."""

    clipping: Annotated[
        ClippingName, Field(description="What is clipped before noise is added.")
    ] = "individual"
    clip_groups: ClipGroups = 1
    relation: Annotated[
        RelationName, Field(description="Neighbouring relation; default: the sampler's own.")
    ] = ""
    group: Group = 1

    @model_validator(mode="after")
    def _nothing_idle(self) -> Self:
        if self.clip_groups != 1 and self.clipping != "mixed":
            raise ValueError(
                f"clip_groups {self.clip_groups} is for clipping mixed, "
                f"got clipping {self.clipping}"
            )
        return self


def _fits(records: int, batch: int, epochs: int) -> None:
    if batch > records:
        raise ValueError(f"batch must be at most records = {records}, got {batch}")
    if epochs * records > MOST_ROUNDS * batch:
        rounds = -(-epochs * records // batch)
        raise ValueError(
            f"epochs * records / batch must be at most {MOST_ROUNDS} rounds here, got {rounds}; "
            "raise batch, or use the command line, which waits"
        )


class Compare(Described):
    """One run under several ways of drawing its batches."""

    records: Records = 60_000
    batch: BatchSize = 600
    epochs: Epochs = 10
    noise_multiplier: Noise = 1.0
    delta: Delta = 1e-5
    sampler: Annotated[
        list[SamplerName],
        Field(min_length=1, max_length=20, description="Who is in each batch; may be repeated."),
    ] = ["poisson", "shuffle", "balls-in-bins"]
    figure: Annotated[
        Literal["none", "noise", "epochs", "delta", "tradeoff"],
        Field(
            description="Which curves to add: epsilon against noise or epochs, "
            "delta against epsilon, trade-off."
        ),
    ] = "none"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        _fits(self.records, self.batch, self.epochs)
        if self.group > self.records:
            raise ValueError(f"group must be at most records = {self.records}, got {self.group}")
        return self

    def setting(self, sampler: str, **other: Any) -> Setting:
        """The run with this sampler, and with other noise or epochs if they are given."""
        known: dict[str, Any] = {
            "records": self.records,
            "batch": self.batch,
            "epochs": self.epochs,
            "noise_multiplier": self.noise_multiplier,
            "clipping": clipping_of(self.clipping, self.clip_groups),
            "relation": self.relation,
            "group": self.group,
        }
        return Setting(sampler, **(known | other))


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


class Plan(Described):
    """A target, which is answered with the smallest proved noise by batch size and epochs."""

    records: Records = 60_000
    epsilon: Annotated[
        float, Field(ge=1e-3, le=100.0, allow_inf_nan=False, description="The target.")
    ] = 1.0
    delta: Delta = 1e-5
    epochs: Annotated[
        str,
        Field(
            max_length=100,
            pattern=r"^[0-9:,]+$",
            description="10, or 5,10,20, or 1:100, or 1:100:20.",
        ),
    ] = "1:100"
    batch: Annotated[
        str,
        Field(
            max_length=100, pattern=r"^[0-9:,]*$", description="Likewise; empty for powers of two."
        ),
    ] = ""
    sampler: Annotated[
        list[SamplerName],
        Field(min_length=1, max_length=20, description="Who is in each batch; may be repeated."),
    ] = ["poisson"]
    rounds_at_most: Annotated[int, Field(ge=1, le=MOST_ROUNDS, description="Leave out more.")] = (
        MOST_ROUNDS
    )
    rounds_at_least: Annotated[
        int, Field(ge=1, le=MOST_ROUNDS, description="Leave out plans with fewer.")
    ] = 1
    noise_at_most: Annotated[
        float,
        Field(
            ge=0.05,
            le=LARGEST_LIMIT,
            allow_inf_nan=False,
            description="Leave out plans with more noise.",
        ),
    ] = LARGEST_LIMIT
    ratio_at_most: Annotated[
        float,
        Field(
            ge=1e-9,
            le=LARGEST_LIMIT,
            allow_inf_nan=False,
            description="Leave out more noise / batch.",
        ),
    ] = LARGEST_LIMIT
    rank: Annotated[
        Literal["signal", "noise", "ratio", "work", "rounds"],
        Field(description="What comes first."),
    ] = "signal"

    @field_validator("epochs", "batch")
    @classmethod
    def _short(cls, value: str) -> str:
        if any(len(part) > 10 for part in value.replace(":", ",").split(",")):
            raise ValueError("every number must have at most 10 digits")
        return value

    @model_validator(mode="after")
    def _possible(self) -> Self:
        self.target()
        points = self.points()
        for _, batch, epochs in points:
            if epochs > 10_000:
                raise ValueError(f"epochs must be at most 10000 here, got {epochs}")
            _fits(self.records, batch, epochs)
        long = [way for way, _, _ in points if slow(way)]
        if len(points) > MOST_PLANS or len(long) > MOST_SLOW_PLANS:
            raise ValueError(
                f"batch, epochs and sampler make {len(points)} plans, {len(long)} of them of "
                f"{' or '.join(dict.fromkeys(long)) or 'slow samplers'}; at most {MOST_PLANS} "
                f"and {MOST_SLOW_PLANS} are computed here: give shorter ranges, "
                "such as epochs 1:100:8"
            )
        return self

    def target(self) -> Target:
        """What must hold."""
        clipping = clipping_of(self.clipping, self.clip_groups)
        return Target(self.records, self.epsilon, self.delta, clipping, self.relation, self.group)

    def limits(self) -> Limits:
        """What plans must keep besides; what is at its end is no limit."""
        most = None if self.rounds_at_most == MOST_ROUNDS else self.rounds_at_most
        noise, ratio = (
            None if limit == LARGEST_LIMIT else limit
            for limit in (self.noise_at_most, self.ratio_at_most)
        )
        return Limits(self.rounds_at_least, most, noise, ratio)

    def points(self) -> tuple[tuple[str, int, int], ...]:
        """Sampler, batch and epochs of every plan: corners first, then ever finer meshes."""
        return tuple(
            (way, size, count) for way, pairs in self._meshes().items() for size, count in pairs
        )

    def notes(self) -> tuple[str, ...]:
        """Which samplers have fewer plans than the ranges allow, because these take long."""
        lengths = {way: len(mesh) for way, mesh in self._meshes().items()}
        pairs = len(self._mesh(math.inf))
        return tuple(
            f"{', '.join(way for way in lengths if lengths[way] == some)}: {some} of {pairs} "
            "pairs of batch and epochs, evenly spread; shorter ranges show all"
            for some in sorted(set(lengths.values()))
            if some < pairs
        )

    def _meshes(self) -> dict[str, list[tuple[int, int]]]:
        """The pairs of batch and epochs for every sampler: as fine as there is time for."""
        ways = list(dict.fromkeys(self.sampler))
        long = [way for way in ways if slow(way)]
        dense = self._mesh(MOST_SLOW_PLANS / max(len(long), 1))
        quick = (MOST_PLANS - len(long) * len(dense)) / max(len(ways) - len(long), 1)
        usual = self._mesh(quick)
        return {way: dense if slow(way) else usual for way in ways}

    def _mesh(self, most: float) -> list[tuple[int, int]]:
        """Pairs of batch and epochs, corners first; at most ``most`` unless a range counts them."""
        sizes = numbers("batch", self.batch, 2.0) if self.batch else usual_batches(self.records)
        passes = numbers("epochs", self.epochs, 2.0**0.5)
        if len(sizes) * len(passes) > 4 * MOST_PLANS:
            raise ValueError(
                f"batch and epochs make {len(sizes) * len(passes)} pairs, at most {MOST_PLANS} here"
            )
        for every in range(1, max(len(sizes), len(passes)) + 1):
            fewer = sizes if _counted(self.batch) else _thinned(sizes, every)
            shorter = passes if _counted(self.epochs) else _thinned(passes, every)
            if len(fewer) * len(shorter) <= most:
                break
        pairs = [
            (max(_level(i), _level(j)), size, count)
            for i, size in enumerate(fewer)
            for j, count in enumerate(shorter)
        ]
        return [(size, count) for _, size, count in sorted(pairs)]


def _thinned(values: list[int], every: int) -> list[int]:
    """Of these about one in ``every``, evenly spread, with both ends.

    >>> _thinned([1, 2, 4, 8, 16, 32], 2)
    [1, 4, 8, 32]
    """
    last = len(values) - 1
    steps = -(-last // every)
    return [values[round(i * last / steps)] for i in range(steps + 1)] if last else values


def _counted(words: str) -> bool:
    """Whether the number of values is given, rather than left to us."""
    return bool(words) and all(word.count(":") != 1 for word in words.split(","))


def _level(i: int) -> float:
    """0 for the first, then the multiples of ever smaller powers of two."""
    return -float(i & -i) if i else -float("inf")


class Chosen(Plan):
    """One plan out of a frontier, to be told what changes to it cost."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.points()) != 1:
            raise ValueError("give one batch, one number of epochs and one sampler")
        return self


class Federated(Question):
    """A client that takes part at random, compared with CS, WCS and OLS."""

    client_rate: Annotated[
        Rate, Field(description="Probability that the client takes part in a round.")
    ] = 0.1
    record_rate: Annotated[Rate, Field(description="Probability that it then uses a record.")] = 0.1
    records: Annotated[int, Field(ge=0, le=10**6, description="The client's other records.")] = 100
    rounds: Annotated[int, Field(ge=1, le=10**6, description="Number of rounds.")] = 100
    noise_multiplier: Noise = 1.0
    delta: Delta = 1e-5
    senders: Annotated[
        int,
        Field(
            ge=1,
            le=10**6,
            description="Clients that surely send noise of their own, where clients add it.",
        ),
    ] = 100
    always_send: Annotated[
        bool,
        Field(
            description="Whether a client that stays away sends noise, "
            "or an encrypted zero, all the same."
        ),
    ] = True
    colluding: Annotated[
        int,
        Field(
            ge=1,
            le=10**6,
            description="How many of those senders a curious client may know the noise of.",
        ),
    ] = 1
    figure: Annotated[
        Literal["none", "noise", "rounds", "client-rate", "delta", "tradeoff"],
        Field(description="Which curves to add."),
    ] = "none"

    def client(self, **other: Any) -> RandomParticipation:
        """The client, with something else in the place of what was asked if that is given."""
        known: dict[str, Any] = {
            "client_rate": self.client_rate,
            "record_rate": self.record_rate,
            "records": self.records,
            "rounds": self.rounds,
        }
        return RandomParticipation(**(known | other))

    def federation(self, trusted: bool) -> Federation:
        """Who adds the noise: the server, or every client its part; the sum has the same noise."""
        total = self.noise_multiplier
        noise = (
            {"central_noise": total}
            if trusted
            else {"local_noise": total / math.sqrt(self.senders)}
        )
        return Federation(
            self.client(),
            **noise,
            senders=self.senders,
            always_send=self.always_send,
            colluding=self.colluding,
        )
