"""The two figures of a statement as SVG, drawn by hand: they need no plotting library and follow the page's colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from verax.privacy.guarantee import shown
from verax.privacy.pld.composition import LOWER, UPPER
from verax.reporting import words
from verax.reporting.facts import Facts

_Points = Sequence[tuple[float, float]]
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 560, 400, 66, 24, 14, 52
_MARKED = 1  # of the rates of false alarms, the one shown as a dot
_SMALLEST = 1e-300
_PIECES = 4  # straight lines that a chord is drawn by, on a logarithmic scale


@dataclass(frozen=True)
class Axis:
    """Where values lie on a side of the figure, and which of them are written there."""

    first: float
    last: float
    start: float
    end: float
    ticks: tuple[tuple[float, str], ...]
    title: str
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value; values outside are moved to the end."""
        inside = min(max(value, self.first), self.last)
        if self.logarithmic:
            share = math.log(inside / self.first) / math.log(self.last / self.first)
        else:
            share = (inside - self.first) / (self.last - self.first)
        return self.start + share * (self.end - self.start)


def across(first: float, last: float, ticks: Sequence[tuple[float, str]], title: str) -> Axis:
    """An axis from left to right."""
    return Axis(first, last, _LEFT, _WIDTH - _RIGHT, tuple(ticks), title)


def upwards(
    first: float,
    last: float,
    ticks: Sequence[tuple[float, str]],
    title: str,
    logarithmic: bool = False,
) -> Axis:
    """An axis from the bottom to the top."""
    return Axis(first, last, _HEIGHT - _BOTTOM, _TOP, tuple(ticks), title, logarithmic)


def path(x: Axis, y: Axis, points: _Points) -> str:
    """The places of points, as a polygon's or a line's attribute."""
    return " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)


def area(kind: str, x: Axis, y: Axis, points: _Points) -> str:
    """A filled polygon."""
    return f'<polygon class="{kind}" points="{path(x, y, points)}"/>'


def line(kind: str, x: Axis, y: Axis, points: _Points) -> str:
    """A line through points."""
    return f'<polyline class="{kind}" points="{path(x, y, points)}"/>'


def dot(x: Axis, y: Axis, at: tuple[float, float]) -> str:
    """A marked point."""
    return f'<circle class="mark" cx="{x(at[0]):.1f}" cy="{y(at[1]):.1f}" r="4.5"/>'


def note(x: Axis, height: float, text: str) -> str:
    """Words at the right end of a figure, where both curves leave room: below rising ones, above falling ones."""
    return f'<text class="note" text-anchor="end" x="{x.end - 8:.1f}" y="{height:.1f}">{escape(text)}</text>'


