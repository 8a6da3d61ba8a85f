import builtins
from itertools import pairwise
from pathlib import Path

import pytest

from verax.reporting import figures


def test_without_matplotlib_one_line_says_how_to_get_it(monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ModuleNotFoundError, match=r"figures need matplotlib: pip install 'verax\[figures\]'"):
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
