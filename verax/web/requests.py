"""What can be asked, with bounds on everything: checked before anything is computed.

Names are those of the Python API and of the command line. The bounds keep answers within seconds;
what is larger can be asked of the command line. The forms of the pages are made from the JSON
schemas of these models: their titles, bounds, defaults, and two extensions, ``x-slider`` (the ends
of a slider, where a field allows more) and ``x-labels`` (words for the values of a choice).
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from verax import checks
from verax.federated.observers import Federation
from verax.mechanism import Batch, Clipping, Individual, Mixed
from verax.planning import Target
from verax.samplers import RandomParticipation, registry
from verax.web.computations import PlanLimits, PlannedRun
from verax.web.plan_grid import PlanGrid

MOST_ROUNDS = 10_000_000
MOST_EPOCHS = 10_000
# A limit on the noise that is none.
LARGEST_LIMIT = 1e9


def _plannable(name: str) -> str:
    return checks.choice("sampler", name, registry.plannable())


def _field(
    title: str,
    help: str | None = None,
    slider: tuple[float, float] | None = None,
    labels: dict[str, str] | None = None,
    **bounds: Any,
) -> Any:
    """A field of a form: its label, a line of help, the ends of its slider, and its bounds."""
    form = {"x-slider": slider, "x-labels": labels}
    extra: dict[str, Any] = {name: value for name, value in form.items() if value is not None}
    return Field(title=title, description=help, json_schema_extra=extra, **bounds)


def _limit(title: str, slider: tuple[float, float], least: float) -> Any:
    return _field(title, "plans with more are left out", slider, ge=least, le=LARGEST_LIMIT)


SAMPLER_LABELS = {name: registry.named(name).label for name in registry.plannable()}
SamplerName = Annotated[
    str,
    AfterValidator(_plannable),
    WithJsonSchema({"type": "string", "enum": list(SAMPLER_LABELS)}),
]
SamplerNames = Annotated[
    list[SamplerName],
    _field("How batches are drawn", labels=SAMPLER_LABELS, min_length=1, max_length=20),
]
ClippingName = Annotated[
    Literal["individual", "batch", "mixed"],
    _field(
        "Clipping",
        labels={"individual": "each record", "batch": "the whole batch", "mixed": "clip-groups"},
    ),
]
RelationName = Annotated[
    Literal["", "add-remove", "zero-out", "replace"],
    _field("Neighbouring relation", labels={"": "each sampler's own"}),
]
Records = Annotated[int, _field("Records", slider=(100, 1e7), ge=1, le=10**9)]
BatchSize = Annotated[
    int, _field("Batch", "expected number of records in a round", (1, 1e5), ge=1, le=10**9)
]
Epochs = Annotated[int, _field("Epochs", slider=(1, 1000), ge=1, le=MOST_EPOCHS)]
Noise = Annotated[
    FiniteFloat,
    _field(
        "Noise multiplier",
        "standard deviation of the noise / clip norm",
        (0.3, 12),
        ge=0.05,
        le=1000.0,
    ),
]
Delta = Annotated[FiniteFloat, _field("Delta", slider=(1e-12, 0.01), ge=1e-30, le=0.5)]
GroupSize = Annotated[int, _field("Records protected together", ge=1, le=64)]
RoundLimit = Annotated[int, Field(ge=1, le=MOST_ROUNDS)]
Senders = Annotated[int, Field(ge=1, le=10**6)]
Rate = Annotated[FiniteFloat, Field(ge=1e-6, le=1.0)]
LedgerName = Annotated[
    str, Field(min_length=1, max_length=400, description="A ledger in the folder of the server.")
]
StatementFormat = Annotated[
    Literal["html", "json", "txt"], Field(description="A page, JSON, or prose.")
]
_CURVES = {"delta": "delta against epsilon", "tradeoff": "what an attacker can reach"}


class RequestModel(BaseModel):
    """The parameters of one request; what it does not know is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class MechanismRequest(RequestModel):
    """Parameters that requests about a mechanism share."""

    clipping: ClippingName = "individual"
    clip_groups: Annotated[int, _field("Clip-groups", "for clip-groups only", ge=1, le=1000)] = 1
    relation: RelationName = ""
    group: GroupSize = 1

    @model_validator(mode="after")
    def _no_unused_clip_groups(self) -> Self:
        if self.clip_groups != 1 and self.clipping != "mixed":
            raise ValueError(
                f"clip_groups {self.clip_groups} is for clipping mixed, "
                f"got clipping {self.clipping}"
            )
        return self

    def clipping_described(self) -> Clipping:
        """The clipping of this name, with its clip-groups."""
        kinds: dict[str, Clipping] = {
            "individual": Individual(),
            "batch": Batch(),
            "mixed": Mixed(groups=self.clip_groups),
        }
        return kinds[self.clipping]