def figure(name: str, title: str, told: str, x: Axis, y: Axis, drawn: Sequence[str]) -> str:
    """A whole figure: a title and a description for those who do not see it, axes, and what is drawn."""
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="{name}-title {name}-told" '
        'xmlns="http://www.w3.org/2000/svg">',
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-told">{escape(told)}</desc>',
    ]
    for value, text in x.ticks:
        parts.append(
            f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{y.start}" y2="{y.end}"/>'
        )
        parts.append(
            f'<text text-anchor="middle" x="{x(value):.1f}" y="{y.start + 19}">{escape(text)}</text>'
        )
    for value, text in y.ticks:
        parts.append(
            f'<line class="grid" x1="{x.start}" x2="{x.end}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        )
        parts.append(
            f'<text text-anchor="end" x="{x.start - 8}" y="{y(value) + 4.5:.1f}">{escape(text)}</text>'
        )
    parts += drawn
    parts += [
        f'<polyline class="axis" points="{x.start},{y.end} {x.start},{y.start} {x.end},{y.start}"/>',
        f'<text text-anchor="middle" x="{(x.start + x.end) / 2:.0f}" y="{_HEIGHT - 10}">{escape(x.title)}</text>',
        f'<text text-anchor="middle" transform="translate(16 {(y.start + y.end) / 2:.0f}) rotate(-90)">'
        f"{escape(y.title)}</text>",
        "</svg>",
    ]
    return "".join(parts)


def reach(facts: Facts) -> str:
    """What an attacker can reach: the share of members found against false alarms, and what is out of reach."""
    share = [(value / 100.0, f"{value} %") for value in (0, 20, 40, 60, 80, 100)]
    x, y = across(0.0, 1.0, share, "false alarms"), upwards(0.0, 1.0, share, "members found")
    curve = facts.curve
    most = [
        (0.0, 0.0),
        *((float(a), 1.0 - float(b)) for a, b in zip(curve.alpha, curve.beta, strict=True)),
        (1.0, 1.0),
    ]
    above = curve.above or curve
    least = [
        (float(a), max(1.0 - float(b), float(a)))
        for a, b in zip(above.alpha, above.beta, strict=True)
    ]
    marked = facts.reach[_MARKED]
    text = (
        f"{100 * marked.false_alarms:g} % false alarms: at most {words.percent(marked.most, UPPER)}"
    )
    told = " ".join(words.finds(facts, one) for one in facts.reach)
    drawn = [
        area("out", x, y, [*most, (0.0, 1.0)]),
        area("open", x, y, [*most, *reversed(least)]),
        area("known", x, y, [*least, (1.0, 1.0), (0.0, 0.0)]),
        line("blind", x, y, [(0.0, 0.0), (1.0, 1.0)]),
        line("lower", x, y, least),
        line("upper", x, y, most),
        dot(x, y, (marked.false_alarms, marked.most)),
        note(x, y.start - 12, text),
    ]
    return figure("reach", "What an attacker can reach", told, x, y, drawn)


def spent(facts: Facts) -> str:
    """Delta against epsilon, as a band between what is proved on both sides, with what is stated marked."""
    top = facts.points[-1].epsilon
    reached = max(min(point.upper for point in facts.points), facts.delta * 1e-3)
    powers = range(math.floor(math.log10(max(min(reached, facts.delta / 10.0), _SMALLEST))), 1)
    every = max(1, -(-len(powers) // 8))
    ticks = [
        (10.0**power, f"1e{power}" if power else "1") for power in powers if power % every == 0
    ]
    x = across(0.0, top, [(value, f"{value:g}") for value in _round_steps(top)], "epsilon")
    y = upwards(10.0 ** powers[0], 1.0, ticks, "delta", logarithmic=True)
    upper = chords([(point.epsilon, point.upper) for point in facts.points])
    lower = steps([(point.epsilon, point.lower) for point in facts.points])
    bracket = facts.epsilon
    least, most = shown(bracket.lower, LOWER), words.most(facts)
    told = f"At delta {facts.delta!r} epsilon lies between {least} and {most}. The less delta, the more epsilon."
    drawn = [
        area("out", x, y, [*upper, (top, 1.0), (0.0, 1.0)]),
        area("open", x, y, [*upper, *reversed(lower)]),
        line("lower", x, y, lower),
        line("upper", x, y, upper),
        *([dot(x, y, (bracket.upper, facts.delta))] if bracket.upper <= top else []),
        note(x, y.end + 20, f"epsilon {least} to {most} at delta {facts.delta!r}"),
    ]
    return figure("spent", "Epsilon and delta", told, x, y, drawn)


def chords(points: _Points) -> list[tuple[float, float]]:
    """Epsilons and upper bounds on delta, with enough between them that straight lines are proved on any scale.

    Delta is convex in e^epsilon, the supremum of P(S) - e^epsilon Q(S) over events S: it lies below
    its chords.

    >>> chords([(0.0, 1.0), (1.0, 0.0)])[2]
    (0.5, 0.622...)
    """
    found = [points[0]]
    for (first, high), (last, low) in pairwise(points):
        for i in range(1, _PIECES + 1):
            share = i / _PIECES
            bend = (
                math.expm1(share * (last - first)) / math.expm1(last - first)
                if 0.0 < last - first < 700.0
                else 0.0
            )
            found.append(
                (
                    first + share * (last - first),
                    high + (low - high) * (bend if i < _PIECES else 1.0),
                )
            )
    return found


def steps(points: _Points) -> list[tuple[float, float]]:
    """Epsilons and lower bounds on delta, which falls: between two points it is at least the lower bound of the right.

    >>> steps([(0.0, 1.0), (1.0, 0.5)])
    [(0.0, 1.0), (0.0, 0.5), (1.0, 0.5)]
    """
    found = [points[0]]
    for (first, _), (last, low) in pairwise(points):
        found += [(first, low), (last, low)]
    return found


def _round_steps(top: float) -> list[float]:
    """About five round numbers from 0 up to at most ``top``."""
    size = 10.0 ** math.floor(math.log10(top / 5.0))
    step = next(size * times for times in (1, 2, 5, 10) if size * times >= top / 5.0)
    return [float(f"{i * step:.12g}") for i in range(int(top / step + 1e-9) + 1)]
