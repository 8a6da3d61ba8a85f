"""Numbers in README and docs: each is printed by the command, or stands in the file, that the page
names for it.

A comment before a table, a block of code or a paragraph says where its numbers come from:

    <!-- printed by: verax compare -z 0.5 --batches 100 --delta 1e-6 -->    the command is run, and
    must print them <!-- printed by, in several lines: ... -->                              the
    same, wherever in the output <!-- printed slowly by: ... -->
    the same, among the slow tests <!-- measured in: docs/study-mnist.csv -->
    they are values of the file, or means of it <!-- ..., but for "a column" -->
    of a table, all columns but that one <!-- file: counts.csv -->
    the block is a file that commands read

All numbers of a table's row must stand in one line of what is printed, and every line of a block of
code must be one; a sentence may round. Two commands are joined by &&; a row may then take a line of
each. A block that shows commands after ``$`` is checked without a comment.
"""

import ast
import contextlib
import csv
import io
import re
import shlex
import statistics
import textwrap
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest

from verax.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SCATTERED = "printed by, in several lines"
KINDS = f"{SCATTERED}|printed by|printed slowly by|measured in|file"
MARK = re.compile(rf"^ *<!-- ({KINDS}): (.+?)(, but for (\".+\"))? -->\n", re.MULTILINE)
NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?(?!\w|\.\d)",
    re.IGNORECASE,
)
SEEDS = (
    "seed",
    "accuracy",
    "seconds",
    "behind",
    "best",
    "epsilon lower",
    "epsilon upper",
    "epsilon of all upper",
)
_UNTIDY = "│┃|"


@dataclass(frozen=True)
class Claim:
    """What a page says comes from somewhere."""

    page: str
    line: int
    kind: str
    source: str
    block: str
    but_for: frozenset[str] = frozenset()
    """Columns of its table whose numbers come from elsewhere."""

    @property
    def is_table(self):
        return self.block.lstrip().startswith("|")

    @property
    def body(self):
        """The table's rows as text, without its header and those columns."""
        header, *body = rows(self.block)
        kept = [i for i, cell in enumerate(header) if cell.strip() not in self.but_for]
        return ["|".join(cells[i] for i in kept) for cells in body]

    def __str__(self):
        return f"{self.page}:{self.line}"


def block_after(text, start):
    """A fenced block, or all lines up to an empty one; an indented block goes on after empty
    lines.
    """
    rest = text[start:].lstrip("\n")
    if found := re.match(r" *```\w*\n(.*?)^ *```$", rest, re.MULTILINE | re.DOTALL):
        return "```\n" + found[1]
    return re.split(
        r"\n\s*\n(?!    )" if rest.startswith("    ") else r"\n\s*\n", rest, maxsplit=1
    )[0]


def claims_of(page):
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT))
    for mark in MARK.finditer(text):
        line = text[: mark.start()].count("\n") + 1
        but_for = frozenset(re.findall(r'"([^"]+)"', mark[4] or ""))
        yield Claim(name, line, mark[1], mark[2], block_after(text, mark.end()), but_for)


def sessions_of(page):
    """Commands after ``$`` and what is shown below them."""
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"^( *)\$ (verax .+)\n((?:\1(?!\$ ).+\n)+)", text, re.MULTILINE):
        block = "```\n" + textwrap.dedent(found[3])
        line = text[: found.start()].count("\n") + 1
        yield Claim(str(page.relative_to(ROOT)), line, "printed by", found[2], block)


CLAIMS = [claim for page in PAGES for claim in (*claims_of(page), *sessions_of(page))]


def numbers(text):
    """Numbers as text, without commas; ∞ is inf."""
    return [found.replace(",", "").lstrip("+") for found in NUMBER.findall(text)] + ["inf"] * len(
        re.findall(r"\binf\b|∞", text)
    )


def value(number):
    return float(number)


def rows(block):
    """Cells of a Markdown table, the header first."""
    found = [
        re.split(r"(?<!\\)\|", line.strip().strip("|"))
        for line in block.splitlines()
        if line.strip()
    ]
    return [cells for cells in found if not all(set(cell.strip()) <= set("-: ") for cell in cells)]


def tidy(line):
    """A line without the lines and the room between columns."""
    return " ".join(re.sub(f"[{_UNTIDY}]", " ", line).split())


def shows(line, printed):
    """Whether a line of a page is part of a printed one; ... stands for anything."""
    return re.search(".*".join(map(re.escape, line.split("..."))), printed) is not None


def printed(commands, folder):
    """What each of the commands, joined by &&, prints."""
    return [printed_by_one(command, folder) for command in commands.split(" && ")]


@cache
def printed_by_one(command, folder):
    """What a command prints on either stream, in a folder of its own."""
    said = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        patch.chdir(folder)
        patch.setattr("sys.argv", shlex.split(command))
        with contextlib.suppress(SystemExit):
            main()
    return said.getvalue()


