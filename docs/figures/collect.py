"""Draw the figures of the gallery: python docs/figures/collect.py [paper ...]; six minutes."""

import re
import sys
import tempfile
from itertools import count
from pathlib import Path

import matplotlib as mpl  # noqa: TID253 - a script, not part of `import verax`

from verax.papers import PAPERS, reproduce

HERE = Path(__file__).parent
LARGEST = 150_000  # bytes: the figures are kept in the repository


def small(drawing: str) -> str:
    """The same drawing in fewer bytes: coordinates to a tenth of a point, each style said once."""
    drawing = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", drawing, flags=re.DOTALL)
    drawing = re.sub(
        r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), drawing
    )
    drawing = re.sub(r">\s+<", "><", re.sub(r"\s+", " ", drawing))
    return _names(_styles(drawing)).strip() + "\n"


def _styles(drawing: str) -> str:
    """Styles as classes, since a figure repeats them; one class for marks in a row."""
    numbers = count()
    short = {
        style: f"s{next(numbers)}"
        for style in dict.fromkeys(re.findall(r' style="([^"]*)"', drawing))
    }
    drawing = re.sub(r' style="([^"]*)"', lambda found: f' class="{short[found[1]]}"', drawing)
    sheet = "".join(f".{name}{{{style}}}" for style, name in short.items())
    return drawing.replace("</style>", sheet + "</style>", 1)


def _names(drawing: str) -> str:
    """Drop names that nothing refers to, and groups without a purpose; shorten the others."""
    numbers = count()
    refers = r'(href="|url\()#([\w-]+)'
    short = {name: f"n{next(numbers)}" for _, name in dict.fromkeys(re.findall(refers, drawing))}
    drawing = re.sub(
        r' id="([^"]+)"',
        lambda found: f' id="{short[found[1]]}"' if found[1] in short else "",
        drawing,
    )
    drawing = re.sub(refers, lambda found: f"{found[1]}#{short[found[2]]}", drawing).replace(
        "xlink:href=", "href="
    )
    before = ""
    while before != drawing:
        before, drawing = drawing, re.sub(r"<g>((?:(?!</?g\b).)*)</g>", r"\1", drawing)
    return re.sub(r'(?:<use [^>]* class="(s\d+)"/>)(?:<use [^>]* class="\1"/>)+', _row, drawing)


def _row(marks: re.Match[str]) -> str:
    """Marks of one class as a group that has the class."""
    return f'<g class="{marks[1]}">' + marks[0].replace(f' class="{marks[1]}"', "") + "</g>"


def collect(paper: str) -> None:
    """Reproduce one paper and keep its figures as docs/figures/PAPER-figure-N.svg."""
    with tempfile.TemporaryDirectory() as folder, mpl.rc_context({"svg.fonttype": "none"}):
        reproduce(paper, Path(folder))
        for path in sorted(Path(folder).glob("*.svg")):
            text = small(path.read_text(encoding="utf-8"))
            if len(text.encode()) > LARGEST:
                sys.exit(
                    f"{paper} {path.name} takes {len(text.encode())} bytes, more than {LARGEST}"
                )
            (HERE / f"{paper}-{path.name}").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:] or PAPERS:
        collect(name)
