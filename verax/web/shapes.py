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


class Shown(BaseModel):
    """Both sides in a few digits, the lower one rounded down and the upper one up."""

    lower: str
    upper: str


class Bracket(BaseModel):
    """A quantity proved to lie between ``lower`` and ``upper``, and by what."""

    lower: Number
    upper: Number
    evidence: str
    lower_by: str
    upper_by: str
    shown: Shown


class Row(BaseModel):
    """One sampler; where nothing is proved ``epsilon`` is null, and ``why_not`` says why."""

    sampler: str
    mechanism: str | None = None
    relation: str | None = None
    rounds: int | None = None
    epsilon: Bracket | None = None
    why_not: str | None = None


class PointOf(Row):
    """The same at another place of the figure's horizontal axis."""

    x: float


class DeltaAt(BaseModel):
    """A bracket on delta."""

    epsilon: float
    lower: float
    upper: float


class Line(BaseModel):
    """Corners of a piecewise linear curve: false alarms and misses."""

    alpha: list[float]
    beta: list[float]


class TradeOff(BaseModel):
    """No attacker is below ``certified``; the true curve is never above ``above``."""

    certified: Line
    above: Line


class CurveOf(BaseModel):
    """Delta against epsilon, and the trade-off curve."""

    sampler: str
    deltas: list[DeltaAt] = []
    tradeoff: TradeOff | None = None
    why_not: str | None = None


class Comparison(BaseModel):
    """Rows for the settings that were asked, and what the figure needs."""

    rows: list[Row]
    points: list[PointOf]
    curves: list[CurveOf]


class ObserverOf(BaseModel):
    """An observer, and who adds the noise: a ``trusted`` server, or every client its part."""

    observer: str
    trusted: bool
    words: str | None = None
    mechanism: str | None = None
    relation: str | None = None
    rounds: int | None = None
    epsilon: Bracket | None = None
    why_not: str | None = None


class Participation(Comparison):
    """A client that takes part at random, what it is compared with, and its observers."""

    observers: list[ObserverOf]


class ClosedForm(BaseModel):
    """What the closed form of "Proactive DP" asks for."""

    noise_multiplier: float | None
    theorem: str
    why_not: str | None


class PlanOf(BaseModel):
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
    closed_form: ClosedForm | None
    python: str
    command_lines: list[str]
    undominated: bool | None = None


class Frontier(BaseModel):
    """Plans, best first, and the signal of a run with every record in every round."""

    plans: list[PlanOf]
    full_batch_signal: Number
    notes: Annotated[
        list[str], Field(description="Samplers of which only some plans were computed.")
    ]
    left_out: list[str]


class Change(BaseModel):
    """What a change costs, in words, and the plan after it."""

    words: str
    plan: PlanOf


class Ended(BaseModel):
    """How a run ended."""

    how: str
    reason: str
    private: bool


class SpentAt(BaseModel):
    """Epsilon of the run had it been declared to end after so many rounds."""

    rounds: int
    epsilon: Bracket


class Series(BaseModel):
    """Numbers that the run itself wrote down: pairs of a round and a value."""

    name: str
    points: list[tuple[int, float]]


class Signal(BaseModel):
    """The largest signal to noise, as planned: length over noise, both in clip norms."""

    each: Annotated[Number, Field(description="Of one clipped gradient.")]
    round: Annotated[
        Number | None, Field(description="Of a whole round; null if its size is not known.")
    ]
    rounds: int


class RunOf(BaseModel):
    """What a ledger proves."""

    name: str
    run: str
    begun: str
    verax: str
    head: str
    declared: int
    released: int
    complete: bool
    over: bool
    ended: Ended | None
    resumed: int
    torn: bool
    population: int | None
    insecure_seed: bool
    unit: str
    relation: str
    mechanism: list[str]
    noise_multiplier: list[float]
    clip_norm: list[float]
    signal: list[Signal]
    account: str
    delta: float
    group: int
    epsilon: Bracket | None
    spent: Bracket | None
    why_not: str | None
    points: list[SpentAt]
    log: Annotated[
        list[Series],
        Field(description="What the run published itself, such as scores on public data."),
    ]
    diagnostics: Annotated[
        list[Series] | None,
        Field(
            description="What it kept for the owners of the data; covered by no guarantee. "
            "Null: not shown here."
        ),
    ]


class RunRow(BaseModel):
    """One of several runs."""

    name: str
    released: int
    declared: int
    over: bool
    insecure_seed: bool
    epsilon: Bracket | None
    why_not: str | None


class Together(BaseModel):
    """What several ledgers prove of data that all their runs used."""

    delta: float
    group: int
    relation: str
    insecure_seed: bool
    epsilon: Bracket | None
    spent: Bracket | None
    why_not: str | None
    runs: list[RunRow]


class Runs(BaseModel):
    """Ledgers in the folder of the server; ``folder`` is false if it has none."""

    folder: bool
    runs: list[str]
    written: Annotated[
        dict[str, float], Field(description="When each was last written, in seconds since 1970.")
    ]


class About(BaseModel):
    """What this server is."""

    verax: str
    folder: bool
    largest_ledger: int


class Token(BaseModel):
    """To log in."""

    token: Annotated[str, Field(max_length=1000)]


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
"""Answers that every part of the API may give."""
