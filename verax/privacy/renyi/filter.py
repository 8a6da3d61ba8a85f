"""A privacy budget for phases that are chosen as one goes: a Rényi filter.

Composing loss distributions prices phases that were all declared in advance. If the noise, the
batch or the length of a phase depends on what earlier phases released, that sum is no longer a
theorem. A filter is: it fixes (epsilon, delta) first and refuses whatever would exceed them, before
it runs. The proofs are in docs/budget.md.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from verax import checks
from verax.description import describe, restore
from verax.display import visible
from verax.durable import (
    FIRST_HASH,
    append,
    chain_line,
    encode,
    lock_file,
    refuse_device,
    sync_directory,
)
from verax.mechanism import RELATIONS, Mechanism, Phases
from verax.privacy.guarantee import Bracket, format_bound
from verax.privacy.numerics import Array
from verax.privacy.numerics.roots import bisect, bracket, last_whole
from verax.privacy.numerics.rounding import OPS_8000, ulps, up
from verax.privacy.pld.composition import UPPER
from verax.privacy.renyi.moments import DIRECTIONS, log_delta_bound, log_moments
from verax.samplers.base import Sampler

if TYPE_CHECKING:
    from verax.reporting.statement import Statement

FORMAT = 1
IN_ADVANCE = "valid only for phases all declared before the first one began"
_HEDGE = {1.0: 0.70, 2.0**-0.5: 0.12, 0.5: 0.08, 2.0**-1.5: 0.05, 2.0**0.5: 0.05}
"""Weights of multiples of (order - 1) around the best for the first phase: 3 % of its rounds, and
later phases may have less noise, for which lower orders are better."""
_CANDIDATES = np.geomspace(0.2, 1024.0, 96)  # of order - 1
_MOST_ROUNDS, _MOST_NOISE = 10**12, 1e4


class OverBudget(ValueError):  # noqa: N818 - public name, says what would happen
    """The phase would exceed the budget, and must not run. Nothing was recorded.

    ``most_rounds`` is the largest length at which it would still fit (0 if none), ``least_noise``
    the noise multiplier at which all of it would (None if none does); what a sampler calls its
    length, steps or epochs, is in ``unit``.
    """

    def __init__(
        self, message: str, most_rounds: int, least_noise: float | None, unit: str
    ) -> None:
        super().__init__(message)
        self.most_rounds, self.least_noise, self.unit = most_rounds, least_noise, unit


class DamagedBudget(ValueError):  # noqa: N818 - public name, says what is wrong
    """The file is not what a budget wrote."""


class Budget:
    """At most ``epsilon`` at ``delta`` for all that is spent, whatever the choices depend on.

    Call :meth:`spend` with a phase before it runs. Noise, rates, clipping and lengths may depend on
    everything released before, and on public data; not on the private data in any other way (such
    as an accuracy measured on them).

    Args:
        epsilon: of the total.
        delta: of the total.
        relation: the neighbouring relation of all phases.
        group: how many records are protected together.
        orders: Rényi orders and their weights, fixed before anything runs; by default a few around
            the order that suits the first phase best.
        path: a new file in which every phase is recorded before it runs; :meth:`open` goes on from
            it.

    >>> from verax import Mechanism, Poisson
    >>> budget = Budget(epsilon=2.0, delta=1e-5)
    >>> budget.spend(Mechanism(Poisson(rate=0.01, steps=2000), noise_multiplier=2.0))
    >>> more = Mechanism(
    ...     Poisson(rate=0.02, steps=1000), noise_multiplier=1.2
    ... )  # chosen after looking at the model
    >>> budget.spend(more)
    Traceback (most recent call last):
    ...
    verax.privacy.renyi.filter.OverBudget: the phase would need epsilon 3.5... 278 steps of...
    >>> budget.most_rounds(more)
    278
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        *,
        relation: str = "add-remove",
        group: int = 1,
        orders: Mapping[float, float] | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        self.epsilon, self.delta = (
            checks.positive("epsilon", epsilon),
            checks.probability("delta", delta),
        )
        self.relation, self.group = (
            checks.choice("relation", relation, RELATIONS),
            checks.count("group", group),
        )
        self.orders = None if orders is None else _require_orders(orders)
        self.phases: tuple[Mechanism, ...] = ()
        self._spent: dict[str, Array] = {}
        self._lock = threading.Lock()
        self._path, self._size, self._head = (
            None if path is None else os.fspath(path),
            0,
            FIRST_HASH,
        )
        if self._path is not None:
            self._begin(self._path)

    # --- spending ---------------------------------------------------------------------------------

    def spend(self, phase: Mechanism) -> None:
        """Record a phase that is about to run, or raise :class:`OverBudget`.

        When this returns the phase may run, once.

        With a ``path`` the record is on disk when this returns: whatever crashes later, the phase
        is counted. A phase that is cut short has still been spent.
        """
        with self._lock:  # what is left must still be left when it is taken
            orders, after = self._with(phase)
            if self._log_delta(orders, after, self.epsilon) > math.log(self.delta):
                raise self._over(phase, orders, after)
            self._append({"phase": describe(phase), "orders": sorted(orders.items())})
            self.orders, self._spent, self.phases = orders, after, (*self.phases, phase)

    def fits(self, phase: Mechanism) -> bool:
        """Whether :meth:`spend` would accept the phase."""
        orders, after = self._with(phase)
        return self._log_delta(orders, after, self.epsilon) <= math.log(self.delta)

    def most_rounds(self, phase: Mechanism) -> int:
        """The largest number of steps at which the phase still fits.

        Epochs, where the sampler counts those.
        """
        one = _resized(phase, 1)
        orders, _ = self._with(one)
        each, target = log_moments(one, np.array(list(orders)), self.group), math.log(self.delta)

        def short(length: int) -> bool:  # moments are proportional to the length
            after = {name: self._spent.get(name, 0.0) + length * each[name] for name in DIRECTIONS}
            return self._log_delta(orders, after, self.epsilon) <= target

        low, high = map(int, bracket(lambda length: short(int(length)), 0, 1, limit=_MOST_ROUNDS))
        if high > _MOST_ROUNDS:
            return low
        good = last_whole(short, low, high)
        while good and not self.fits(_resized(phase, good)):  # rounding: spend has the last word
            good -= 1
        return good

    def least_noise(self, phase: Mechanism) -> float | None:
        """The smallest noise multiplier at which the whole phase fits, to 0.1 %, or None."""

        def too_little(noise: float) -> bool:
            return not self.fits(replace(phase, noise_multiplier=noise))

        start = max(phase.noise_multiplier, 1.0)
        bad, good = bracket(too_little, 0.01, start, limit=max(_MOST_NOISE, start))
        if good > max(_MOST_NOISE, start):
            return None
        return bisect(too_little, bad, good, rtol=1e-3, geometric=True)[1]

    # --- what was spent ---------------------------------------------------------------------------

    @property
    def used(self) -> float:
        """The epsilon at which a budget would be full by now.

        This is a gauge of what is left, not a guarantee of its own.

        What is guaranteed is ``epsilon``, fixed beforehand: a number read off afterwards depends on
        what was released.
        """
        return self._gauge(self.orders, self._spent) if self.orders and self.phases else 0.0

    def static(self) -> Bracket | None:
        """The tight epsilon of the phases so far, had all been declared in advance.

        None if there are no phases.
        """
        return (
            Phases(self.phases).guarantee(self.group).epsilon(self.delta) if self.phases else None
        )

    def pretended(self) -> Bracket | None:
        """The same with the lowest noise in every phase: the rule of 'Proactive DP', appendix E.1.

        It is proved if the lowest noise, the batches and the lengths were fixed in advance, and
        only which phases get more noise than that was decided on the way (docs/budget.md, section
        5).
        """
        if not self.phases:
            return None
        return Phases(pretend_lowest(self.phases)).guarantee(self.group).epsilon(self.delta)

    def statement(self, *, private: bool = True, unit: str = "record") -> Statement:
        """What a reviewer signs, in words, with the static figures for comparison.

        It can also be had as JSON and as a page.

        Args:
            private: False if somebody chose the seed of the phases' randomness.
            unit: who is protected: a "record", or a "client" if each phase draws and clips whole
                clients.
        """
        # reporting depends on this module, not the reverse
        from verax.reporting.statement import Statement

        notes = [
            f"Phases: {len(self.phases)}; a budget of epsilon "
            f"{format_bound(self.used, UPPER)} would be full by now."
        ]
        static, pretended = self.static(), self.pretended()
        if static is not None and pretended is not None:
            notes.append(
                f"For comparison, {IN_ADVANCE}: epsilon at most "
                f"{format_bound(static.upper, UPPER)} by composing loss "
                f"distributions, {format_bound(pretended.upper, UPPER)} if every "
                "phase had the lowest noise."
            )
        if self._path is not None:
            notes.append(f"Recorded in {visible(self._path)}; hash of its last line: {self._head}.")
        return Statement.of_budget(self, notes, private=private, unit=unit)

    # --- the filter -------------------------------------------------------------------------------

    def _with(self, phase: Mechanism) -> tuple[dict[float, float], dict[str, Array]]:
        """The orders, fixed by now, and the moments once the phase has run."""
        if not isinstance(phase, Mechanism):
            raise ValueError(f"phase must be a Mechanism, got {phase!r}; spend phases one by one")
        if phase.relation != self.relation:
            raise ValueError(
                f"phase must have the budget's relation {self.relation!r}, got {phase.relation!r}; "
                "all phases share one neighbouring relation"
            )
        orders = self.orders or self._suited(phase)
        new = log_moments(phase, np.array(list(orders)), self.group)
        after = {name: up(self._spent.get(name, 0.0) + new[name], ulps(4.0)) for name in DIRECTIONS}
        return orders, after

    def _suited(self, phase: Mechanism) -> dict[float, float]:
        """Orders for a budget that is used up by phases like this one.

        The first phase is public, so this is too.
        """
        one = log_moments(_resized(phase, 1), _CANDIDATES + 1.0, self.group)
        worst = np.maximum(one["remove"], one["add"])
        s = _CANDIDATES
        room = s * self.epsilon + s * np.log1p(1.0 / s) + np.log1p(s) + math.log(self.delta)
        with np.errstate(divide="ignore", invalid="ignore"):
            best = s[int(np.argmax(np.where(worst < np.inf, room / worst, -np.inf)))]
        return {1.0 + float(best) * multiple: weight for multiple, weight in _HEDGE.items()}

    def _log_delta(
        self, orders: Mapping[float, float], moments: Mapping[str, Array], epsilon: float
    ) -> float:
        s, log_w = np.array(list(orders)) - 1.0, np.log(list(orders.values()))
        return max(log_delta_bound(s, log_w - moments[name], epsilon) for name in DIRECTIONS)

    def _gauge(self, orders: Mapping[float, float], moments: Mapping[str, Array]) -> float:
        """The smallest epsilon at which these moments fit."""

        def exceeds(epsilon: float) -> bool:
            return self._log_delta(orders, moments, epsilon) > math.log(self.delta)

        low, high = bracket(exceeds, 0.0, 1.0, limit=1e9)
        return math.inf if high > 1e9 else bisect(exceeds, low, high, rtol=1e-6)[1]

    def _over(
        self, phase: Mechanism, orders: Mapping[float, float], after: Mapping[str, Array]
    ) -> OverBudget:
        unit, length = _length(phase.sampler)
        most, noise = self.most_rounds(phase), self.least_noise(phase)
        ways = f"{most} {unit} of it fit" if most else f"not even one of its {unit} fits"
        if noise is not None:
            ways += f", or noise_multiplier {format_bound(noise, UPPER, 4)} makes all {length} fit"
        needed, used = (
            format_bound(self._gauge(orders, after), UPPER),
            format_bound(self.used, UPPER),
        )
        return OverBudget(
            f"the phase would need epsilon {needed} in total, the budget is "
            f"{self.epsilon!r} at delta = "
            f"{self.delta!r}, of which {used} is used; {ways}",
            most,
            noise,
            unit,
        )

    # --- the file ---------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Budget:
        """Go on with a budget that was kept in a file.

        >>> import tempfile
        >>> from verax import Mechanism, Poisson
        >>> path = tempfile.mkdtemp() + "/run.budget"
        >>> Budget(1.0, 1e-5, path=path).spend(
        ...     Mechanism(Poisson(rate=0.01, steps=10), noise_multiplier=2.0)
        ... )
        >>> len(Budget.open(path).phases)
        1
        """
        name = os.fspath(path)
        refuse_device(name)
        try:
            with open(name, "rb") as file:
                lock_file(
                    file.fileno()
                )  # a line that somebody is writing is not one that was cut short
                return cls._read(name, file.read())
        except OSError as error:
            raise ValueError(
                f"path must be a budget that can be read, got {name!r}: {error.strerror}"
            ) from error

    @classmethod
    def _read(cls, name: str, content: bytes) -> Budget:
        """The budget that these bytes of the file say, which is made whole."""
        lines: list[bytes] = []
        head = FIRST_HASH
        for number, line in enumerate(content.splitlines(keepends=True), start=1):
            expected, chained = chain_line(line.rpartition(b',"hash":"')[0], head)
            if line.rstrip(b"\n") + b"\n" == expected:
                lines, head = [*lines, line.rstrip(b"\n")], chained
            elif line.endswith(b"\n") or number == 1:
                raise DamagedBudget(
                    f"{name}, line {number}: its hash does not fit: the file was edited or damaged"
                )
        if not lines:
            raise DamagedBudget(f"{name}, line 1: the file is empty")
        header, *entries = map(json.loads, lines)
        if header.get("verax_budget") != FORMAT:
            raise DamagedBudget(
                f"{name}, line 1: a verax budget of format {FORMAT} begins otherwise"
            )
        budget = cls(
            header["epsilon"], header["delta"], relation=header["relation"], group=header["group"]
        )
        for entry in entries:
            budget.orders = {float(order): float(weight) for order, weight in entry["orders"]}
            phase = _restore(entry["phase"])
            # it ran, whatever this version would say about it
            budget._spent = budget._with(phase)[1]
            budget.phases = (*budget.phases, phase)
        if budget.orders is None and header["orders"] is not None:
            budget.orders = {float(order): float(weight) for order, weight in header["orders"]}
        whole = b"".join(line + b"\n" for line in lines)
        if len(content) < len(whole):
            with open(name, "ab") as end:
                append(end.fileno(), whole[len(content) :])
        elif len(content) > len(
            whole
        ):  # a line was cut short: spend had not returned, so its phase did not run
            os.truncate(name, len(whole))
        budget._path, budget._size, budget._head = name, len(whole), head
        return budget

    def _begin(self, name: str) -> None:
        try:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except OSError as error:
            raise ValueError(
                f"path must be a new file in an existing directory, got {name!r}: "
                f"{error.strerror}; "
                "Budget.open goes on with an old one"
            ) from error
        orders = None if self.orders is None else sorted(self.orders.items())
        self._append(
            {
                "verax_budget": FORMAT,
                "epsilon": self.epsilon,
                "delta": self.delta,
                "relation": self.relation,
                "group": self.group,
                "orders": orders,
            }
        )
        sync_directory(name)

    def _append(self, content: dict[str, Any]) -> None:
        """One line more, forced to disk; the hash of each covers all before it."""
        if self._path is None:
            return
        line, head = chain_line(encode(content), self._head)
        _write(self._path, line, self._size)
        self._size, self._head = self._size + len(line), head


