"""Every library function that a bound trusts, on the domain where it is used, against 40-digit
arithmetic.

The allowances are those of docs/proofs.md, section 6. Errors are in units of round-off, 2^-53.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import fft, special

UNIT = 2.0**-53
NORMAL = mpmath.mpf(2.0**-1022)
LARGEST = mpmath.mpf(1.7976931348623157e308)

Function = Callable[[np.ndarray], np.ndarray]
Exact = Callable[[mpmath.mpf], mpmath.mpf]

ELEMENTARY = 4.0  # exp, expm1, log, log1p, sin, cos, sqrt, arcsinh, logaddexp, expit: relative
ERFCX = 16.0  # relative
NDTR = 4.0  # absolute, and 1 + x^2 times as much relatively
NDTRI = 16.0  # relative
# 1 + x^2 times as much relatively; scipy 1.13 to 1.15 need 6.6, scipy 1.17 needs 1.5
LOG_NDTR = 8.0
LOG_GAMMA = 16.0  # relative to 1 + |log gamma|
COMPLEX = 8.0  # logarithms and exponentials of complex numbers: relative
FFT = 8.0  # times log2 of the length, of the sum of the moduli


def neighbours(*places: float) -> list[float]:
    """Where a function's code changes its branch, and the doubles on either side."""
    return [
        y for x in places for y in (math.nextafter(x, -math.inf), x, math.nextafter(x, math.inf))
    ]


def sizes(low: float, high: float, count: int = 150) -> list[float]:
    return np.geomspace(low, high, count).tolist()


def negative(values: Sequence[float]) -> list[float]:
    return [-v for v in values]


def even(low: float, high: float, count: int = 200) -> list[float]:
    return np.linspace(low, high, count).tolist()


def worst(
    found: np.ndarray, points: Sequence[float], exact: Exact, absolute: bool = False
) -> float:
    """The largest error in units, relative unless ``absolute``, of results that are normal
    doubles.
    """
    most = 0.0
    with mpmath.workdps(40):
        for x, y in zip(points, found.tolist(), strict=True):
            truth = exact(mpmath.mpf(x))
            if absolute or NORMAL <= abs(truth) <= LARGEST:
                most = max(
                    most, float(abs(mpmath.mpf(y) - truth) / (1 if absolute else abs(truth))) / UNIT
                )
    return most


def scalar(function: Callable[[float], float]) -> Function:
    return lambda x: np.array([function(v) for v in x.tolist()])


# --- elementary functions, of numpy (by vector instructions) and of math (one at a time) ----------


