"""Random participation: a client joins a round by a coin, then each of its records by its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import numpy as np

from verax import checks
from verax.samplers.base import Sampler, store_fields
from verax.samplers.bernoulli import heads
from verax.samplers.options import Option
from verax.samplers.registry import register
from verax.samplers.stream import Batches, Stage


@register("random-participation", "random participation")
@dataclass(frozen=True)
class RandomParticipation(Sampler):
    """One client: it takes part with ``client_rate`` and then uses records at ``record_rate``.

    Formal guarantee of the iterator, which draws the batches of *one* client from its own
    ``population`` records:
        * rounds are independent and identically distributed;
        * with probability ``1 - client_rate`` a batch is empty; otherwise each record joins it by
          its own coin of probability ``record_rate``. So every record joins with probability
          ``client_rate * record_rate``, but records of one client are *not* independent: that is
          why the analysis needs their number;
        * a round without the client and one in which it picks no record give the same empty batch;
        * a batch lists distinct records in increasing order.

    Clients draw independently, each with its own generator. A client's privacy depends on its own
    four numbers and the noise only, so clients may differ, and phases with other numbers may
    follow. The guarantee assumes that the adversary sees the noisy sums but not the participation
    pattern; ``revealed`` says that it is visible too.

    Args:
        client_rate: probability of taking part in a round, in (0, 1].
        record_rate: probability that a client that takes part uses a given record, in (0, 1].
        records: the most *other* records that the client holds besides the protected one; so the
            data may have up to ``records + 1``. Fewer are covered by the same guarantee.
        rounds: number of rounds, those without the client included.
        revealed: whether participation is visible, say because an absent client sends nothing to a
            server that is not trusted ("weak client sampling").

    >>> import numpy as np
    >>> from verax.samplers import RandomParticipation
    >>> sampler = RandomParticipation(client_rate=0.5, record_rate=0.25, records=8, rounds=5)
    >>> [batch.tolist() for batch in sampler.draw(8, np.random.default_rng(1))]
    [[], [], [0, 5], [4, 5], []]
    >>> len(sampler), sampler.expected_batch(8)
    (5, 1.0)
    """

    relation: ClassVar[str] = "add-remove"
    repeats: ClassVar[str] = "rounds"
    independent_records: ClassVar[bool] = False
    plannable: ClassVar[bool] = False
    client_rate: Annotated[
        float, Option("--client-rate", "Chance that the client takes part in a round.")
    ]
    record_rate: Annotated[
        float, Option("--record-rate", "Chance that a client taking part uses a record.")
    ]
    records: Annotated[
        int, Option("--other-records", "The most other records that the client holds.")
    ]
    rounds: Annotated[
        int, Option("--rounds", "Number of rounds, those without the client included.")
    ]
    revealed: Annotated[bool, Option("--revealed", "Whether participation is visible.")] = False

    def __post_init__(self) -> None:
        if not isinstance(self.revealed, bool):
            raise ValueError(f"revealed must be True or False, got {self.revealed!r}")
        store_fields(
            self,
            client_rate=checks.rate("client_rate", self.client_rate),
            record_rate=checks.rate("record_rate", self.record_rate),
            records=checks.count("records", self.records, minimum=0),
            rounds=checks.count("rounds", self.rounds),
        )

    def __len__(self) -> int:
        return self.rounds

    def expected_batch(self, population: int) -> float:
        """``client_rate * record_rate * population``."""
        return self.client_rate * self.record_rate * self._at_most(population)

    def title(self) -> str:
        return "participation seen" if self.revealed else "random participation"

    @property
    def most_records(self) -> int:
        """``records + 1``: the others and the protected one."""
        return self.records + 1

    @classmethod
    def planned(cls, records: int, batch: int, epochs: int) -> Self:
        """Refused: a client's two rates do not follow from a batch size."""
        raise ValueError(
            "sampler random-participation has a rate of clients and one of records, "
            "which batch and epochs do not say: plan it with verax.federated, "
            "or price it with --client-rate and --record-rate"
        )

    def draw(self, population: int, rng: np.random.Generator) -> Batches:
        """Draw this client's batches lazily; ``population`` is the number of its own records."""
        return Batches(self, self._at_most(population), rng, self._round, passes=self.rounds)

    def _at_most(self, population: int) -> int:
        most = self.most_records
        if checks.count("population", population) > most:
            raise ValueError(
                f"population must be at most records + 1 = {most}, got {population!r}; "
                "raise records"
            )
        return int(population)

    def _round(self, population: int, rng: np.random.Generator) -> Iterator[Stage]:
        taking_part = self.client_rate == 1.0 or heads(rng, 1, self.client_rate).size > 0
        # a client that stays away gives the batch of one that has no records
        yield (
            heads(rng, population, self.record_rate)
            if taking_part
            else np.empty(0, dtype=np.int64),
        )
