"""The pages in chromium, driven by Playwright; screenshots are written to out/screenshots."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from verax import Mechanism, Poisson, RandomParticipation, Shuffle
from verax.federated.observers import Federation
from verax.ledger.ledger import Ledger, read
from verax.ledger.run import compose
from verax.planning import Target, frontier, plannable
from verax.planning.utility import Line, Point, UtilityGraph, best_plan
from verax.privacy.guarantee import format_bound
from verax.privacy.pld.composition import LOWER, UPPER

pytest.importorskip("fastapi")
playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
# every check waits for what it expects: no machine is too slow, or too fast
expect.set_options(timeout=60_000)

CHROMIUM = shutil.which("chromium")
SCREENSHOTS = Path("out/screenshots")
IDLE = "body[data-state=idle]"
SERIOUS = ("serious", "critical")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium: install it to test the pages"
)

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
    context = browser.new_context(
        permissions=["clipboard-read", "clipboard-write"], accept_downloads=True
    )
    one = context.new_page()
    one.set_default_timeout(60_000)
    one.on(
        "console",
        lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None,
    )
    one.on("pageerror", lambda error: complaints.append(str(error)))
    one.on(
        "requestfailed",
        lambda r: complaints.append(r.url) if "ERR_ABORTED" not in (r.failure or "") else None,
    )
    yield one
    context.close()


def opened(page, server, path):
    page.goto(server + path)
    page.wait_for_selector("#operations section" if path == "/api" else IDLE)
    return page


def of(bracket):
    return format_bound(bracket.lower, LOWER), format_bound(bracket.upper, UPPER)


def expect_sides(page, sampler, bracket):
    """The page comes to show this bracket for the sampler."""
    row = page.locator(f"tr[data-sampler={sampler}]")
    for side, text in zip(("lower", "upper"), of(bracket), strict=True):
        expect(row.locator(f"td[data-side={side}]")).to_have_text(text)


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
        expect(page.locator("h1")).to_have_count(1)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if name != "api":
            expect(page.locator(".figure svg").first).to_be_visible()
        page.screenshot(path=SCREENSHOTS / f"{name}-{width}-{scheme}.png", full_page=True)
        assert serious(page) == []
    assert complaints == []
    expect(page.locator("#problem:visible")).to_have_count(0)


def test_a_slider_changes_a_number_to_the_right_value(page, server):
    opened(page, server, "/compare?sampler=poisson&sampler=shuffle&epochs=2")
    expect_sides(page, "poisson", Mechanism(Poisson(0.01, 200), 1.0).guarantee().epsilon(1e-5))
    slider = page.get_by_label("Noise multiplier, slider")
    slider.focus()
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    noise = float(page.get_by_label("Noise multiplier", exact=True).input_value())
    assert noise > 1.1
    page.wait_for_url(f"**noise_multiplier={noise:g}**")
    moved = Mechanism(Poisson(0.01, 200), noise).guarantee().epsilon(1e-5)
    expect_sides(page, "poisson", moved)
    expect_sides(page, "shuffle", Mechanism(Shuffle(100, 2), noise).guarantee().epsilon(1e-5))
    again = page.context.new_page()
    again.goto(page.url)
    expect_sides(again, "poisson", moved)


def test_every_change_is_answered_while_the_figure_is_drawn(page, server):
    """From the change of a number to the first answer to it, before all is done."""
    opened(page, server, "/compare?sampler=poisson&sampler=shuffle&epochs=2&figure=epochs")
    times = page.evaluate(
        """async () => {
          const input = document.getElementById("noise_multiplier");
          const place = "tr[data-sampler=poisson] td[data-side=upper]";
          const cell = () => document.querySelector(place)?.textContent;
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
    expect(page.locator("#problem")).to_have_text(
        "batch must be at most records = 60000, got 70000"
    )
    opened(page, server, "/compare?sampler=poisson&delta=wrong")
    expect(page.locator("#problem")).to_have_text(
        re.compile("^delta: input should be a valid number")
    )


def test_refused_input_leaves_no_number_of_another_question(page, server):
    opened(page, server, "/compare?sampler=poisson&epochs=2")
    upper = page.locator("tr[data-sampler=poisson] td[data-side=upper]")
    expect(upper).to_be_visible()
    page.get_by_label("Batch", exact=True).fill("70000")
    expect(page.locator("#problem")).to_have_text(
        "batch must be at most records = 60000, got 70000"
    )
    expect(upper).to_be_hidden()
    expect(page.locator(".figure svg").first).to_be_hidden()
    expect(page.locator("#status")).to_have_text("Refused, so there is nothing to show.")
    page.screenshot(path=SCREENSHOTS / "refused.png")
    page.get_by_label("Batch", exact=True).fill("600")
    expect(upper).to_be_visible()
    expect(page.locator("#problem")).to_be_hidden()


def test_a_number_is_dimmed_while_another_question_is_open(page, server):
    opened(page, server, "/compare?sampler=poisson&epochs=2")
    results = page.locator(".results > .answer")
    expect(results).to_have_css("opacity", "1")
    page.route("**/api/compare/stream*", lambda _: None)  # as long as it takes
    page.get_by_label("Batch", exact=True).fill("601")
    expect(results).to_have_css("opacity", "0.4")
    page.locator("#stop").click()
    expect(results).to_be_hidden()


def test_a_setting_that_the_address_gives_twice_is_not_chosen_for_you(page, server):
    opened(page, server, "/compare?sampler=poisson&batch=600&batch=700")
    expect(page.locator("#problem")).to_have_text(
        "The address gives batch 2 times (600, 700): choose one."
    )
    page.get_by_label("Batch", exact=True).fill("700")
    expect(page.locator("tr[data-sampler=poisson] td[data-side=upper]")).to_be_visible()


def test_the_plan_page_takes_its_own_checkboxes(page, server):
    """All of them at once; what they compute is none of this test's business."""
    others = "&".join(f"sampler={way}" for way in plannable() if way != "balls-in-bins")
    page.goto(f"{server}/plan?{others}")
    with page.expect_response(re.compile(r"/api/plan/stream.*sampler=balls-in-bins")) as waiting:
        page.get_by_label("balls in bins").check()
    assert waiting.value.status == 200
    expect(page.locator("#left-out")).to_contain_text(
        "balls-in-bins, random-allocation: 24 of 112 pairs"
    )


def test_an_address_that_leads_nowhere_is_a_page(page, server):
    page.goto(f"{server}/nothing")
    expect(page.locator("h1")).to_have_text("Not Found")
    expect(page.locator(".problem")).to_have_text("There is no page at this address")
    page.screenshot(path=SCREENSHOTS / "not-found.png")
    assert serious(page) == []
    page.get_by_role("link", name="Plan").click()
    expect(page.locator("h1")).to_have_text("Plan")


def test_a_long_computation_can_be_stopped(page, server):
    # as long as it takes: no machine is too fast
    page.route("**/api/compare/stream*", lambda _: None)
    page.goto(f"{server}/compare?sampler=random-allocation&batch=77&epochs=40")
    page.locator("#stop").click()
    expect(page.locator("#status")).to_contain_text("Stopped")
    expect(page.locator("#stop")).to_be_hidden()
    page.wait_for_selector(IDLE)


def test_a_plan_copies_code_that_runs(page, server, tmp_path):
    opened(page, server, "/plan?records=300&epsilon=3&epochs=2&batch=50,100")
    page.locator("#rows tbody button").first.click()
    page.wait_for_selector("#changes li:not(.note)")
    page.get_by_role("button", name="Copy Python").click()
    expect(page.locator("#copy-python")).to_have_text("Copied")
    code = page.evaluate("navigator.clipboard.readText()")
    assert code == page.locator("#python").inner_text()
    page.get_by_role("button", name="Copy command").click()
    expect(page.locator("#copy-command")).to_have_text("Copied")
    command = page.evaluate("navigator.clipboard.readText()").splitlines()[0].split()
    expect(page).to_have_url(re.compile(r"plan=poisson\."))
    pytest.importorskip("torch")
    (tmp_path / "plan.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "plan.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = read(tmp_path / "run.ledger")
    assert run.complete
    assert run.guarantee().epsilon(1e-5).upper <= 3.0
    program = "from verax.cli import main; main()"
    told = subprocess.run(
        [sys.executable, "-c", program, *command[1:], "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert json.loads(told.stdout)["epsilon"][0]["upper"] <= 3.0


def test_plans_can_be_chosen_by_keyboard_and_by_point(page, server):
    opened(page, server, "/plan?records=2000&epochs=2,8&batch=50,200")
    page.locator("#rows tbody button").nth(1).focus()
    page.keyboard.press("Enter")
    expect(page.locator("#chosen-title")).to_be_focused()
    first = page.url
    page.locator(".figure .pick").first.click()
    page.wait_for_function("(before) => location.href !== before", arg=first)
    expect(page.locator("#python")).to_contain_text("Mechanism(")


def test_a_ledger_opens_and_its_statement_downloads(page, server, folder):
    opened(page, server, "/runs")
    page.get_by_label("Ledger", exact=True).select_option("whole.ledger")
    bracket = read(folder / "whole.ledger").guarantee().epsilon(1e-5)
    expect(page.locator("tr[data-fact=epsilon] td")).to_contain_text(" to ".join(of(bracket)))
    expect(page).to_have_url(re.compile(r"name=whole\.ledger"))
    expect(page.locator("#log-words")).to_contain_text("Nothing.")
    expect(page.locator("#diagnostics-words")).to_contain_text("Not shown.")
    with page.expect_download() as waiting:
        page.locator("#download-html").click()
    assert "Privacy statement" in Path(waiting.value.path()).read_text()


def test_a_ledger_from_this_computer_opens(page, server, folder):
    opened(page, server, "/runs")
    page.locator("#file").set_input_files(folder / "part.ledger")
    expect(page.locator("#rounds-words")).to_have_text("10 of 40")
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
        go.wait()
        for number in range(6):
            book.release(number, clip_norm=1.0, noise_multiplier=1.2)
        book.finish()
        book.close()

    thread = threading.Thread(target=train)
    thread.start()
    try:
        page.goto(f"{server}/runs?name=live.ledger")
        expect(page.locator("#rounds-words")).to_have_text("0 of 6")
        go.set()
        expect(page.locator("#rounds-words")).to_have_text("6 of 6")
        expect(page.locator("#facts")).to_contain_text("finished")
        page.wait_for_selector(IDLE)
        expect(page.locator("#problem")).to_be_hidden()
    finally:
        go.set()
        thread.join()
        path.unlink()


def test_a_run_that_broke_off_is_not_watched_for_ever(page, server, folder):
    """Nothing was written to its ledger for long; once something is, it is followed again."""
    path = folder / "broken.ledger"
    book = Ledger.create(path, Mechanism(Poisson(0.05, 6), 1.2))
    try:
        book.release(0, clip_norm=1.0, noise_multiplier=1.2)
        book.close()
        os.utime(path, (1e9, 1e9))
        opened(page, server, "/runs?name=broken.ledger")
        expect(page.locator("#status")).to_contain_text("Not watched: nothing was written since")
        expect(page.locator("#facts")).to_contain_text("broke off or pauses")
        expect(page.locator("#rounds-words")).to_have_text("1 of 6")
        book = Ledger.open(path)
        book.release(1, clip_norm=1.0, noise_multiplier=1.2)
        expect(page.locator("#rounds-words")).to_have_text("2 of 6")
        expect(page.locator("#status")).to_contain_text("watching its ledger")
    finally:
        book.close()
        path.unlink()


def test_a_ledger_that_is_new_can_be_chosen_without_loading_the_page_again(page, server, folder):
    opened(page, server, "/runs")
    path = folder / "new.ledger"
    book = Ledger.create(path, Mechanism(Poisson(0.05, 6), 1.2))
    try:
        page.get_by_label("Ledger", exact=True).select_option("new.ledger")
        expect(page.locator("#rounds-words")).to_have_text("0 of 6")
    finally:
        book.close()
        path.unlink()


def test_several_ledgers_are_shown_together(page, server, folder):
    opened(page, server, "/runs?name=whole.ledger&name=part.ledger")
    expect(page).to_have_url(re.compile(r"name=whole\.ledger&name=part\.ledger$"))
    runs = [read(folder / name) for name in ("whole.ledger", "part.ledger")]
    fact = page.locator("#together-facts tr[data-fact=epsilon] td")
    expect(fact).to_contain_text(" to ".join(of(compose(runs).epsilon(1e-5))))
    expect(page.locator("#together-runs tbody tr")).to_have_count(2)
    expect(page.locator("#run")).to_be_hidden()
    page.screenshot(path=SCREENSHOTS / "together.png", full_page=True)
    assert serious(page) == []
    with page.expect_download() as waiting:
        page.locator("#together-download-json").click()
    assert len(json.loads(Path(waiting.value.path()).read_text())["runs"]) == 2
    page.locator("#name-more").get_by_label("part.ledger").uncheck()
    expect(page.locator("#run-title")).to_have_text("whole.ledger")
    expect(page.locator("#together")).to_be_hidden()


def test_diagnostics_are_shown_where_they_are_asked_for(page, server, open_server):
    page.goto(f"{server}/runs?name=part.ledger")
    expect(page.locator("#log svg")).to_have_count(1)
    expect(page.locator("#diagnostics-words")).to_contain_text("Not shown.")
    expect(page.locator("#diagnostics svg")).to_have_count(0)
    expect(page.locator("main")).not_to_contain_text("0.875")
    page.goto(f"{open_server}/runs?name=part.ledger")
    expect(page.locator("#diagnostics svg[role=img]")).to_have_count(5)
    expect(page.locator("#diagnostics-words")).to_contain_text("NOT covered by the guarantee")
    titles = page.locator("#diagnostics figcaption")
    expect(titles).to_have_count(5)
    expect(titles.nth(2)).to_have_text("Gradient norms against the clip norm")
    latest = page.locator("#diagnostics table tr").filter(has_text="accuracy").locator("td")
    expect(latest).to_have_text(["accuracy", "10", "0.875"])
    expect(page.locator("#diagnostics .legend")).to_contain_text("median")
    assert serious(page) == []


def test_a_utility_graph_ranks_plans(page, server, tmp_path):
    line = Line(2.0, 0.9, (Point(0.01, 0.97, 0.96, 0.98), Point(0.1, 0.7, 0.69, 0.71)))
    other = Line(1.0, 0.88, (Point(0.02, 0.99, 0.98, 1.0), Point(0.2, 0.8, 0.79, 0.81)))
    graph = UtilityGraph(
        (line, other), learning_rate=0.5, rounds=30, draws=20, confidence=0.95, public=False
    )
    graph.save(tmp_path / "graph.json")
    opened(page, server, "/plan?records=2000&epochs=2,8&batch=50,200&epsilon=2")
    page.locator("#graph").set_input_files(tmp_path / "graph.json")
    plans = frontier(Target(2000, 2.0, 1e-5), [50, 200], [2, 8])
    best = best_plan(plans, graph)
    words = page.locator("#expected")
    expect(words).to_contain_text(
        f"batch {best.plan.batch}, {best.plan.epochs} epochs, clip norm {best.clip_norm:g}"
    )
    expect(words).to_contain_text(f"expected accuracy {100 * best.accuracy:.1f} %")
    first = page.locator("#rows tbody tr").first.locator("td")
    expect(first.first).to_have_text(str(best.plan.batch))
    expect(first.last).to_have_text(f"{100 * best.accuracy:.1f} %")
    expect(page.locator("#leaks")).to_contain_text("private data")
    (tmp_path / "wrong.json").write_text("[1]")
    page.locator("#graph").set_input_files(tmp_path / "wrong.json")
    expect(page.locator("#problem")).to_be_visible()
    expect(page.locator("#expected-head")).to_be_hidden()


def test_observers_are_told_apart(page, server):
    opened(page, server, "/federated?rounds=5&records=10&senders=50")
    row = page.locator("tr[data-observer=server] td")
    expect(row.nth(0)).to_have_text("infinite")
    sampler = RandomParticipation(0.1, 0.1, 10, 5)
    alone = Federation(sampler, local_noise=1.0 / math.sqrt(50), senders=50).against("server")
    expect(row.nth(1)).to_have_text(format_bound(alone.guarantee().epsilon(1e-5).upper, UPPER))


def test_the_corrected_bound_is_between(page, server):
    opened(page, server, "/federated?rounds=5&records=10")
    sampler = RandomParticipation(0.1, 0.1, 10, 5)
    expect_sides(page, "participation", Mechanism(sampler, 1.0).guarantee().epsilon(1e-5))
    expect(page.locator("#words")).to_contain_text("Random participation costs at most")
    numbers = [float(text) for text in re.findall(r"\d+\.\d+", page.locator("#words").inner_text())]
    here, least, most = numbers[:3]
    assert least <= here <= most
