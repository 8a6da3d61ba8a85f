"""verax account: what a run costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from verax import Mechanism
from verax.cli import output
from verax.cli.options import Group, Json, Noise, Rtol, RunOptions, flat
from verax.cli.tables import Table
from verax.privacy.guarantee import DEFAULT_RTOL, Bracket, format_bound


@flat
def account(
    noise_multiplier: Noise,
    run: RunOptions,
    delta: Annotated[
        list[float] | None, typer.Option(help="Report epsilon at this delta; may be repeated.")
    ] = None,
    epsilon: Annotated[
        list[float] | None, typer.Option(help="Report delta at this epsilon; may be repeated.")
    ] = None,
    group: Group = 1,
    rtol: Rtol = DEFAULT_RTOL,
    json: Json = False,
) -> None:
    """Price a run: a proved lower and upper bound on its epsilon or delta.

    Example: verax account -z 1 --rate 0.01 --steps 1000 --delta 1e-5
    """
    if not delta and not epsilon:
        raise ValueError("nothing to report: give --delta or --epsilon")
    mechanism = run.mechanism(noise_multiplier)
    with output.patience("accounting"):
        guarantee = mechanism.guarantee(group)
        rows = [
            (f"epsilon at delta = {d!r}", replace(guarantee).epsilon(d, rtol)) for d in delta or []
        ]
        rows += [
            (f"delta at epsilon = {e!r}", replace(guarantee).delta(e, rtol)) for e in epsilon or []
        ]
    if json:
        output.print_json(
            {
                "mechanism": repr(mechanism),
                "relation": mechanism.relation,
                "group": group,
                "epsilon": [
                    {"delta": d, **output.plain(b)}
                    for d, (_, b) in zip(delta or [], rows, strict=False)
                ],
                "delta": [
                    {"epsilon": e, **output.plain(b)}
                    for e, (_, b) in zip(epsilon or [], rows[len(delta or []) :], strict=True)
                ],
            }
        )
        return
    _show(mechanism, group, rows)


def _show(mechanism: Mechanism, group: int, rows: list[tuple[str, Bracket]]) -> None:
    out = output.fitted_console()
    out.print(
        f"{mechanism.sampler!r}, noise multiplier {mechanism.noise_multiplier!r}, "
        f"{mechanism.clipping!r}"
    )
    out.print(
        f"relation {mechanism.relation}, protecting any {group} record{'s' * (group > 1)} together"
    )
    table = Table(["quantity", "at least", "at most", "evidence"])
    for name, bracket in rows:
        table.add_row(
            name, format_bound(bracket.lower, -1), format_bound(bracket.upper, 1), bracket.evidence
        )
    table.print(out)
    out.print(f"upper: {rows[0][1].upper_by}\nlower: {rows[0][1].lower_by}", style="dim")