def _check_size(records: int, batch: int, epochs: int) -> None:
    if batch > records:
        raise ValueError(f"batch must be at most records = {records}, got {batch}")
    if epochs * records > MOST_ROUNDS * batch:
        rounds = -(-epochs * records // batch)
        raise ValueError(
            f"epochs * records / batch must be at most {MOST_ROUNDS} rounds here, got {rounds}; "
            "raise batch, or use the command line, which waits"
        )


class CompareRequest(MechanismRequest):
    """One run under several samplers."""

    records: Records = 60_000
    batch: BatchSize = 600
    epochs: Epochs = 10
    noise_multiplier: Noise = 1.0
    delta: Delta = 1e-5
    sampler: SamplerNames = ["poisson", "balls-in-bins", "shuffle"]
    figure: Annotated[
        Literal["none", "noise", "epochs", "delta", "tradeoff"],
        _field(
            "Figure",
            "which curves to add",
            labels={"noise": "epsilon against noise", "epochs": "epsilon against epochs"} | _CURVES,
        ),
    ] = "none"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        _check_size(self.records, self.batch, self.epochs)
        if self.group > self.records:
            raise ValueError(f"group must be at most records = {self.records}, got {self.group}")
        return self

    def run(self, sampler: str, **other: Any) -> PlannedRun:
        """The run with this sampler, and with other noise or epochs if they are given."""
        given = {
            "records": self.records,
            "batch": self.batch,
            "epochs": self.epochs,
            "noise_multiplier": self.noise_multiplier,
            "clipping": self.clipping_described(),
            "relation": self.relation,
            "group": self.group,
        }
        return PlannedRun(sampler, **(given | other))


class PlanRequest(MechanismRequest):
    """A target, which is answered with the smallest proved noise by batch size and epochs."""

    records: Records = 60_000
    epsilon: Annotated[
        FiniteFloat, _field("Epsilon", "the target", (0.05, 20), ge=1e-3, le=100.0)
    ] = 1.0
    delta: Delta = 1e-5
    epochs: Annotated[
        str,
        _field(
            "Epochs",
            "10, or 5,10,20, or 1:100, or 1:100:20 for 20 values",
            max_length=100,
            pattern=r"^[0-9:,]+$",
        ),
    ] = "1:100"
    batch: Annotated[
        str,
        _field(
            "Batch sizes",
            "likewise; empty for powers of two",
            max_length=100,
            pattern=r"^[0-9:,]*$",
        ),
    ] = ""
    sampler: SamplerNames = ["poisson"]
    rounds_at_least: Annotated[RoundLimit, _field("Rounds, at least")] = 1
    rounds_at_most: Annotated[RoundLimit, _field("Rounds, at most")] = MOST_ROUNDS
    noise_at_most: Annotated[FiniteFloat, _limit("Noise, at most", (0.3, 100), 0.05)] = (
        LARGEST_LIMIT
    )
    ratio_at_most: Annotated[
        FiniteFloat,
        _limit("Noise / batch, at most", (1e-5, 1), 1e-9),
    ] = LARGEST_LIMIT
    rank: Annotated[
        Literal["signal", "noise", "ratio", "work", "rounds"],
        _field(
            "Best first by",
            labels={
                "signal": "signal of the run",
                "noise": "least noise",
                "ratio": "least noise / batch",
                "work": "least work",
                "rounds": "fewest rounds",
            },
        ),
    ] = "signal"

    @field_validator("epochs", "batch")
    @classmethod
    def _few_digits(cls, value: str) -> str:
        if any(len(part) > 10 for part in value.replace(":", ",").split(",")):
            raise ValueError("every number must have at most 10 digits")
        return value

    @model_validator(mode="after")
    def _possible(self) -> Self:
        self.target()
        for _, batch, epochs in self.grid().points():
            if epochs > MOST_EPOCHS:
                raise ValueError(f"epochs must be at most {MOST_EPOCHS} here, got {epochs}")
            _check_size(self.records, batch, epochs)
        self.grid().check_size()
        return self

    def target(self) -> Target:
        """The privacy target that every plan must meet."""
        return Target(
            self.records,
            self.epsilon,
            self.delta,
            self.clipping_described(),
            self.relation,
            self.group,
        )

    def limits(self) -> PlanLimits:
        """Limits that plans must keep besides; a limit at its largest value is none."""
        most = None if self.rounds_at_most == MOST_ROUNDS else self.rounds_at_most
        noise, ratio = (
            None if limit == LARGEST_LIMIT else limit
            for limit in (self.noise_at_most, self.ratio_at_most)
        )
        return PlanLimits(self.rounds_at_least, most, noise, ratio)

    def grid(self) -> PlanGrid:
        """The batch sizes and epochs for which plans are computed."""
        return PlanGrid(self.records, self.batch, self.epochs, tuple(dict.fromkeys(self.sampler)))


class ChangesRequest(PlanRequest):
    """One plan of a frontier: what do changes to it cost?"""

    @model_validator(mode="after")
    def _one_plan(self) -> Self:
        if len(self.grid().points()) != 1:
            raise ValueError("give one batch, one number of epochs and one sampler")
        return self


class FederatedRequest(RequestModel):
    """A client that takes part at random, compared with CS, WCS and OLS."""

    client_rate: Annotated[
        Rate,
        _field("Client rate", "probability that the client takes part in a round", (1e-3, 1)),
    ] = 0.1
    record_rate: Annotated[
        Rate, _field("Record rate", "probability that it then uses a record", (1e-3, 1))
    ] = 0.1
    records: Annotated[
        int,
        _field(
            "Other records", "of the client, besides the protected one", (1, 1e5), ge=0, le=10**6
        ),
    ] = 100
    rounds: Annotated[int, _field("Rounds", slider=(1, 1e5), ge=1, le=10**6)] = 100
    noise_multiplier: Annotated[
        Noise,
        _field(
            "Noise multiplier",
            "in the sum of all messages / clip norm of a record",
            (0.3, 12),
        ),
    ] = 1.0
    delta: Delta = 1e-5
    senders: Annotated[
        Senders,
        _field(
            "Clients that send noise",
            "surely and honestly, in every round, where clients add it",
            (1, 1e5),
        ),
    ] = 100
    always_send: Annotated[
        bool,
        _field(
            "A client that stays away",
            "noise, or an encrypted zero",
            labels={"true": "sends noise all the same", "false": "sends nothing"},
        ),
    ] = True
    colluding: Annotated[
        Senders,
        _field(
            "Colluding clients",
            "of those, whose noise a curious client knows, its own included",
            (1, 1e5),
        ),
    ] = 1
    figure: Annotated[
        Literal["none", "noise", "rounds", "client-rate", "delta", "tradeoff"],
        _field(
            "Figure",
            "which curves to add",
            labels={
                "noise": "epsilon against noise",
                "rounds": "epsilon against rounds",
                "client-rate": "epsilon against the client rate",
            }
            | _CURVES,
        ),
    ] = "none"

    def client(self, **other: Any) -> RandomParticipation:
        """The client, with other values of some parameters if they are given."""
        given: dict[str, Any] = {
            "client_rate": self.client_rate,
            "record_rate": self.record_rate,
            "records": self.records,
            "rounds": self.rounds,
        }
        return RandomParticipation(**(given | other))

    def federation(self, trusted: bool) -> Federation:
        """The federation, if a trusted server adds the noise or if every client adds its part."""
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


class LedgerRequest(RequestModel):
    """What is asked of a ledger that is sent as the body."""

    delta: Delta = 1e-5
    group: GroupSize = 1


class RunRequest(LedgerRequest):
    """What is asked of a ledger in the folder of the server."""

    name: LedgerName


class RunsRequest(LedgerRequest):
    """What is asked of ledgers of runs on the same data."""

    name: Annotated[list[LedgerName], Field(min_length=1, max_length=10)]


class StatementRequest(LedgerRequest):
    """The statement of a ledger that is sent as the body."""

    format: StatementFormat = "html"


class RunsStatementRequest(RunsRequest, StatementRequest):
    """The statement of ledgers in the folder of the server."""
