"""The pages in a real browser: Debian's chromium, driven by Playwright. Screenshots are kept in out/screenshots."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from verax import Mechanism, Poisson, RandomParticipation, Shuffle
from verax.planning import Target, frontier
from verax.planning.utility import Line, Point, UtilityGraph, best_plan
from verax.privacy.composition import LOWER, UPPER
from verax.privacy.guarantee import shown
from verax.privacy.participation import Federation
from verax.training.ledger import Ledger, read

pytest.importorskip("fastapi")
playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = shutil.which("chromium")
SCREENSHOTS = Path("out/screenshots")
IDLE = "body[data-state=idle]"
SERIOUS = ("serious", "critical")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: install it to test the pages")

PAGES = {
    "compare": "/?sampler=poisson&sampler=shuffle&epochs=2",
    "compare-tradeoff": "/compare?sampler=poisson&figure=tradeoff&epochs=2",
    "compare-delta": "/compare?sampler=poisson&sampler=shuffle&figure=delta&epochs=2",
    "plan": "/plan?records=2000&epochs=2,8&batch=50,200&plan=poisson.200.8",
    "runs": "/runs?name=whole.ledger",
    "federated": "/federated?rounds=5&records=10&figure=client-rate",
    "api": "/api",
}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        one = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield one
        one.close()


@pytest.fixture
def complaints():
    return []


@pytest.fixture
def page(browser, complaints):
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], accept_downloads=True)
    one = context.new_page()
    one.set_default_timeout(60_000)
    one.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    one.on("pageerror", lambda error: complaints.append(str(error)))
    one.on("requestfailed", lambda r: complaints.append(r.url) if "ERR_ABORTED" not in (r.failure or "") else None)
    yield one
    context.close()


def opened(page, server, path):
    page.goto(server + path)
    page.wait_for_selector("#operations section" if path == "/api" else IDLE)
    return page


def sides(page, sampler):
    row = page.locator(f"tr[data-sampler={sampler}]")
    return tuple(row.locator(f"td[data-side={side}]").inner_text() for side in ("lower", "upper"))


def of(bracket):
    return shown(bracket.lower, LOWER), shown(bracket.upper, UPPER)


def serious(page):
    """What axe-core finds to be a serious problem of accessibility."""
    base = pytest.importorskip("axe_playwright_python.base")
    axe = Path(base.__file__).with_name("axe.min.js").read_text()
    page.evaluate(f"() => {{ {axe}\n; window.axe = axe ?? window.axe; }}")
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in SERIOUS]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_fits_and_is_accessible(page, server, complaints, name):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for width, scheme in ((1440, "light"), (390, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        opened(page, server, PAGES[name])
        assert page.locator("h1").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if name != "api":
            assert page.locator(".figure svg").first.is_visible()
        page.screenshot(path=SCREENSHOTS / f"{name}-{width}-{scheme}.png", full_page=True)
        assert serious(page) == []
    assert complaints == []
    assert page.locator("#problem:visible").count() == 0


def test_a_slider_changes_a_number_to_the_right_value(page, server):
    opened(page, server, "/compare?sampler=poisson&sampler=shuffle&epochs=2")
    assert sides(page, "poisson") == of(Mechanism(Poisson(0.01, 200), 1.0).guarantee().epsilon(1e-5))
    slider = page.get_by_label("Noise multiplier, slider")
    slider.focus()
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    noise = float(page.get_by_label("Noise multiplier", exact=True).input_value())
    assert noise > 1.1
    page.wait_for_url(f"**noise_multiplier={noise:g}**")
    page.wait_for_selector("body[data-state=asking]")
    page.wait_for_selector(IDLE)
    assert sides(page, "poisson") == of(Mechanism(Poisson(0.01, 200), noise).guarantee().epsilon(1e-5))
    assert sides(page, "shuffle") == of(Mechanism(Shuffle(100, 2), noise).guarantee().epsilon(1e-5))
    shared = page.url
    again = page.context.new_page()
    again.goto(shared)
    again.wait_for_selector(IDLE)
    assert sides(again, "poisson") == sides(page, "poisson")


def test_every_change_is_answered_while_the_figure_is_drawn(page, server):
    """From the change of a number to the first answer to it, before all is done."""
    opened(page, server, "/compare?sampler=poisson&sampler=shuffle&epochs=2&figure=epochs")
    times = page.evaluate(
        """async () => {
          const input = document.getElementById("noise_multiplier");
          const cell = () => document.querySelector("tr[data-sampler=poisson] td[data-side=upper]")?.textContent;
          const times = [];
          for (const value of ["1.31", "1.52", "1.73", "1.94"]) {
            const before = cell(), begun = performance.now();
            input.value = value;
            input.dispatchEvent(new Event("input", {bubbles: true}));
            while ((cell() ?? before) === before) await new Promise((done) => setTimeout(done, 5));
            times.push(performance.now() - begun);
          }
          return times;
        }"""
    )
    assert len(times) == 4


def test_bad_input_is_a_message(page, server):
    opened(page, server, "/compare?sampler=poisson&batch=70000")
    assert page.locator("#problem").inner_text() == "batch must be at most records = 60000, got 70000"
    opened(page, server, "/compare?sampler=poisson&delta=wrong")
    assert page.locator("#problem").inner_text().startswith("delta: input should be a valid number")


def test_a_long_computation_can_be_stopped(page, server):
    page.route("**/api/compare/stream*", lambda _: None)  # as long as it takes: no machine is too fast
    page.goto(f"{server}/compare?sampler=random-allocation&batch=77&epochs=40")
    page.locator("#stop").click()
    page.wait_for_selector(IDLE)
    assert "Stopped" in page.locator("#status").inner_text()
    assert page.locator("#stop").is_hidden()


def test_a_plan_copies_code_that_runs(page, server, tmp_path):
    opened(page, server, "/plan?records=300&epsilon=3&epochs=2&batch=50,100")
    page.locator("#rows tbody button").first.click()
    page.wait_for_selector("#changes li:not(.note)")
    page.get_by_role("button", name="Copy Python").click()
    code = page.evaluate("navigator.clipboard.readText()")
    assert code == page.locator("#python").inner_text()
    page.get_by_role("button", name="Copy command").click()
    command = page.evaluate("navigator.clipboard.readText()").splitlines()[0].split()
    assert "plan=poisson." in page.url
    pytest.importorskip("torch")
    (tmp_path / "plan.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "plan.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    run = read(tmp_path / "run.ledger")
    assert run.complete
    assert run.guarantee().epsilon(1e-5).upper <= 3.0
    program = "from verax.cli import main; main()"
    told = subprocess.run(
        [sys.executable, "-c", program, *command[1:], "--json"], capture_output=True, text=True, timeout=120, check=True
    )
    assert json.loads(told.stdout)["epsilon"][0]["upper"] <= 3.0


def test_plans_can_be_chosen_by_keyboard_and_by_point(page, server):
    opened(page, server, "/plan?records=2000&epochs=2,8&batch=50,200")
    page.locator("#rows tbody button").nth(1).focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "chosen-title"
    first = page.url
    page.locator(".figure .pick").first.click()
    page.wait_for_function("(before) => location.href !== before", arg=first)
    assert "Mechanism(" in page.locator("#python").inner_text()


def test_a_ledger_opens_and_its_statement_downloads(page, server, folder):
    opened(page, server, "/runs")
    page.get_by_label("Ledger", exact=True).select_option("whole.ledger")
    page.wait_for_selector("#run:visible")
    page.wait_for_selector(IDLE)
    bracket = read(folder / "whole.ledger").guarantee().epsilon(1e-5)
    assert " to ".join(of(bracket)) in page.locator("tr[data-fact=epsilon] td").inner_text()
    assert "name=whole.ledger" in page.url
    assert "Nothing." in page.locator("#log-words").inner_text()
    assert "Not shown." in page.locator("#diagnostics-words").inner_text()
    with page.expect_download() as waiting:
        page.locator("#download-html").click()
    assert "Privacy statement" in Path(waiting.value.path()).read_text()


def test_a_ledger_from_this_computer_opens(page, server, folder):
    opened(page, server, "/runs")
    page.locator("#file").set_input_files(folder / "part.ledger")
    page.wait_for_selector("#run:visible")
    assert page.locator("#rounds-words").inner_text() == "10 of 40"
    with page.expect_download() as waiting:
        page.locator("#download-json").click()
    assert json.loads(Path(waiting.value.path()).read_text())["runs"][0]["released"] == 10
    page.locator("#file").set_input_files(folder / "damaged.ledger")
    page.wait_for_selector("#problem:visible")


def test_a_live_run_is_followed(page, server, folder):
    path = folder / "live.ledger"
    run = Mechanism(Poisson(0.05, 6), 1.2)
    book = Ledger.create(path, run)
    go = threading.Event()

    def train():
        go.wait(30)
        for number in range(6):
            book.release(number, clip_norm=1.0, noise_multiplier=1.2)
            time.sleep(0.05)
        book.finish()
        book.close()

    thread = threading.Thread(target=train)
    thread.start()
    try:
        page.goto(f"{server}/runs?name=live.ledger")
        page.wait_for_selector("#run:visible")
        assert page.locator("#rounds-words").inner_text() == "0 of 6"
        go.set()
        page.wait_for_selector(IDLE)
        assert page.locator("#problem").inner_text() == ""
        assert page.locator("#rounds-words").inner_text() == "6 of 6"
        assert "finished" in page.locator("#facts").inner_text()
    finally:
        go.set()
        thread.join(30)
        path.unlink()


def test_diagnostics_are_shown_where_they_are_asked_for(page, server, open_server):
    page.goto(f"{server}/runs?name=part.ledger")
    page.wait_for_selector("#run:visible")
    assert page.locator("#log svg").count() == 1
    assert page.locator("#diagnostics svg").count() == 0
    assert "0.875" not in page.locator("main").inner_text()
    page.goto(f"{open_server}/runs?name=part.ledger")
    page.wait_for_selector("#diagnostics svg >> nth=4")
    assert "NOT covered by the guarantee" in page.locator("#diagnostics-words").inner_text()
    titles = page.locator("#diagnostics figcaption").all_inner_texts()
    assert titles[2] == "Gradient norms against the clip norm"
    assert len(titles) == 5
    latest = page.locator("#diagnostics table").inner_text()
    assert "accuracy\t10\t0.875" in latest
    assert "median" in page.locator("#diagnostics .legend").inner_text()
    assert serious(page) == []


def test_a_utility_graph_ranks_plans(page, server, tmp_path):
    line = Line(2.0, 0.9, (Point(0.01, 0.97, 0.96, 0.98), Point(0.1, 0.7, 0.69, 0.71)))
    other = Line(1.0, 0.88, (Point(0.02, 0.99, 0.98, 1.0), Point(0.2, 0.8, 0.79, 0.81)))
    graph = UtilityGraph((line, other), learning_rate=0.5, rounds=30, draws=20, confidence=0.95, public=False)
    graph.save(tmp_path / "graph.json")
    opened(page, server, "/plan?records=2000&epochs=2,8&batch=50,200&epsilon=2")
    page.locator("#graph").set_input_files(tmp_path / "graph.json")
    page.wait_for_selector("#expected-head:visible")
    plans = frontier(Target(2000, 2.0, 1e-5), [50, 200], [2, 8])
    best = best_plan(plans, graph)
    words = page.locator("#expected").inner_text()
    assert f"batch {best.plan.batch}, {best.plan.epochs} epochs, clip norm {best.clip_norm:g}" in words
    assert f"expected accuracy {100 * best.accuracy:.1f} %" in words
    first = page.locator("#rows tbody tr").first.locator("td").all_inner_texts()
    assert (first[0], first[-1]) == (str(best.plan.batch), f"{100 * best.accuracy:.1f} %")
    assert "private data" in page.locator("#leaks").inner_text()
    (tmp_path / "wrong.json").write_text("[1]")
    page.locator("#graph").set_input_files(tmp_path / "wrong.json")
    page.wait_for_selector("#problem:visible")
    assert page.locator("#expected-head").is_hidden()


def test_observers_are_told_apart(page, server):
    opened(page, server, "/federated?rounds=5&records=10&senders=50")
    row = page.locator("tr[data-observer=server] td")
    assert row.nth(0).inner_text() == "infinite"
    sampler = RandomParticipation(0.1, 0.1, 10, 5)
    alone = Federation(sampler, local_noise=1.0 / math.sqrt(50), senders=50).against("server")
    assert row.nth(1).inner_text() == shown(alone.guarantee().epsilon(1e-5).upper, UPPER)


def test_the_corrected_bound_is_between(page, server):
    opened(page, server, "/federated?rounds=5&records=10")
    sampler = RandomParticipation(0.1, 0.1, 10, 5)
    assert sides(page, "participation") == of(Mechanism(sampler, 1.0).guarantee().epsilon(1e-5))
    words = page.locator("#words").inner_text()
    numbers = [float(text) for text in re.findall(r"\d+\.\d+", words)]
    here, least, most = numbers[:3]
    assert least <= here <= most
