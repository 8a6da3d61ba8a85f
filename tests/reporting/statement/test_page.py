"""The page of a statement on screens and on paper, as a browser lays it out."""

from __future__ import annotations

import re
import shutil

import pytest

from verax import Mechanism, Poisson, Shuffle

STATEMENTS = {
    "plain": Mechanism(Poisson(0.01, 1000), 1.0).guarantee().statement(1e-5),
    "tiny delta": Mechanism(Shuffle(100, 2), 3.0).guarantee().statement(1.25e-7),
}
CHROMIUM = shutil.which("chromium")
NUMBER = r"\d+(?:[.,]\d+)*(?:e[-+]?\d+)?(?: %)?"
BROKEN = """
number => {
  const broken = [];
  const walk = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode;
    if (node.parentElement.closest("svg")) continue;
    for (const found of node.data.matchAll(new RegExp(`(?<![\\\\w.])${number}(?!\\\\w)`, "g"))) {
      const range = document.createRange();
      range.setStart(node, found.index);
      range.setEnd(node, found.index + found[0].length);
      const lines = new Set([...range.getClientRects()].map((box) => box.top));
      if (lines.size > 1) broken.push(found[0]);
    }
  }
  return broken;
}
"""
TOGETHER = """
() => {
  const signed = document.querySelector(".sign").closest("section");
  return [getComputedStyle(signed).breakInside, signed.innerText];
}
"""


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no chromium: install it to test the page")
    with playwright.sync_playwright() as driver:
        one = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield one
        one.close()


def paragraphs(html):
    """The page without figures and without what it holds for machines."""
    return re.sub(r"<svg.*?</svg>|<style.*?</style>|<script.*?</script>", "", html, flags=re.DOTALL)


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_number_with_an_exponent_or_a_unit_is_kept_on_one_line(name):
    text = paragraphs(STATEMENTS[name].html())
    whole = re.sub(r'<span class="whole">[^<]*</span>', "", text)
    assert text.count('<span class="whole">') > 10
    assert not re.findall(r"\de-\d|\d %", whole)
    assert ".whole{white-space:nowrap}" in STATEMENTS[name].html()


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_line_ends_within_a_number_at_any_width(browser, name):
    page = browser.new_page()
    page.set_content(STATEMENTS[name].html())
    for media in ("screen", "print"):
        page.emulate_media(media=media)
        for width in range(320, 1000, 17):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(BROKEN, NUMBER) == [], (media, width)
    page.close()


def test_a_signature_is_on_the_page_of_what_is_signed(browser):
    statement = STATEMENTS["plain"]
    page = browser.new_page()
    page.set_content(statement.html())
    page.emulate_media(media="print")
    kept, text = page.evaluate(TOGETHER)
    page.close()
    assert kept == "avoid"
    assert "protected with epsilon at most 1.8290 at delta 1e-05" in text
    assert "Signature" in text