def log_add(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.log1p(mpmath.exp(x)) if x < 0 else x + mpmath.log1p(mpmath.exp(-x))


def logistic(x: mpmath.mpf) -> mpmath.mpf:
    return 1 / (1 + mpmath.exp(-x))


TINY, HUGE = 5e-324, 1.7e308
REAL = even(-745.0, 709.78) + sizes(TINY, 709.0) + negative(sizes(TINY, 745.0))
REAL += neighbours(
    0.5 * math.log(2.0), 1.5 * math.log(2.0), 0.5, 1.0, -0.5, -1.0, -708.3964, 709.782, 0.0
)
POSITIVE = (
    sizes(TINY, HUGE, 400)
    + [1.0 + s for s in sizes(1e-16, 1.0)]
    + [1.0 - s for s in sizes(1e-16, 0.99)]
)
POSITIVE += neighbours(0.5, math.sqrt(0.5), 1.0, math.sqrt(2.0), 2.0, 2.0**-1022)
ABOVE_MINUS_ONE = negative(sizes(TINY, 1.0 - UNIT, 300)) + sizes(TINY, HUGE, 300)
ABOVE_MINUS_ONE += neighbours(
    math.sqrt(0.5) - 1.0, math.sqrt(2.0) - 1.0, -0.5, 0.5, 2.0**-29, 2.0**-54
)

FUNCTIONS: dict[str, tuple[Function, Exact, list[float]]] = {
    "np.exp": (np.exp, mpmath.exp, REAL),
    "math.exp": (scalar(math.exp), mpmath.exp, REAL),
    "np.expm1": (np.expm1, mpmath.expm1, REAL),
    "math.expm1": (scalar(math.expm1), mpmath.expm1, REAL),
    "np.log": (np.log, mpmath.log, POSITIVE),
    "math.log": (scalar(math.log), mpmath.log, POSITIVE),
    "np.log1p": (np.log1p, mpmath.log1p, ABOVE_MINUS_ONE),
    "math.log1p": (scalar(math.log1p), mpmath.log1p, ABOVE_MINUS_ONE),
    "np.sqrt": (np.sqrt, mpmath.sqrt, POSITIVE),
    "math.sqrt": (scalar(math.sqrt), mpmath.sqrt, POSITIVE),
    "np.sin": (np.sin, mpmath.sin, even(0.0, math.pi / 2.0) + sizes(TINY, 1.0)),
    "np.cos": (np.cos, mpmath.cos, even(0.0, 1.57)),
    "np.logaddexp": (lambda x: np.logaddexp(0.0, x), log_add, REAL),
    "special.expit": (special.expit, logistic, REAL),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementary_functions(name):
    function, exact, points = FUNCTIONS[name]
    assert worst(function(np.array(points)), points, exact) <= ELEMENTARY


@given(st.floats(-745.0, 709.0), st.floats(TINY, HUGE), st.floats(-1.0 + UNIT, HUGE))
def test_elementary_functions_anywhere(x, positive, above):
    values = {id(REAL): x, id(POSITIVE): positive, id(ABOVE_MINUS_ONE): above}
    for name, (function, exact, points) in FUNCTIONS.items():
        if id(points) in values:
            point = values[id(points)]
            assert worst(function(np.array([point])), [point], exact) <= ELEMENTARY, name


def test_results_below_the_normal_doubles_err_by_one_of_the_smallest():
    x = np.linspace(-744.9, -708.4, 200)
    with mpmath.workdps(40):
        for v, one, other in zip(
            x.tolist(), np.exp(x).tolist(), map(math.exp, x.tolist()), strict=True
        ):
            assert max(abs(mpmath.exp(v) - one), abs(mpmath.exp(v) - other)) <= 1.1 * TINY


def test_results_beyond_the_doubles_are_0_or_infinite():
    with np.errstate(over="ignore"):
        assert np.exp([-746.0, -1e308, 710.0]).tolist() == [0.0, 0.0, math.inf]
        assert np.expm1([-746.0, -1e308, 710.0]).tolist() == [-1.0, -1.0, math.inf]


# --- the normal distribution ----------------------------------------------------------------------


def scaled_erfc(x: mpmath.mpf) -> mpmath.mpf:
    if x < 1000:
        with mpmath.workdps(60):
            return mpmath.exp(x * x) * mpmath.erfc(x)
    terms = [mpmath.mpf(1)]
    for k in range(1, 8):
        terms.append(-terms[-1] * (2 * k - 1) / (2 * x * x))
    return mpmath.fsum(terms) / (x * mpmath.sqrt(mpmath.pi))


def normal_cdf(x: mpmath.mpf) -> mpmath.mpf:
    with mpmath.workdps(60):
        return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def log_normal_cdf(x: mpmath.mpf) -> mpmath.mpf:
    with mpmath.workdps(60):
        if x > 0:
            return mpmath.log1p(-normal_cdf(-x))
        y = -x / mpmath.sqrt(2)
        return mpmath.log(scaled_erfc(y) / 2) - y * y


def test_erfcx():
    points = (
        sizes(TINY, 1e307, 400)
        + even(0.0, 60.0, 500)
        + neighbours(0.5, 1.0, 4.0, 12.0, 26.0, 50.0, 5e7)
    )
    assert worst(special.erfcx(np.array(points)), points, scaled_erfc) <= ERFCX


@given(st.floats(0.0, 1e300))
def test_erfcx_anywhere(x):
    assert worst(special.erfcx(np.array([x])), [x], scaled_erfc) <= ERFCX


TAIL = even(-37.5, 9.0, 700) + sizes(TINY, 37.0) + negative(sizes(TINY, 37.0))
TAIL += neighbours(-math.sqrt(2.0), -1.0, 0.0, 1.0, math.sqrt(2.0), -math.sqrt(0.5), -8.0, -26.0)


def test_ndtr():
    found = special.ndtr(np.array(TAIL))
    assert worst(found, TAIL, normal_cdf, absolute=True) <= NDTR
    for x, y in zip(TAIL, found.tolist(), strict=True):
        assert worst(np.array([y]), [x], normal_cdf) <= NDTR * (1.0 + x * x), x


def test_ndtr_beyond_the_normal_doubles_is_between_0_and_one_of_them():
    found = special.ndtr(np.array([*even(-60.0, -37.6), -1e308]))
    assert ((found >= 0.0) & (found <= 2.0**-1022)).all()
    assert special.ndtr(np.array([9.0, 40.0, 1e308])).tolist() == [1.0, 1.0, 1.0]


@given(st.floats(-37.5, 37.5))
def test_ndtr_anywhere(x):
    assert worst(special.ndtr(np.array([x])), [x], normal_cdf) <= NDTR * (1.0 + x * x)


def test_log_ndtr():
    points = (
        TAIL
        + negative(sizes(37.0, 1e8))
        + even(9.0, 37.0)
        + neighbours(-5.0, -14.0, -20.0, 5.0, 6.0)
    )
    found = special.log_ndtr(np.array(points))
    for x, y in zip(points, found.tolist(), strict=True):
        assert worst(np.array([y]), [x], log_normal_cdf) <= LOG_NDTR * (1.0 + min(x * x, 1e4)), x


def test_ndtri():
    points = sizes(TINY, 0.5, 500) + [1.0 - s for s in sizes(UNIT, 0.5, 300)]
    points += neighbours(math.exp(-2.0), 1.0 - math.exp(-2.0), math.exp(-32.0))
    found = special.ndtri(np.array(points))
    with mpmath.workdps(60):
        for p, y in zip(points, found.tolist(), strict=True):
            if p == 0.5:
                assert y == 0.0
                continue
            x = mpmath.mpf(y)
            for _ in range(2):  # Newton's steps to the exact quantile
                x -= (normal_cdf(x) - p) / mpmath.npdf(x)
            assert abs(normal_cdf(x) / p - 1) < mpmath.mpf("1e-25")
            assert abs(x - y) <= NDTRI * UNIT * abs(x), p


# --- gamma, complex numbers, Fourier transforms ---------------------------------------------------


@pytest.mark.parametrize(
    "function", [scalar(math.lgamma), special.gammaln], ids=["math.lgamma", "special.gammaln"]
)
def test_log_gamma_of_halves_up_to_300(function):
    points = np.arange(1.0, 600.0) / 2.0
    with mpmath.workdps(40):
        for x, y in zip(points.tolist(), function(points).tolist(), strict=True):
            truth = mpmath.loggamma(x)
            assert abs(y - truth) <= LOG_GAMMA * UNIT * (1 + abs(truth)), x


def test_complex_logarithms_and_exponentials():
    rng = np.random.default_rng(0)
    moduli = np.concatenate(
        [np.exp(rng.uniform(-700.0, 0.0, 300)), 1.0 - np.geomspace(1e-16, 0.9, 300)]
    )
    turns = np.concatenate([rng.uniform(-math.pi, math.pi, 300), np.geomspace(1e-18, 3.0, 300)])
    z = moduli * np.exp(1j * turns)
    angles = np.concatenate([rng.uniform(-4.0, 4.0, 300), rng.uniform(-1e8, 1e8, 300)])
    far = rng.uniform(-700.0, 0.0, 600) + 1j * angles
    with mpmath.workdps(40):
        for function, exact, points in ((np.log, mpmath.log, z), (np.exp, mpmath.exp, far)):
            for x, y in zip(points.tolist(), function(points).tolist(), strict=True):
                truth = exact(mpmath.mpc(x))
                assert abs(mpmath.mpc(y) - truth) <= COMPLEX * UNIT * abs(truth), (function, x)


def pmfs(n: int) -> list[np.ndarray]:
    """Vectors with sum 1: even, a few points, a bell, an exponential."""
    rng, k = np.random.default_rng(n), np.arange(float(n))
    few = np.zeros(n)
    few[rng.integers(0, n, 5)] = 1.0
    shapes = [
        rng.random(n),
        few,
        np.exp(-0.5 * ((k - n / 2.0) / (n / 50.0 + 1.0)) ** 2),
        np.exp(-50.0 * k / n),
    ]
    return [shape / shape.sum() for shape in shapes]


def test_fourier_transforms_of_a_few_points_agree_with_40_digits():
    n = 60
    with mpmath.workdps(40):
        roots = [mpmath.expjpi(mpmath.mpf(-2 * k) / n) for k in range(n)]
        for pmf in pmfs(n):
            for k, y in enumerate(fft.rfft(pmf).tolist()):
                truth = mpmath.fsum(
                    mpmath.mpf(p) * roots[k * j % n] for j, p in enumerate(pmf.tolist())
                )
                assert abs(mpmath.mpc(y) - truth) <= FFT * UNIT * math.log2(n)


@pytest.mark.skipif(
    np.finfo(np.longdouble).eps > 1e-18, reason="no floats wider than a double to compare with"
)
@pytest.mark.parametrize("n", [16, 1024, 5**5, fft.next_fast_len(10**5, real=True), 2**18])
def test_fourier_transforms_agree_with_wider_floats(n):
    """The same transform in 64 bits or more, whose own error is a two-thousandth of what is
    allowed.
    """
    for pmf in pmfs(n):
        wide = fft.rfft(pmf.astype(np.longdouble))
        assert float(np.abs(fft.rfft(pmf) - wide).max()) <= FFT * UNIT * math.log2(n)
        narrow = wide.astype(np.complex128)
        back = fft.irfft(narrow, n) - fft.irfft(narrow.astype(np.clongdouble), n)
        allowed = FFT * UNIT * math.log2(n) * 2.0 / n * float(np.abs(wide).sum())
        assert float(np.abs(back).max()) <= allowed


# --- the list is complete -------------------------------------------------------------------------

ROOT = Path(__file__).parents[3]
STEERING = {
    "betainc",
    "betainccinv",
    "betaincinv",
    "i0e",
    "logsumexp",
    "softmax",
    "wrightomega",
    "xlogy",
}
"""Used for where to look, or in simulations with a margin of their own (docs/proofs.md, section 6).
"""


def test_no_special_function_is_used_that_the_list_does_not_name():
    used: set[str] = set()
    for room in ("privacy", "auditing", "planning", "samplers"):
        for file in (ROOT / "verax" / room).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            used |= set(re.findall(r"\bspecial\.([a-z0-9_]+)\(", text))
            for names in re.findall(r"from scipy\.special import (.+)", text):
                used |= {name.strip() for name in names.split(",")}
            # a programme whose answer is checked before it counts (docs/shuffle.md, lemma S4)
            text = text.replace("from scipy.optimize import linprog", "")
            assert not re.search(
                r"^\s*(from|import) scipy.*(stats|integrate|optimize)", text, re.MULTILINE
            ), file
    assert used <= {"erfcx", "expit", "gammaln", "log_ndtr", "ndtr", "ndtri"} | STEERING
    listed = (ROOT / "docs" / "proofs.md").read_text(encoding="utf-8").split("## 6.")[1]
    assert all(f"`{name}`" in listed for name in used)
