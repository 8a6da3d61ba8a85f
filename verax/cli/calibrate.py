"""verax calibrate: invert a guarantee."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from verax import Poisson
from verax.cli import output
from verax.cli.options import Group, Json, RunOptions, flat
from verax.privacy import calibrate as solve
from verax.privacy.guarantee import format_bound
from verax.privacy.pld.composition import LOWER, UPPER


@flat
def calibrate(
    epsilon: Annotated[float, typer.Option(help="The target.")],
    delta: Annotated[float, typer.Option(help="The delta of the target.")],
    run: RunOptions,
    noise_multiplier: Annotated[
        float | None, typer.Option("--noise-multiplier", "-z", help="Leave out to solve for it.")
    ] = None,
    group: Group = 1,
    json: Json = False,
) -> None:
    """Solve for what is left out: the noise or, with --noise-multiplier, the Poisson steps or rate.

    Example: verax calibrate --epsilon 1 --delta 1e-5 --rate 0.01 --steps 1000
    """
    with output.patience("calibrating"):
        unit, answer = _solved(run, noise_multiplier, epsilon, delta, group)
    if json:
        output.print_json({unit: answer, "epsilon": epsilon, "delta": delta, "group": group})
        return
    # rounded so that what is printed meets the target too: more noise, a smaller rate
    text = (
        str(answer)
        if unit == "steps"
        else format_bound(answer, UPPER if unit == "noise_multiplier" else LOWER, 7)
    )
    output.console().print(
        f"{unit.replace('_', ' ')} {text} meets epsilon {epsilon!r} at delta {delta!r} (proved "
        "upper bound)"
    )


def _solved(
    run: RunOptions, noise_multiplier: float | None, epsilon: float, delta: float, group: int
) -> tuple[str, float]:
    """The name of what was left out, and its value."""
    more: dict[str, Any] = {
        "clipping": run.build_clipping(),
        "relation": run.relation_name,
        "group": group,
    }
    if noise_multiplier is None:
        return "noise_multiplier", solve.noise_multiplier(
            run.build_sampler(), epsilon, delta, **more
        )
    typed = {flag for flag, value in run.drawing.items() if value is not None}
    known_rate = "--rate" in typed or {"--records", "--batch"} <= typed
    known_steps = bool(typed & {"--steps", "--epochs"})
    if run.sampler != "poisson":
        raise ValueError(
            "with --noise-multiplier given, only --sampler poisson has something left to solve for"
        )
    if known_rate == known_steps:
        raise ValueError(
            "with --noise-multiplier given, give either the rate (then steps are solved for) or "
            "the steps"
        )
    if "--epochs" in typed:
        raise ValueError(
            f"--epochs {run.drawing['--epochs']} with --noise-multiplier needs the rate: give "
            "--steps to solve for it"
        )
    fixed = run.build_sampler(steps=1) if known_rate else run.build_sampler(rate=1.0)
    if not isinstance(fixed, Poisson):
        raise TypeError(f"expected a Poisson sampler, got {fixed!r}")
    if known_rate:
        return "steps", solve.steps(fixed.rate, noise_multiplier, epsilon, delta, **more)
    return "rate", solve.rate(fixed.steps, noise_multiplier, epsilon, delta, **more)
