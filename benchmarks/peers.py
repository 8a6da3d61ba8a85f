"""What the benchmarks ask of other accountants: one short function a question, libraries imported where they are used.

Every function builds its objects afresh, so nothing is remembered between two calls. ``run_apart``
asks one of them in a process of its own, for questions that may take too long or too much memory.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import dp_accounting


class Case(NamedTuple):
    """Poisson-subsampled Gaussian rounds, all alike, and the delta at which epsilon is asked."""

    noise: float
    rate: float
    steps: int
    delta: float


class Phase(NamedTuple):
    """A stretch of rounds with its own noise and rate."""

    noise: float
    rate: float
    steps: int


class Measured(NamedTuple):
    """What a process apart answered: the value, its CPU seconds without imports, its peak resident memory in MB."""

    value: Any
    seconds: float
    megabytes: float


def quiet() -> None:
    """Silence the peers' warnings: they would bury the tables."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def _event(noise: float, rate: float, steps: int) -> dp_accounting.DpEvent:
    import dp_accounting as dp

    return dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), steps)


def dp_pld(case: Case) -> float:
    """dp-accounting's PLD accountant (pessimistic, default grid, add-remove)."""
    from dp_accounting.pld import PLDAccountant

    return float(PLDAccountant().compose(_event(*case[:3])).get_epsilon(case.delta))


def dp_pld_optimistic(case: Case) -> float:
    """dp-accounting's lower estimate (losses rounded down, default grid)."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    one = pld.from_gaussian_mechanism(
        case.noise, pessimistic_estimate=False, sampling_prob=case.rate
    )
    return float(one.self_compose(case.steps).get_epsilon_for_delta(case.delta))


def dp_rdp(case: Case) -> float:
    """dp-accounting's Rényi accountant."""
    from dp_accounting.rdp import RdpAccountant

    return float(RdpAccountant().compose(_event(*case[:3])).get_epsilon(case.delta))


def opacus_rdp(case: Case) -> float:
    """Opacus's Rényi accountant, its default."""
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [case[:3]]
    return float(accountant.get_epsilon(delta=case.delta))


def dp_delta(noise: float, rate: float, steps: int, epsilon: float, *, pessimistic: bool) -> float:
    """delta(epsilon) of dp-accounting's loss distribution."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    one = pld.from_gaussian_mechanism(noise, pessimistic_estimate=pessimistic, sampling_prob=rate)
    return float(one.self_compose(steps).get_delta_for_epsilon(epsilon))


def dp_calibrate(
    rate: float, steps: int, epsilon: float, delta: float, within: tuple[float, float] | None = None
) -> float:
    """The least noise multiplier by dp-accounting's calibration, searched from its default or ``within`` a range."""
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    search = None if within is None else dp.ExplicitBracketInterval(*within)
    return float(
        dp.calibrate_dp_mechanism(
            PLDAccountant, lambda noise: _event(noise, rate, steps), epsilon, delta, search
        )
    )


def dp_phases(phases: Sequence[Phase], delta: float) -> float:
    """dp-accounting's PLD accountant on a composition of different rounds."""
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    event = dp.ComposedDpEvent([_event(*phase) for phase in phases])
    return float(PLDAccountant().compose(event).get_epsilon(delta))


def dp_group(case: Case, size: int) -> float:
    """dp-accounting on a group of records: a mixture of Gaussians with Binomial(size, rate) sensitivities."""
    from dp_accounting.pld import privacy_loss_distribution as pld
    from scipy.stats import binom

    hits = range(size + 1)
    one = pld.from_mixture_gaussian_mechanism(
        case.noise, list(hits), list(binom.pmf(hits, size, case.rate))
    )
    return float(one.self_compose(case.steps).get_epsilon_for_delta(case.delta))


def prv(phases: Sequence[Phase], delta: float, error: float) -> list[float]:
    """prv-accountant's lower bound, estimate and upper bound on epsilon."""
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    rounds = [
        PoissonSubsampledGaussianMechanism(sampling_probability=p.rate, noise_multiplier=p.noise)
        for p in phases
    ]
    steps = [p.steps for p in phases]
    accountant = PRVAccountant(
        rounds, eps_error=error, delta_error=delta / 1000, max_self_compositions=steps
    )
    return [float(side) for side in accountant.compute_epsilon(delta, steps)]


def verax_cases(cases: Sequence[Sequence[float]]) -> list[list[float]]:
    """verax's bracket on each case; here so that its memory can be measured in a process that imports nothing else."""
    from verax import Mechanism, Poisson

    brackets = []
    for noise, rate, steps, delta in cases:
        mechanism = Mechanism(Poisson(rate=rate, steps=int(steps)), noise_multiplier=noise)
        bracket = mechanism.guarantee().epsilon(delta=delta)
        brackets.append([bracket.lower, bracket.upper])
    return brackets


def _prv_from_json(phases: Sequence[Sequence[float]], delta: float, error: float) -> list[float]:
    return prv([Phase(noise, rate, int(steps)) for noise, rate, steps in phases], delta, error)


APART: dict[str, Callable[..., Any]] = {"prv": _prv_from_json, "verax_cases": verax_cases}


def run_apart(name: str, *arguments: Any, timeout: float) -> Measured | None:
    """Ask ``APART[name]`` in a fresh process; None when it takes longer than ``timeout`` seconds.

    Raises:
        RuntimeError: the process failed; the message is the last line it wrote.
    """
    command = [sys.executable, str(Path(__file__).resolve()), name, json.dumps(arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(lines[-1])
    return Measured(*json.loads(done.stdout.splitlines()[-1]))


def peak_megabytes() -> float:
    """Peak resident memory of this process.

    Read from VmHWM where there is one: ru_maxrss survives exec on Linux, so a child reports at
    least what its parent held when it was started.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1]) / 1024
    import resource

    unit = 1024 if sys.platform != "darwin" else 1024**2
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _main() -> None:
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    quiet()
    if name == "prv":
        import prv_accountant  # noqa: F401  (outside the clock, like every other import here)
    started = time.process_time()
    value = APART[name](*arguments)
    print(json.dumps([value, time.process_time() - started, peak_megabytes()]))


if __name__ == "__main__":
    _main()
