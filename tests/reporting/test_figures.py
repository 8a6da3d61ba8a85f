import builtins
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verax.reporting import figures


def test_without_matplotlib_one_line_says_how_to_get_it(monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(
        ModuleNotFoundError, match=r"figures need matplotlib: pip install 'verax\[figures\]'"
    ):
        figures.matplotlib()
    with pytest.raises(ModuleNotFoundError, match="figures need matplotlib"):
        figures.drawable(Path("a.png"))


def test_only_picture_names_are_drawable():
    pytest.importorskip("matplotlib")
    assert figures.drawable(Path("a.SVG")) == Path("a.SVG")
    with pytest.raises(ValueError, match=r"must end in \.png, \.svg, \.pdf, got 'a'"):
        figures.drawable(Path("a"))


def test_the_same_drawing_gives_the_same_bytes(tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("one", "two"):
        with figures.drawing(3.0, 2.0, tmp_path / f"{name}.png", tmp_path / f"{name}.svg") as axes:
            axes.plot([1, 2], [3, 4])
    for suffix in (".png", ".svg"):
        assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()


def test_the_palette_stays_apart_in_grey():
    """Colours used together differ in brightness as well as in hue."""

    def brightness(code):
        red, green, blue = (int(code[i : i + 2], 16) for i in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    used = sorted(brightness(figures.OKABE_ITO[name]) for name in ("black", "blue", "red", "sky"))
    assert min(b - a for a, b in pairwise(used)) > 15


@given(
    st.lists(
        st.tuples(st.floats(0.1, 10.0), st.floats(0.0, 5.0)),
        min_size=2,
        max_size=9,
        unique_by=lambda p: p[0],
    )
)
def test_a_staircase_covers_every_falling_curve_through_its_points(pairs):
    noises = sorted(noise for noise, _ in pairs)
    values = sorted((value for _, value in pairs), reverse=True)
    points = [(noise, value, value + 0.1) for noise, value in zip(noises, values, strict=True)]
    at, lower, upper = figures.staircase(points)
    assert at == sorted(at)
    for (left, _, high), (right, low, _) in pairwise(points):
        middle = 0.5 * (left + right)
        # flat between the points, at the safe side
        assert np.interp(middle, at, lower) == pytest.approx(low)
        assert np.interp(middle, at, upper) == pytest.approx(high)