def _write(name: str, line: bytes, size: int) -> None:
    """Append to a file of this size, and force it to disk."""
    fd = os.open(name, os.O_WRONLY | os.O_APPEND)
    try:
        lock_file(fd)
        if os.fstat(fd).st_size != size:
            raise DamagedBudget(
                f"{name}: someone else wrote to it, or a write failed; Budget.open it again"
            )
        append(fd, line)
    finally:
        os.close(fd)


def pretend_lowest(phases: tuple[Mechanism, ...]) -> tuple[Mechanism, ...]:
    """The phases as if all had the lowest noise of any: 'Proactive DP', appendix E.1.

    >>> from verax import Mechanism, Poisson
    >>> first, then = Mechanism(Poisson(0.01, 100), 2.0), Mechanism(Poisson(0.02, 50), 1.0)
    >>> [phase.noise_multiplier for phase in pretend_lowest((first, then))]
    [1.0, 1.0]
    """
    lowest = min(phase.noise_multiplier for phase in phases)
    return tuple(replace(phase, noise_multiplier=lowest) for phase in phases)


def _require_orders(orders: Mapping[float, float]) -> dict[float, float]:
    found = {
        checks.real("orders", order): checks.positive("orders", weight)
        for order, weight in orders.items()
    }
    if (
        not found
        or any(not 1.0 < order < math.inf for order in found)
        or math.fsum(found.values()) > up(1.0, OPS_8000)
    ):
        raise ValueError(
            f"orders must map orders above 1 to weights that sum to at most 1, got {dict(orders)!r}"
        )
    return found


def _length(sampler: Sampler) -> tuple[str, int]:
    return sampler.repeats, int(getattr(sampler, sampler.repeats))


def _resized(phase: Mechanism, length: int) -> Mechanism:
    return replace(phase, sampler=phase.sampler.repeated(length))


def _restore(description: Any) -> Mechanism:
    phase = restore(description)
    if not isinstance(phase, Mechanism):
        raise DamagedBudget(f"a budget's entry must describe one phase, got {description!r}")
    return phase
