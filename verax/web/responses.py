"""What answers look like: the models that OpenAPI documents."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

Number = Annotated[
    float | Literal["inf"], Field(description="A number; JSON has no infinity, so that is a word.")
]


class Problem(BaseModel):
    """Why a request was refused."""

    message: str


class ShownPart(BaseModel):
    """Both sides in a few digits, the lower one rounded down and the upper one up."""

    lower: str
    upper: str


class BracketPart(BaseModel):
    """A quantity proved to lie between ``lower`` and ``upper``, and by what."""

    lower: Number
    upper: Number
    evidence: str
    lower_by: str
    upper_by: str
    shown: ShownPart


class MechanismPart(BaseModel):
    """What one mechanism costs; where nothing is proved ``epsilon`` is null, and why."""

    mechanism: str | None = None
    relation: str | None = None
    rounds: int | None = None
    epsilon: BracketPart | None = None
    why_not: str | None = None


class RowPart(MechanismPart):
    """One sampler, or one model of participation."""

    sampler: str


class PointPart(RowPart):
    """The same at another place of the figure's horizontal axis."""

    x: float


class DeltaPart(BaseModel):
    """A bracket on delta."""

    epsilon: float
    lower: float
    upper: float


class LinePart(BaseModel):
    """Corners of a piecewise linear curve: false alarms and misses."""

    alpha: list[float]
    beta: list[float]


class TradeOffPart(BaseModel):
    """No attacker is below ``certified``; the true curve is never above ``above``."""

    certified: LinePart
    above: LinePart


class CurvePart(BaseModel):
    """Delta against epsilon, and the trade-off curve."""

    sampler: str
    deltas: list[DeltaPart] = []
    tradeoff: TradeOffPart | None = None
    why_not: str | None = None


class CompareResponse(BaseModel):
    """Rows for the samplers that were asked for, and what the figure needs."""

    rows: list[RowPart]
    points: list[PointPart]
    curves: list[CurvePart]


class ObserverPart(MechanismPart):
    """An observer, and who adds the noise: a ``trusted`` server, or every client its part."""

    observer: str
    trusted: bool
    words: str | None = None


class FederatedResponse(CompareResponse):
    """A client that takes part at random, what it is compared with, and its observers."""

    observers: list[ObserverPart]


class ClosedFormPart(BaseModel):
    """What the closed form of "Proactive DP" asks for."""

    noise_multiplier: float | None
    theorem: str
    why_not: str | None


class PlanPart(BaseModel):
    """A run that meets the target, what it costs, and code that runs it."""

    sampler: str
    mechanism: str
    relation: str
    clipping: str
    records: int
    batch: int
    expected_batch: float
    epochs: float
    passes: int
    rounds: int
    noise_multiplier: float
    epsilon: float
    delta: float
    group: int
    noise_to_batch: float
    signal: Number
    signal_of_run: Number
    records_touched: float
    closed_form: ClosedFormPart | None
    python: str
    command_lines: list[str]
    undominated: bool | None = None


class PlanResponse(BaseModel):
    """Plans, best first, and the signal of a run with every record in every round."""

    plans: list[PlanPart]
    full_batch_signal: Number
    notes: Annotated[
        list[str], Field(description="Samplers of which only some plans were computed.")
    ]
    left_out: list[str]


class PlanChange(BaseModel):
    """What a change costs, in words, and the plan after it."""

    words: str
    plan: PlanPart


class EndPart(BaseModel):
    """How a run ended."""

    how: str
    reason: str
    private: bool


class SpentPart(BaseModel):
    """Epsilon of the run had it been declared to end after so many rounds."""

    rounds: int
    epsilon: BracketPart


class SeriesPart(BaseModel):
    """Numbers that the run itself wrote down: pairs of a round and a value."""

    name: str
    points: list[tuple[int, float]]


class SignalPart(BaseModel):
    """The largest signal to noise, as planned: length over noise, both in clip norms."""

    each: Annotated[Number, Field(description="Of one clipped gradient.")]
    round: Annotated[
        Number | None, Field(description="Of a whole round; null if its size is not known.")
    ]
    rounds: int


class RunPart(BaseModel):
    """A run, and what it costs as a whole."""

    name: str
    released: int
    declared: int
    over: bool
    insecure_seed: bool
    epsilon: BracketPart | None
    why_not: str | None


class RunResponse(RunPart):
    """What a ledger proves."""

    run: str
    begun: str
    verax: str
    head: str
    complete: bool
    ended: EndPart | None
    resumed: int
    torn: bool
    population: int | None
    unit: str
    relation: str
    mechanism: list[str]
    noise_multiplier: list[float]
    clip_norm: list[float]
    signal: list[SignalPart]
    account: str
    delta: float
    group: int
    spent: BracketPart | None
    points: list[SpentPart]
    log: Annotated[
        list[SeriesPart],
        Field(description="What the run published itself, such as scores on public data."),
    ]
    diagnostics: Annotated[
        list[SeriesPart] | None,
        Field(
            description="What it kept for the owners of the data; covered by no guarantee. "
            "Null: not shown here."
        ),
    ]


class TogetherResponse(BaseModel):
    """What several ledgers prove of data that all their runs used."""

    delta: float
    group: int
    relation: str
    insecure_seed: bool
    epsilon: BracketPart | None
    spent: BracketPart | None
    why_not: str | None
    runs: list[RunPart]


class RunsResponse(BaseModel):
    """Ledgers in the folder of the server; ``folder`` is false if it has none."""

    folder: bool
    runs: list[str]
    written: Annotated[
        dict[str, float], Field(description="When each was last written, in seconds since 1970.")
    ]


class AboutResponse(BaseModel):
    """What this server is."""

    verax: str
    folder: bool
    largest_ledger: int


class Token(BaseModel):
    """To log in."""

    token: Annotated[str, Field(max_length=1000)]


# Answers that every part of the API may give.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": words}
    for status, words in {
        401: "no token was shown",
        403: "the request comes from another site",
        408: "the request did not come in time",
        413: "the body of the request is too long",
        421: "not the name of this server",
        422: "refused, with a message that says what is allowed",
        500: "the computation failed",
        503: "too many are asking at once",
    }.items()
}
