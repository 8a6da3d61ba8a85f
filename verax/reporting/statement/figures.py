"""The two figures of a statement as SVG: no plotting library, and the colours of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree import ElementTree

from verax.privacy.guarantee import shown
from verax.privacy.pld.composition import LOWER, UPPER
from verax.reporting.statement import text
from verax.reporting.statement.facts import Facts

_Points = Sequence[tuple[float, float]]
_Ticks = Sequence[tuple[float, str]]
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 560, 400, 66, 24, 14, 52
# The smallest delta that an axis may begin at.
_SMALLEST = 1e-300
# Straight lines that replace one chord on a logarithmic scale.
_PIECES = 4


@dataclass(frozen=True)
class Axis:
    """One side of a figure: the values and pixels at its ends, its ticks and its title."""

    first: float
    last: float
    start: float
    end: float
    ticks: _Ticks
    title: str
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value; values outside the axis are moved to its end."""
        inside = min(max(value, self.first), self.last)
        if self.logarithmic:
            share = math.log(inside / self.first) / math.log(self.last / self.first)
        else:
            share = (inside - self.first) / (self.last - self.first)
        return self.start + share * (self.end - self.start)


def horizontal_axis(last: float, ticks: _Ticks, title: str) -> Axis:
    """An axis from 0 at the left to ``last`` at the right."""
    return Axis(0.0, last, _LEFT, _WIDTH - _RIGHT, ticks, title)


def vertical_axis(first: float, ticks: _Ticks, title: str, logarithmic: bool = False) -> Axis:
    """An axis from ``first`` at the bottom to 1 at the top."""
    return Axis(first, 1.0, _HEIGHT - _BOTTOM, _TOP, ticks, title, logarithmic)


class Figure:
    """An SVG element with two axes; what is drawn first lies below.

    ``description`` is read out to those who do not see the figure.
    """

    def __init__(self, name: str, title: str, description: str, x: Axis, y: Axis) -> None:
        self._x, self._y = x, y
        self._root = ElementTree.Element(
            "svg",
            {
                "viewBox": f"0 0 {_WIDTH} {_HEIGHT}",
                "role": "img",
                "aria-labelledby": f"{name}-title {name}-description",
                "xmlns": "http://www.w3.org/2000/svg",
            },
        )
        self._add("title", title, id=f"{name}-title")
        self._add("desc", description, id=f"{name}-description")
        for value, label in x.ticks:
            place = f"{x(value):.1f}"
            self._add("line", x1=place, x2=place, y1=y.start, y2=y.end, **{"class": "grid"})
            self._label(label, "middle", x=place, y=y.start + 19)
        for value, label in y.ticks:
            place = f"{y(value):.1f}"
            self._add("line", x1=x.start, x2=x.end, y1=place, y2=place, **{"class": "grid"})
            self._label(label, "end", x=x.start - 8, y=f"{y(value) + 4.5:.1f}")

    def _add(self, tag: str, content: str = "", **attributes: object) -> None:
        element = ElementTree.SubElement(
            self._root, tag, {name: str(value) for name, value in attributes.items()}
        )
        element.text = content or None

    def _label(self, words: str, anchor: str, **attributes: object) -> None:
        self._add("text", words, **{"text-anchor": anchor}, **attributes)

    def _path(self, tag: str, kind: str, points: _Points) -> None:
        places = " ".join(f"{self._x(a):.1f},{self._y(b):.1f}" for a, b in points)
        self._add(tag, points=places, **{"class": kind})

    def area(self, kind: str, points: _Points) -> None:
        """Draw a filled polygon."""
        self._path("polygon", kind, points)

    def line(self, kind: str, points: _Points) -> None:
        """Draw a line through points."""
        self._path("polyline", kind, points)

    def dot(self, x: float, y: float) -> None:
        """Mark a point."""
        places = {"cx": f"{self._x(x):.1f}", "cy": f"{self._y(y):.1f}"}
        self._add("circle", r="4.5", **places, **{"class": "mark"})

    def note(self, height: float, words: str) -> None:
        """Write at the right end, where both curves leave room."""
        places = {"x": f"{self._x.end - 8:.1f}", "y": f"{height:.1f}"}
        self._label(words, "end", **places, **{"class": "note"})

    def svg(self) -> str:
        """The element with the lines and the titles of its axes."""
        x, y = self._x, self._y
        corners = f"{x.start},{y.end} {x.start},{y.start} {x.end},{y.start}"
        self._add("polyline", points=corners, **{"class": "axis"})
        self._label(x.title, "middle", x=f"{(x.start + x.end) / 2:.0f}", y=_HEIGHT - 10)
        turn = f"translate(16 {(y.start + y.end) / 2:.0f}) rotate(-90)"
        self._label(y.title, "middle", transform=turn)
        return ElementTree.tostring(self._root, encoding="unicode")