def missing_from_print(claim, said):
    """Lines of the page that the commands do not print; a row may hold numbers of two lines of two
    commands.
    """
    lines = [text.splitlines() for text in said]
    if claim.block.startswith("```"):
        known = [tidy(line) for text in lines for line in text]
        wanted = [tidy(line) for line in claim.block.splitlines()[1:]]
        return [line for line in wanted if not any(shows(line, other) for other in known)]
    if claim.is_table and claim.kind != SCATTERED:
        counted = [[Counter(map(value, numbers(line))) for line in text] for text in lines]
        pairs = [
            one + two for some, others in combinations(counted, 2) for one in some for two in others
        ]
        known = [one for some in counted for one in some] + pairs
        return [
            row
            for row in claim.body
            if not any(Counter(map(value, numbers(row))) <= other for other in known)
        ]
    known = set(map(value, numbers("\n".join(said))))
    text = "\n".join(claim.body) if claim.is_table else claim.block
    return [number for number in numbers(text) if not is_rounded(number, known)]


def measured(path):
    """Numbers of a file; of a CSV file also the means over seeds."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".csv":
        return {value(number) for number in numbers(text)}
    table = list(csv.DictReader(io.StringIO(text)))
    groups = {}
    for row in table:
        groups.setdefault(tuple(v for k, v in row.items() if k not in SEEDS), []).append(
            float(row.get("accuracy", 0))
        )
    cells = {value(number) for row in table for cell in row.values() for number in numbers(cell)}
    return cells | {statistics.mean(group) for group in groups.values()}


def is_rounded(number, known):
    """Whether one of the known values rounds to the number, at the digits that it has."""
    digits = number.partition("e")[0].partition(".")[2]
    unit = 10.0 ** -len(digits) * (10.0 ** int(number.partition("e")[2] or 0))
    return any(abs(one - value(number)) <= 0.5001 * unit for one in known) or value(number) in known


def missing_from_file(claim):
    known = measured(ROOT / claim.source)
    text = "\n".join(claim.body) if claim.is_table else claim.block
    return [number for number in numbers(text) if not is_rounded(number, known)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that pages describe."""
    made = tmp_path_factory.mktemp("docs")
    for claim in CLAIMS:
        if claim.kind == "file":
            (made / claim.source).write_text(
                textwrap.dedent(claim.block.removeprefix("```\n")), encoding="utf-8"
            )
    return made


def of_kind(*kinds):
    return [pytest.param(claim, id=str(claim)) for claim in CLAIMS if claim.kind in kinds]


@pytest.mark.parametrize("claim", of_kind("printed by", SCATTERED))
def test_commands_print_what_the_pages_say(claim, folder):
    said = printed(claim.source, folder)
    assert not missing_from_print(claim, said), (
        f"{claim}: {claim.source} prints\n{chr(10).join(said)}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("claim", of_kind("printed slowly by"))
def test_slow_commands_print_what_the_pages_say(claim, folder):
    said = printed(claim.source, folder)
    assert not missing_from_print(claim, said), (
        f"{claim}: {claim.source} prints\n{chr(10).join(said)}"
    )


@pytest.mark.parametrize("claim", of_kind("measured in"))
def test_measured_numbers_stand_in_the_file(claim):
    assert not missing_from_file(claim), str(claim)


def test_a_page_that_says_something_else_is_noticed():
    said = "│ fixed │ zero-out │ 10.997 │ 10.998 │\n│ Poisson │ zero-out │ 1.9529 │ 1.9541 │\n"

    def missing(block):
        return missing_from_print(Claim("page", 1, "printed by", "", block), [said])

    table = "| batches | at least | at most |\n|---|---|---|\n"
    assert not missing(table + "| fixed | 10.997 | 10.998 |\n| Poisson | 1.9529 | 1.9541 |")
    assert missing(table + "| fixed | 10.997 | 1.9541 |")  # in two lines
    assert missing(table + "| fixed | 10.996 | 10.998 |")
    assert not missing("```\n| fixed | zero-out | 10.997\n...\n| Poisson | ... | 1.9541\n")
    assert missing("```\n| fixed | zero-out | 10.99 \n| fixed | replace | 10.997\n") == [
        "fixed replace 10.997"
    ]
    assert not missing("Fixed batches have at most 10.998.")
    assert missing("Fixed batches have at most 10.9.") == ["10.9"]
    assert not missing("Fixed batches have at most 11.0.")
    assert is_rounded("0.10", [0.0951])
    assert not is_rounded("0.10", [0.0949])


def examples(page):
    """Expressions of a page's Python blocks that carry numbers in a comment, with the code before
    them.
    """
    text = page.read_text(encoding="utf-8")
    before = ""
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if "torch" in block:
            continue
        lines = block.splitlines()
        for node in ast.parse(block).body:
            comment = lines[node.end_lineno - 1].rpartition("  # ")[2]
            shown = (
                [n for n in NUMBER.findall(comment) if "." in n]
                if "  # " in lines[node.end_lineno - 1]
                else []
            )
            source = ast.unparse(node)
            if isinstance(node, ast.Expr) and shown:
                yield before, source, shown
            before += source + "\n"


def test_results_in_the_comments_of_the_readme_are_what_comes_out():
    checked = 0
    for before, source, shown in examples(ROOT / "README.md"):
        names = {}
        exec(before, names)
        known = [value(number) for number in numbers(repr(eval(source, names)))]
        for number in shown:
            unit = 10.0 ** -len(number.partition(".")[2])
            assert any(abs(one - value(number)) < unit for one in known), (
                f"{source}: {number} is none of {known}"
            )
        checked += 1
    assert checked >= 4
