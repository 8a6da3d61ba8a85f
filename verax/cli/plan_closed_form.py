"""verax plan closed-form: the calculator of "Proactive DP" beside the accountant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.table import Table

from verax import checks
from verax.cli import output
from verax.cli.options import Json, flat, option
from verax.planning.closed_form.calculator import Phase, Setting, budget, next_phase, simple
from verax.privacy.guarantee import Bracket, format_bound
from verax.privacy.pld.composition import LOWER, UPPER


@dataclass(frozen=True, kw_only=True)
class ClosedFormOptions:
    """What ``verax plan closed-form`` is asked."""

    records: int = option("Number of records, N.", default=...)
    epsilon: float | None = option("The target; or give --noise-multiplier.")
    delta: float | None = option("Default: 1 / records.")
    noise_multiplier: float | None = option(
        "The paper's sigma; or give --epsilon.", "--noise-multiplier", "-z"
    )
    epochs: float | None = option("Gradient work k in epochs; or give --batch or --rounds.")
    batch: int | None = option("Mean batch size s.")
    rounds: int | None = option("Number of rounds T.")
    theta: float = option("Largest batch over mean batch.", default=1.0)
    after: list[str] | None = option(
        "An earlier phase as BATCH:ROUNDS; may be repeated. Plans the next one."
    )
    json: Json = False


@flat
def closed_form(options: ClosedFormOptions) -> None:
    """Plan in closed form ("Proactive DP"), with the accountant's epsilon for the run beside it.

    Example: verax plan closed-form --records 60000 -z 12.10881 --epochs 6
    """
    if options.after:
        _plan_next_phase(options, options.after)
        return
    target = budget(
        options.records,
        epsilon=options.epsilon,
        delta=options.delta,
        sigma=options.noise_multiplier,
    )
    answer = simple(
        options.records,
        target,
        epochs=options.epochs,
        batch=options.batch,
        rounds=options.rounds,
        theta=options.theta,
    )
    columns = {"T_min": answer.minimum, "T_min_asym": answer.asymptotic}
    with output.patience("accounting"):
        tight = [run.mechanism().guarantee().epsilon(run.delta) for run in columns.values()]
    if options.json:
        output.print_json(
            {
                name: {
                    **_quantities(run),
                    "granted_by": list(run.granted_by),
                    "accountant_epsilon": epsilon,
                }
                for (name, run), epsilon in zip(columns.items(), tight, strict=True)
            }
        )
        return
    table = Table("quantity", *columns)
    for quantity, *values in zip(
        _quantities(answer.minimum),
        *(_quantities(run).values() for run in columns.values()),
        strict=True,
    ):
        table.add_row(quantity, *map(_number, values))
    theorems = (" and ".join(run.granted_by) or "no theorem" for run in columns.values())
    table.add_row("granted by", *theorems)
    table.add_row("accountant's epsilon", *map(_bracket, tight))
    console = output.console()
    console.print(table)
    notes = [
        "T_min: the fewest rounds that theorem B.4 proves; T_min_asym: 2 gamma times fewer, not "
        "proved by it"
    ]
    if options.theta > 1.0:
        notes.append("accountant: the largest batch in T / theta rounds and none in the others")
    console.print("\n".join(notes), style="dim")


def _quantities(run: Setting | Phase) -> dict[str, Any]:
    return {
        "epsilon": run.epsilon,
        "delta": run.delta,
        "sigma": run.sigma,
        "gamma": run.gamma,
        "theta": run.theta,
        "k": run.epochs,
        "N": run.population,
        "s": run.batch,
        "T": run.rounds,
    }


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.5g}"


def _bracket(bracket: Bracket) -> str:
    return f"{format_bound(bracket.lower, LOWER)} to {format_bound(bracket.upper, UPPER)}"


def _plan_next_phase(options: ClosedFormOptions, after: list[str]) -> None:
    if options.epsilon is None or options.epochs is None:
        raise ValueError(
            "--after needs --epsilon, for all phases together, and --epochs, for the next one"
        )
    if options.batch is not None or options.rounds is not None or options.theta != 1.0:
        raise ValueError(
            "--after finds the batch and the rounds: leave out --batch, --rounds and --theta"
        )
    phase = next_phase(
        options.records,
        tuple(_earlier_phase(text) for text in after),
        options.epochs,
        options.epsilon,
        sigma=options.noise_multiplier,
        delta=options.delta,
    )
    with output.patience("accounting"):
        tight = phase.sizes.mechanism(phase.sigma).guarantee().epsilon(phase.delta)
    values = _quantities(phase)
    if options.json:
        output.print_json({**values, "phases": phase.sizes.blocks, "accountant_epsilon": tight})
        return
    table = Table("quantity", "all phases")
    for quantity, value in values.items():
        table.add_row(quantity, _number(value))
    table.add_row("accountant's epsilon", _bracket(tight))
    console = output.console()
    console.print(table)
    console.print(
        "both epsilons: every phase with this sigma, all declared before the first ran; a phase "
        "chosen after looking at earlier releases needs a Rényi filter",
        style="dim",
    )


def _earlier_phase(text: str) -> tuple[int, int]:
    size, _, count = text.partition(":")
    if not (size.isdecimal() and count.isdecimal()):
        raise ValueError(f"--after must be BATCH:ROUNDS, such as 408:882, got {text!r}")
    return checks.count("--after batch", int(size)), checks.count("--after rounds", int(count))