def reach_figure(facts: Facts) -> str:
    """The share of members that an attacker can find, against false alarms."""
    share = [(value / 100.0, f"{value} %") for value in (0, 20, 40, 60, 80, 100)]
    y = vertical_axis(0.0, share, "members found")
    description = " ".join(text.reach_sentence(facts, one) for one in facts.reach)
    x = horizontal_axis(1.0, share, "false alarms")
    figure = Figure("reach", "What an attacker can reach", description, x, y)
    curve = facts.curve
    corners = zip(curve.alpha.tolist(), curve.beta.tolist(), strict=True)
    most = [(0.0, 0.0), *((a, 1.0 - b) for a, b in corners), (1.0, 1.0)]
    above = curve.above or curve
    corners = zip(above.alpha.tolist(), above.beta.tolist(), strict=True)
    least = [(a, max(1.0 - b, a)) for a, b in corners]
    figure.area("out", [*most, (0.0, 1.0)])
    figure.area("open", [*most, *reversed(least)])
    figure.area("known", [*least, (1.0, 1.0), (0.0, 0.0)])
    figure.line("blind", [(0.0, 0.0), (1.0, 1.0)])
    figure.line("lower", least)
    figure.line("upper", most)
    marked = facts.reach[1]
    figure.dot(marked.false_alarms, marked.most)
    percent = text.percent(marked.most, UPPER)
    figure.note(y.start - 12, f"{100 * marked.false_alarms:g} % false alarms: at most {percent}")
    return figure.svg()


def delta_figure(facts: Facts) -> str:
    """Delta against epsilon as a proved band, with the stated epsilon marked."""
    top, delta, bracket = facts.points[-1].epsilon, facts.delta, facts.epsilon
    reached = max(min(point.upper for point in facts.points), delta * 1e-3)
    powers = range(math.floor(math.log10(max(min(reached, delta / 10.0), _SMALLEST))), 1)
    every = max(1, -(-len(powers) // 8))
    written = [power for power in powers if power % every == 0]
    ticks = [(10.0**power, f"1e{power}" if power else "1") for power in written]
    y = vertical_axis(10.0 ** powers[0], ticks, "delta", logarithmic=True)
    x = horizontal_axis(top, [(value, f"{value:g}") for value in _round_steps(top)], "epsilon")
    least, most = shown(bracket.lower, LOWER), text.upper_bound(facts)
    description = f"At delta {delta!r} epsilon lies between {least} and {most}."
    figure = Figure(
        "spent", "Epsilon and delta", f"{description} The less delta, the more epsilon.", x, y
    )
    upper = chords([(point.epsilon, point.upper) for point in facts.points])
    lower = steps([(point.epsilon, point.lower) for point in facts.points])
    figure.area("out", [*upper, (top, 1.0), (0.0, 1.0)])
    figure.area("open", [*upper, *reversed(lower)])
    figure.line("lower", lower)
    figure.line("upper", upper)
    if bracket.upper <= top:
        figure.dot(bracket.upper, delta)
    figure.note(y.end + 20, f"epsilon {least} to {most} at delta {delta!r}")
    return figure.svg()


def chords(points: _Points) -> list[tuple[float, float]]:
    """Upper bounds on delta between points, as straight lines that are proved on any scale.

    Delta is convex in e^epsilon, the supremum of P(S) - e^epsilon Q(S) over events S: it lies below
    its chords.

    >>> chords([(0.0, 1.0), (1.0, 0.0)])[2]
    (0.5, 0.622...)
    """
    found = [points[0]]
    for (first, high), (last, low) in pairwise(points):
        width = last - first
        for share in (i / _PIECES for i in range(1, _PIECES)):
            # e^epsilon is no double beyond 700; the larger end is a bound, too
            inside = 0.0 < width < 700.0
            bend = math.expm1(share * width) / math.expm1(width) if inside else 0.0
            found.append((first + share * width, high + (low - high) * bend))
        found.append((last, high + (low - high)))
    return found


def steps(points: _Points) -> list[tuple[float, float]]:
    """Lower bounds on delta between points: delta falls, so the right point's bound holds.

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
