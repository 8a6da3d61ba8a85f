"""verax calibrate: invert a guarantee."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from verax import Poisson
from verax.cli import common
from verax.privacy import calibrate as solve
from verax.privacy.composition import LOWER, UPPER
from verax.privacy.guarantee import shown


def calibrate(
    epsilon: Annotated[float, typer.Option(help="The target.")],
    delta: Annotated[float, typer.Option(help="The delta of the target.")],
    noise_multiplier: Annotated[
        float | None, typer.Option("--noise-multiplier", "-z", help="Leave out to solve for it.")
    ] = None,
    sampler: common.SamplerOption = common.SamplerName.poisson,
    rate: common.Rate = None,
    steps: common.Steps = None,
    records: common.Records = None,
    batch: common.BatchSize = None,
    batches: common.Batches = None,
    epochs: common.Epochs = None,
    times: common.Times = None,
    buffer: common.Buffer = None,
    max_batch: common.MaxBatch = None,
    clipping: common.ClippingOption = common.ClippingName.individual,
    clip_groups: common.ClipGroups = 1,
    relation: common.Relation = None,
    group: common.Group = 1,
    json: common.AsJson = False,
) -> None:
    """Solve for the one quantity left out: the noise, or with --noise-multiplier given the Poisson steps or rate.

    Example: verax calibrate --epsilon 1 --delta 1e-5 --rate 0.01 --steps 1000
    """
    known_rate = rate is not None or (records is not None and batch is not None)
    known_steps = steps is not None or epochs is not None
    unit: dict[str, Any]
    with common.patience("calibrating"):
        if noise_multiplier is None:
            run = common.describe_run(
                sampler, rate, steps, records, batch, batches, epochs, clipping, clip_groups, relation,
        times, buffer, max_batch,
            )  # fmt: skip
            noise = solve.noise_multiplier(
                run.sampler, epsilon, delta, clipping=run.clipping, relation=run.relation, group=group
            )
            answer, unit = noise, {"noise_multiplier": noise}
        elif sampler is not common.SamplerName.poisson:
            raise ValueError("with --noise-multiplier given, only --sampler poisson has something left to solve for")
        elif known_rate == known_steps:
            raise ValueError(
                "with --noise-multiplier given, give either the rate (then steps are solved for) or the steps"
            )
        elif epochs is not None:
            raise ValueError(f"--epochs {epochs} with --noise-multiplier needs the rate: give --steps to solve for it")
        else:
            run = common.describe_run(
                sampler,
                rate if known_rate else 1.0,
                steps if known_steps else 1,
                records,
                batch,
                batches,
                None,
                clipping,
                clip_groups,
                relation,
                times,
                buffer,
                max_batch,
            )
            fixed = run.sampler
            if not isinstance(fixed, Poisson):
                raise TypeError(f"expected a Poisson sampler, got {fixed!r}")
            more: dict[str, Any] = {"clipping": run.clipping, "relation": run.relation, "group": group}
            if known_rate:
                count = solve.steps(fixed.rate, noise_multiplier, epsilon, delta, **more)
                answer, unit = float(count), {"steps": count}
            else:
                answer = solve.rate(fixed.steps, noise_multiplier, epsilon, delta, **more)
                unit = {"rate": answer}
    if json:
        common.print_json({**unit, "epsilon": epsilon, "delta": delta, "group": group})
        return
    name = next(iter(unit)).replace("_", " ")
    # rounded so that what is printed meets the target too: more noise, a smaller rate
    text = str(int(answer)) if "steps" in unit else shown(answer, UPPER if "noise_multiplier" in unit else LOWER, 7)
    Console().print(f"{name} {text} meets epsilon {epsilon!r} at delta {delta!r} (proved upper bound)")
