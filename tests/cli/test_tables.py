"""Tables in terminals of every width."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
from rich.console import Console

from verax.cli.tables import Table

ROWS = [("*", "balls-in-bins", "8192", "13.8695"), ("", "poisson", "64", "0.581234")]
HEADERS = ["", "sampler", "size of a batch", "noise multiplier"]


def drawn(table, width):
    console = Console(width=width, highlight=False, markup=False, record=True, file=io.StringIO())
    table.print(console)
    return console.export_text()


def filled(spare=()):
    table = Table(HEADERS, spare)
    for row in ROWS:
        table.add_row(*row)
    return table


@pytest.mark.parametrize("width", range(30, 120, 5))
def test_no_cell_is_ever_cut(width):
    text = drawn(filled(["size of a batch"]), width)
    assert "…" not in text
    kept = [i for i in range(1, 4) if not (i == 2 and "left out" in text)]
    for row in ROWS:
        assert re.search(r"\W+".join(re.escape(row[i]) for i in kept), text)


def test_a_table_that_fits_has_its_headers_in_one_line_and_lines_between_columns():
    assert "┃ size of a batch ┃ noise multiplier ┃" in drawn(filled(), 100)


def test_what_is_left_out_is_named_and_nothing_else_goes():
    text = drawn(filled(["size of a batch"]), 30)
    assert "left out in 30 columns: size of a batch" in " ".join(text.split())
    assert "8192" not in text
    assert "13.8695" in text


def test_a_table_that_never_fits_is_printed_whole_all_the_same():
    text = drawn(filled(), 10)
    assert "balls-in-bins" in text
    assert "0.581234" in text


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="a row must have 4 cells, got 1"):
        filled().add_row("one")


def in_terminal(columns, *words):
    """What a command writes to a terminal so wide."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    program = [sys.executable, "-c", "from verax.cli import main; main()", *words]
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "LINES", "NO_COLOR")
    }
    process = subprocess.Popen(
        program, stdout=theirs, stderr=subprocess.DEVNULL, env=env | {"TERM": "xterm"}
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # a terminal whose last writer is gone
            break
        if not part:
            break
        said += part
    os.close(ours)
    assert process.wait() == 0
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said.decode()).replace("\r", "")


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_plans_are_readable_in_a_terminal(columns):
    words = "plan --records 60000 --epsilon 1 --delta 1e-5 --epochs 10 --batch 8192,600"
    words += " --sampler poisson,shuffle"
    said = in_terminal(columns, *words.split())
    assert "…" not in said
    assert all(len(line) <= columns for line in said.splitlines())
    for word in ("poisson", "shuffle", "8192", "600", "1000", "1.415", "11.8"):
        assert word in said
    assert ("left out in 80 columns" in said) == (columns == 80)
