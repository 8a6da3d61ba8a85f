"""verax audit canaries: attack a whole training run by records that were planted in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from verax import Mechanism, checks
from verax.auditing.canaries import CanaryAudit, audit_canaries
from verax.cli import output
from verax.cli.options import (
    Epochs,
    ExpectedBatch,
    Json,
    Noise,
    Relation,
    SamplerOption,
    SpecialFlags,
    flat,
    option,
)
from verax.mechanism import Individual

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from verax.training.data.examples import Examples

_LOUD = 4.0  # a canary's own feature, so large that its gradient is clipped and lies mostly there
_MODELS = ("logistic", "mlp")


@dataclass(frozen=True, kw_only=True)
class CanaryOptions:
    """What ``verax audit canaries`` is asked."""

    noise_multiplier: Noise
    data: str = option(
        "digits, mnist (see VERAX_DATA), or a .csv file, class last.", default="digits"
    )
    model: str = option(f"What to train: {' or '.join(_MODELS)}.", default="logistic")
    planted: int = option(
        "Records to plant, each in by a coin of its own.", "--canaries", default=300
    )
    sampler: SamplerOption = "poisson"
    batch: ExpectedBatch = None
    epochs: Epochs = 10
    special: SpecialFlags
    relation: Relation = None
    clip_norm: float = option("The norm gradients are clipped to.", default=1.0)
    learning_rate: float = option("Step size of SGD.", "--learning-rate", "--lr", default=1.0)
    epsilon: float | None = option("The claimed epsilon; default: what verax proves.")
    delta: float = option("The delta of the claim.", default=1e-5)
    confidence: float = option("Probability that the bound is right.", default=0.95)
    insecure_seed: int | None = option("Repeat an audit exactly; for tests.")
    json: Json = False


@flat
def canaries(options: CanaryOptions) -> None:
    """Train once with canaries, guess which were in, and compare with what is claimed.

    A canary has a feature of its own and a random class. The model that is trained is thrown away.

    Exit code 0: not refuted; 1: refuted; 2: bad input.

    Example: verax audit canaries --data digits -z 1 --epochs 10
    """
    checks.choice("--model", options.model, _MODELS)
    planted = checks.count("--canaries", options.planted, minimum=2)
    from verax.training.data.examples import load

    examples = load(options.data)
    records = len(examples.train[1]) + planted
    mechanism = Mechanism(
        options.special.build(options.sampler, records, options.batch, options.epochs),
        options.noise_multiplier,
        Individual(options.clip_norm),
        options.relation.value if options.relation else "",
    )
    claim = (
        mechanism.guarantee()
        if options.epsilon is None
        else checks.nonnegative("--epsilon", options.epsilon)
    )
    attack = _Attack(
        examples, options.model, mechanism, planted, options.learning_rate, options.insecure_seed
    )
    result = audit_canaries(
        attack.scores,
        planted,
        claim,
        delta=options.delta,
        confidence=options.confidence,
        insecure_seed=options.insecure_seed,
    )
    if options.json:
        output.print_json(_plain(result, mechanism))
    else:
        console = output.console()
        console.print(result.statement())
        console.print(
            f"What ran: {mechanism!r} on {records - planted:,} records and about {planted // 2:,} "
            "canaries."
        )
    if result.refuted:
        raise typer.Exit(1)


class _Attack:
    """Trains with the canaries that are in; scores each by how far its own loss fell."""

    def __init__(
        self,
        examples: Examples,
        model: str,
        mechanism: Mechanism,
        planted: int,
        learning_rate: float,
        seed: int | None,
    ) -> None:
        import torch

        from verax.training.data.examples import Examples, build

        self._mechanism, self._learning_rate, self._seed = mechanism, learning_rate, seed
        if seed is not None:
            torch.manual_seed(seed)
        x, y = examples.train
        real = torch.cat([x.flatten(1), torch.zeros(len(y), planted)], dim=1)
        own = torch.cat(
            [torch.zeros(planted, real.shape[1] - planted), _LOUD * torch.eye(planted)], dim=1
        )
        self._canaries = own, torch.randint(examples.classes, (planted,))
        both = torch.cat([real, own]), torch.cat([y, self._canaries[1]])
        self._data = {"x": both[0], "y": both[1]}
        self._model = build(model, Examples(both, both, examples.classes))

    def scores(self, included: NDArray[np.bool_]) -> Any:
        """One run. A canary that is out has gradient 0, as if it were not there."""
        import torch
        from torch.nn.functional import cross_entropy

        from verax.training import fit

        counts = torch.ones(len(self._data["y"]))
        counts[len(counts) - len(included) :] = torch.from_numpy(included).float()

        def loss(model: Any, batch: dict[str, Any]) -> Any:
            return batch["counts"] * cross_entropy(model(batch["x"]), batch["y"], reduction="none")

        def own() -> Any:
            """The canary's loss relative to a record of its class without features."""
            x, y = self._canaries
            with torch.no_grad():
                costs = (
                    cross_entropy(self._model(one), y, reduction="none")
                    for one in (torch.zeros_like(x), x)
                )
                return next(costs) - next(costs)

        before = own()
        fit(
            self._model,
            loss,
            self._data | {"counts": counts},
            self._mechanism,
            lambda p: torch.optim.SGD(p, self._learning_rate),
            records=len(counts),
            insecure_seed=self._seed,
        )
        return (own() - before).numpy()


def _plain(result: CanaryAudit, mechanism: Mechanism) -> dict[str, object]:
    return {
        "refuted": result.refuted,
        "lower": result.lower,
        "claim": result.claim,
        "delta": result.delta,
        "confidence": result.confidence,
        "evidence": "monte-carlo",
        "relation": mechanism.relation,
        "mechanism": repr(mechanism),
        "canaries": result.canaries,
        "guesses": result.guesses,
        "right": result.right,
        "tries": result.tries,
        "statement": result.statement(),
    }
