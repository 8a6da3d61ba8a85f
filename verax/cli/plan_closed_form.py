"""verax plan closed-form: the calculator of "Proactive DP" beside the accountant."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from verax import checks
from verax.cli import common
from verax.planning.closed_form.calculator import Phase, Setting, budget, next_phase, simple
from verax.privacy.guarantee import Bracket, shown
from verax.privacy.pld.composition import LOWER, UPPER


def closed_form(
    records: Annotated[int, typer.Option(help="Number of records, N.")],
    epsilon: Annotated[
        float | None, typer.Option(help="The target; or give --noise-multiplier.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Default: 1 / records.")] = None,
    noise_multiplier: Annotated[
        float | None,
        typer.Option("--noise-multiplier", "-z", help="The paper's sigma; or give --epsilon."),
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Gradient work k in epochs; or give --batch or --rounds.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Mean batch size s.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds T.")] = None,
    theta: Annotated[float, typer.Option(help="Largest batch over mean batch.")] = 1.0,
    after: Annotated[
        list[str] | None,
        typer.Option(help="An earlier phase as BATCH:ROUNDS; may be repeated. Plans the next one."),
    ] = None,
    json: common.AsJson = False,
) -> None:
    """Plan in closed form ("Proactive DP"), with the accountant's epsilon for the same run beside it.

    Example: verax plan closed-form --records 60000 -z 12.10881 --epochs 6
    """
    if after:
        _phase(records, epsilon, delta, noise_multiplier, epochs, batch, rounds, theta, after, json)
        return
    target = budget(records, epsilon=epsilon, delta=delta, sigma=noise_multiplier)
    answer = simple(records, target, epochs=epochs, batch=batch, rounds=rounds, theta=theta)
    columns = {"T_min": answer.minimum, "T_min_asym": answer.asymptotic}
    with common.patience("accounting"):
        tight = {
            name: run.mechanism().guarantee().epsilon(run.delta) for name, run in columns.items()
        }
    if json:
        common.print_json(
            {
                name: {
                    **_quantities(run),
                    "granted_by": list(run.granted_by),
                    "accountant_epsilon": tight[name],
                }
                for name, run in columns.items()
            }
        )
        return
    console = Console(highlight=False, markup=False, soft_wrap=True)
    table = Table("quantity", *columns)
    for quantity in _quantities(answer.minimum):
        table.add_row(quantity, *(_number(_quantities(run)[quantity]) for run in columns.values()))
    table.add_row(
        "granted by", *(" and ".join(run.granted_by) or "no theorem" for run in columns.values())
    )
    table.add_row("accountant's epsilon", *(_bracket(tight[name]) for name in columns))
    console.print(table)
    notes = [
        "T_min: the fewest rounds that theorem B.4 proves; T_min_asym: 2 gamma times fewer, not "
        "proved by it"
    ]
    if theta > 1.0:
        notes.append("accountant: the largest batch in T / theta rounds and none in the others")
    console.print("\n".join(notes), style="dim")


def _quantities(run: Setting) -> dict[str, Any]:
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
    return f"{shown(bracket.lower, LOWER)} to {shown(bracket.upper, UPPER)}"


def _phase(
    records: int,
    epsilon: float | None,
    delta: float | None,
    noise_multiplier: float | None,
    epochs: float | None,
    batch: int | None,
    rounds: int | None,
    theta: float,
    after: list[str],
    json: bool,
) -> None:
    if epsilon is None or epochs is None:
        raise ValueError(
            "--after needs --epsilon, for all phases together, and --epochs, for the next one"
        )
    if batch is not None or rounds is not None or theta != 1.0:
        raise ValueError(
            "--after finds the batch and the rounds: leave out --batch, --rounds and --theta"
        )
    done = tuple(_earlier(text) for text in after)
    phase = next_phase(records, done, epochs, epsilon, sigma=noise_multiplier, delta=delta)
    with common.patience("accounting"):
        tight = phase.sizes.mechanism(phase.sigma).guarantee().epsilon(phase.delta)
    values = _after(phase)
    if json:
        common.print_json({**values, "phases": phase.sizes.blocks, "accountant_epsilon": tight})
        return
    console = Console(highlight=False, markup=False, soft_wrap=True)
    table = Table("quantity", "all phases")
    for quantity, value in values.items():
        table.add_row(quantity, _number(value))
    table.add_row("accountant's epsilon", _bracket(tight))
    console.print(table)
    console.print(
        "both epsilons: every phase with this sigma, all declared before the first ran; a phase "
        "chosen after looking at earlier releases needs a Rényi filter",
        style="dim",
    )


def _after(phase: Phase) -> dict[str, Any]:
    work = phase.sizes.work
    return {
        "epsilon": phase.epsilon,
        "delta": phase.delta,
        "sigma": phase.sigma,
        "gamma": phase.gamma,
        "theta": phase.theta,
        "k": work.epochs,
        "N": work.population,
        "s": phase.batch,
        "T": phase.rounds,
    }


def _earlier(text: str) -> tuple[int, int]:
    size, _, count = text.partition(":")
    if not (size.isdecimal() and count.isdecimal()):
        raise ValueError(f"--after must be BATCH:ROUNDS, such as 408:882, got {text!r}")
    return checks.count("--after batch", int(size)), checks.count("--after rounds", int(count))
