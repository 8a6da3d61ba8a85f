"""The documentation: its examples run, its links lead somewhere, its site builds without a
warning.
"""

import contextlib
import doctest
import io
import os
import re
import shutil
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RUN = ["index", "tutorial", "choosing-a-sampler", "pitfalls", "from-opacus", "from-dp-accounting"]
OTHERS = ("# Opacus", "# dp-accounting")  # how examples of other libraries begin
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
LARGEST_FIGURE = 150_000


def blocks(page):
    """Language, text and place of every fenced block of a page."""
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        yield found[2], textwrap.dedent(found[3]), text[: found.start()].count("\n") + 1


def console(names, text, where):
    """Run an interactive example in a page's own names; what it prints must be what the page
    says.
    """
    test = doctest.DocTestParser().get_doctest(text, names, where, where, 0)
    test.globs = names  # the parser copies them; later blocks need what this one defines
    said = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=said.write, clear_globs=False)
    assert not runner.failures, said.getvalue()
    return len(test.examples)


def shell(text, folder):
    """Run the verax commands of a block."""
    ran = 0
    for line in text.splitlines():
        if line.startswith("verax "):
            program = "import sys; from verax.cli import main; sys.argv[0] = 'verax'; main()"
            command = [sys.executable, "-c", program, *line.partition("#")[0].split()[1:]]
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=600, check=False
            )
            assert done.returncode == 0, f"{line}: {done.stderr}"
            ran += 1
    return ran


@pytest.mark.parametrize("name", RUN)
def test_the_examples_run(name, tmp_path, monkeypatch):
    page = DOCS / f"{name}.md"
    if "import torch" in page.read_text(encoding="utf-8"):
        pytest.importorskip("torch").set_num_threads(1)
        pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    names, ran = {"__name__": "__main__"}, 0
    for language, text, line in blocks(page):
        if text.startswith(OTHERS):
            continue
        if language == "python":
            with contextlib.redirect_stdout(said := io.StringIO()):
                exec(compile("\n" * line + text, str(page), "exec"), names)
            ran += 1
        elif language == "text":  # what the block before it prints; ... stands for what varies
            got = said.getvalue()
            assert doctest.OutputChecker().check_output(text, got, doctest.ELLIPSIS), (
                f"{page.name}, line {line}: {got}"
            )
        elif language == "pycon":
            ran += console(names, text, f"{page.name}, line {line}")
        elif language == "sh":
            ran += shell(text, tmp_path)
    assert ran > 0
    if name == "tutorial":
        assert names["accuracy"] > 0.8
        assert names["shuffled"].refuted


def test_an_example_that_is_wrong_is_noticed():
    with pytest.raises(AssertionError, match="Expected"):
        console({}, ">>> 1 + 1\n3\n", "here")


def test_the_table_of_pitfalls_says_what_its_examples_print():
    text = (DOCS / "pitfalls.md").read_text(encoding="utf-8")
    printed = [
        float(n)
        for n in re.findall(r"\d+\.\d+", "".join(b for kind, b, _ in blocks(DOCS / "pitfalls.md")))
    ]
    rows = [
        line.split("|")[4]
        for line in text.splitlines()
        if re.match(r"\| ?\d* ?\|.*\| [\d.]+ \|", line)
    ]
    assert len(rows) == 15
    for sense, number in re.findall(r"(at least|at most) ([\d.]+)", " ".join(rows)):
        unit = 10.0 ** -len(number.partition(".")[2])
        gaps = [n - float(number) if sense == "at least" else float(number) - n for n in printed]
        assert any(-1e-9 <= gap < unit for gap in gaps), f"{sense} {number}"


def anchors(page):
    """The anchors of a page, made from its headings as GitHub does."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page):
    """Targets of the links and images of a page, those in code left out."""
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    return re.findall(r"\]\(([^)\s]+)\)", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert target.is_relative_to(ROOT)
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {link}"


def test_figures_are_small_and_shown():
    shown = set(links(DOCS / "gallery.md"))
    kept = sorted((DOCS / "figures").glob("*.svg"))
    assert kept
    for figure in kept:
        assert figure.stat().st_size <= LARGEST_FIGURE, figure.name
        assert f"figures/{figure.name}" in shown, figure.name


@pytest.mark.parametrize(
    "package",
    [
        "verax",
        "verax.samplers",
        "verax.planning",
        "verax.training",
        "verax.auditing",
        "verax.federated",
        "verax.federated.flower",
        "verax.randomness",
    ],
)
def test_public_names_are_in_the_reference(package):
    listed = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    named = {line.rpartition(".")[2] for line in re.findall(r"^::: (\S+)$", listed, re.MULTILINE)}
    public = {
        name
        for name in import_module(package).__all__
        if not name.startswith("__") and not name.isupper()
    }
    aliases = {"calibrate", "Indices"}  # a module, of which all functions are listed; a type
    assert public - aliases <= named, f"missing in docs/api: {sorted(public - aliases - named)}"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_builds_without_a_warning_and_needs_no_network(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        html = page.read_text(encoding="utf-8")
        loaded = re.findall(
            r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"?((?:https?:)?//[^\s\">]+)", html
        )
        assert not loaded, f"{page.name} loads {loaded}"
    reference = (site / "api" / "describe.html").read_text(encoding="utf-8")
    assert "verax.Mechanism" in reference
    assert "standard deviation of the noise divided by the clip norm" in reference
    assert ":meth:" not in reference


@pytest.mark.parametrize("start", ["index.html", "api/describe.html"])
def test_the_site_can_be_searched_when_it_is_opened_from_a_folder(site, start):
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium: install it to test the search")
    asked = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1300, "height": 800})
        page.set_default_timeout(60_000)
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / start).as_uri())
        page.locator("input[name=query]").click()
        page.locator("input[name=query]").press_sequentially("calibrate")
        page.locator(".md-search-result__link").first.wait_for()
        found = page.locator(".md-search-result__link").first.get_attribute("href")
        browser.close()
    assert found.startswith("file:")
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))] == []
