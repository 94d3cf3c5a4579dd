"""The live page in a real browser: it decodes, counts, races two strategies, saves itself, and asks nobody else."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from dapd.generation import DEFAULT_NEW_TOKENS
from dapd.lab.tasks.rooms import room
from server.helpers_server import Served, slow
from viewer.conftest import browser  # noqa: F401
from viewer.helpers_viewer import Browser

SHOTS = os.environ.get("DAPD_SCREENSHOTS")
"""A folder for pictures of the page, where somebody wants to look at it."""


@pytest.fixture(scope="module")
def page(lm):
    with Served(slow(lm, 0.02)) as served:
        yield served


def until(check, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)


def ask(browser: Browser, prompt: str, **fields: object) -> None:  # noqa: F811
    browser.js(
        "const f = document.querySelector('form').elements; f.prompt.value = arguments[0];"
        "for (const [k, v] of Object.entries(arguments[1])) f[k].value = v;"
        "document.querySelector('form').requestSubmit()",
        prompt,
        fields,
    )


def done(browser: Browser) -> bool:  # noqa: F811
    return browser.js("return !document.querySelector('[name=save]').disabled")


def shot(browser: Browser, name: str) -> None:  # noqa: F811
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        browser.driver.save_screenshot(str(Path(SHOTS) / f"{name}.png"))


def opened(browser: Browser, served: Served) -> None:  # noqa: F811
    browser.complaints()
    browser.requests()
    browser.open(served.base + "/")
    until(lambda: browser.js("return document.querySelectorAll('[name=a] option').length > 5"))


def test_it_decodes_live_and_counts(browser, page):  # noqa: F811
    opened(browser, page)
    ask(browser, "hello", a="original", tokens=24)
    until(lambda: browser.js("return dapdViewer.clock.last > 3"))
    assert not done(browser)  # passes are shown while others are still to come
    shot(browser, "running")
    until(lambda: done(browser))
    expected = page.lm.generate("hello", strategy="original", max_new_tokens=24, early_stop=True)
    numbers = browser.js("return [...document.querySelectorAll('.race dd')].map(d => d.textContent)")
    assert int(numbers[0]) <= expected.nfe
    assert float(numbers[3]) > 0
    assert int(numbers[1]) == browser.js("return dapdViewer.lanes[0].decoding.written.at(-1)")
    trace = expected.trace
    shown = browser.shown()
    assert set(shown) == set(trace.slots)
    assert browser.complaints() == []


def test_the_legend_follows_the_passes(browser, page):  # noqa: F811
    """While passes come the colours have room for more; at the end the legend names the last pass."""
    opened(browser, page)
    browser.js(
        "const legend = document.querySelector('.legend'); globalThis.late = [];"
        "const note = () => late.push(Number(legend.textContent.match(/late .pass (\\d+)/)[1]));"
        "new MutationObserver(note).observe(legend, { childList: true })"
    )
    ask(browser, "hello", a="original", tokens=60)
    until(lambda: done(browser))
    *meanwhile, last = browser.js("return late")
    assert last == browser.js("return dapdViewer.clock.last") > 16
    assert max(meanwhile) in (32, 64)


def test_two_strategies_share_a_clock(browser, page):  # noqa: F811
    opened(browser, page)
    ask(browser, "hello", a="dapd-staged", b="original", tokens=24)
    until(lambda: done(browser))
    labels = browser.js("return dapdViewer.lanes.map(lane => lane.decoding.label)")
    assert sorted(labels) == ["dapd-staged", "original"]
    passes = browser.js("return dapdViewer.lanes.map(lane => lane.decoding.passes)")
    assert browser.js("return dapdViewer.clock.last") == max(passes)
    assert browser.js("return dapdViewer.lanes.some(lane => lane.decoding.hasEdges)")
    shot(browser, "two")


def test_pointing_at_a_token_draws_its_edges(browser, page):  # noqa: F811
    """With a real mouse: a token that was held back shows the chosen ones that it depends on, and they vanish again."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    opened(browser, page)
    ask(browser, "hello", a="dapd-staged", tokens=24)
    until(lambda: done(browser))
    held = browser.js(
        "const { decoding } = dapdViewer.lanes[0];"
        "for (let pass = 1; pass <= decoding.passes; pass++) {"
        "  const graph = decoding.graph(pass);"
        "  const waits = (i) => !graph.chosen.includes(i) && graph.chosen.some((j) => graph.has(i, j));"
        "  const held = graph?.nodes.find(waits);"
        "  if (held !== undefined) { dapdViewer.clock.seek(pass); return held; }"
        "}"
    )
    assert held is not None
    links, ink = "return dapdViewer.lanes[0].graph.links", "return dapdViewer.lanes[0].graph.drawn"
    assert browser.js(links) == []
    token = browser.driver.find_element(By.CSS_SELECTOR, f"[data-p='{held}']")
    browser.js("arguments[0].scrollIntoView({block: 'center'})", token)
    ActionChains(browser.driver).move_to_element(token).perform()
    until(lambda: browser.js(ink))
    assert {start for start, _ in browser.js(links)} == {held}
    assert "lead from this token to chosen ones" in browser.js("return document.querySelector('.note').textContent")
    shot(browser, "hover")
    elsewhere = browser.driver.find_element(By.NAME, "prompt")
    browser.js("arguments[0].scrollIntoView({block: 'center'})", elsewhere)
    ActionChains(browser.driver).move_to_element(elsewhere).perform()
    until(lambda: not browser.js(ink))
    assert browser.js(links) == []


def test_masks_are_filled_in_place(browser, page):  # noqa: F811
    opened(browser, page)
    ask(browser, "It is [MASK*4]!")
    until(lambda: done(browser))
    assert len(browser.shown()) == 4
    shot(browser, "infill")


def test_it_is_saved_as_a_page_of_its_own(browser, page, tmp_path):  # noqa: F811
    opened(browser, page)
    ask(browser, "</script><b>hello", a="fast-dllm", tokens=16)
    until(lambda: done(browser))
    browser.js(
        "globalThis.saved = null; const make = URL.createObjectURL.bind(URL);"
        "URL.createObjectURL = (blob) => { blob.text().then((t) => (globalThis.saved = t)); return make(blob); };"
        "document.querySelector('[name=save]').click()"
    )
    until(lambda: browser.js("return globalThis.saved !== null"))
    path = tmp_path / "saved.html"
    path.write_text(browser.js("return globalThis.saved"), encoding="utf-8")
    lanes = browser.shown()
    browser.complaints()
    browser.requests()
    browser.open(path)
    until(lambda: browser.js("return !!globalThis.dapdViewer && dapdViewer.clock.last > 0"))
    browser.js("dapdViewer.clock.seek(dapdViewer.clock.last)")
    assert browser.shown() == lanes
    assert browser.complaints() == []
    assert all(url.startswith("file:") for url in browser.requests())


def test_it_stops_and_begins_anew(browser, page):  # noqa: F811
    opened(browser, page)
    ask(browser, "hello", a="original", tokens=200)
    until(lambda: browser.js("return dapdViewer.clock.last > 2"))
    browser.js("document.querySelector('[name=stop]').click()")
    until(lambda: page.engine.idle)
    until(lambda: done(browser))
    ask(browser, "again", a="original", tokens=8)
    until(lambda: browser.js("return dapdViewer.clock.last === 8 || dapdViewer.lanes[0]?.decoding.done"))
    assert browser.js("return dapdViewer.lanes.length") == 1


def test_tokens_behind_the_end_do_not_count_while_passes_come_either(browser, chatting):  # noqa: F811
    """Fast-dLLM begins with the EOS at the end of its canvas; the card and the lane give one number all the time."""
    opened(browser, chatting)
    browser.js("document.querySelectorAll('.examples button')[0].click()")
    ask(browser, browser.js("return document.querySelector('textarea').value"), a="fast-dllm")
    until(lambda: browser.js("return dapdViewer.clock.last > 2"))
    browser.js("document.querySelector('[name=stop]').click()")
    until(lambda: done(browser))
    shown, counted, decided = browser.js(
        "const { written, decided } = dapdViewer.lanes[0].decoding;"
        "return [Number(document.querySelectorAll('.race dd')[1].textContent), written.at(-1), decided.at(-1)]"
    )
    assert shown == counted < decided


def test_a_visitor_of_the_lab_has_something_to_begin_with(browser, chatting):  # noqa: F811
    """The page names the model and offers prompts that it knows; the canvas is the one that `dapd generate` takes."""
    opened(browser, chatting)
    assert browser.js("return document.querySelector('h1').textContent") == "lab · dapd, live"
    assert browser.js("return [...document.querySelectorAll('.examples button')].map(b => b.textContent)") == [
        "quiz", "story", "record",
    ]  # fmt: skip
    shot(browser, "lab")
    browser.js("document.querySelectorAll('.examples button')[1].click()")
    prompt = browser.js("return document.querySelector('textarea').value")
    assert prompt.endswith("?")
    browser.js("document.querySelector('form').requestSubmit()")
    until(lambda: done(browser), 120)
    assert browser.js("return document.querySelector('.said').textContent") == ""
    assert len(browser.shown()) == room(prompt) != DEFAULT_NEW_TOKENS
    shot(browser, "lab-done")


def test_other_models_offer_no_prompts(browser, page):  # noqa: F811
    opened(browser, page)
    assert browser.js("return document.querySelector('.examples').checkVisibility()") is False
    assert page.lm.name in browser.js("return document.querySelector('h1').textContent")


def test_a_mistake_is_said_in_words(browser, page):  # noqa: F811
    opened(browser, page)
    ask(browser, "hello", tokens=20, block=7)
    until(lambda: "does not divide" in browser.js("return document.querySelector('.said').textContent"))


def test_writing_a_prompt_does_not_play(browser, page):  # noqa: F811
    from selenium.webdriver.common.action_chains import ActionChains

    opened(browser, page)
    browser.js("document.querySelector('textarea').focus()")
    ActionChains(browser.driver).send_keys("a b g . ").perform()
    assert browser.js("return document.querySelector('textarea').value") == "a b g . "


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_the_dark(browser, page, scheme):  # noqa: F811
    browser.media(prefers_color_scheme=scheme)
    browser.width(380)
    try:
        opened(browser, page)
        ask(browser, "hello", a="dapd-staged", b="fast-dllm", tokens=32)
        until(lambda: done(browser))
        assert browser.js("return document.documentElement.scrollWidth") <= 380
        sizes = browser.js("return [...document.querySelectorAll('.ask button')].map(b => b.offsetHeight)")
        assert min(sizes) >= 36
        shot(browser, f"phone-{scheme}")
    finally:
        browser.width(1300)
        browser.media(prefers_color_scheme="light")


def test_the_page_asks_nobody_else_and_has_a_policy(browser, page):  # noqa: F811
    opened(browser, page)
    ask(browser, "hello", tokens=8)
    until(lambda: done(browser))
    assert all(url.startswith((page.base, "data:", "blob:")) for url in browser.requests())
    headers = page.http.get("/").headers
    assert "script-src 'self'" in headers["content-security-policy"]
    assert browser.complaints() == []


def test_no_other_file_can_be_asked_for(page):
    for name in ("../page.py", "..%2fpage.py", "%2e%2e/app.py", "nothing.js"):
        assert page.http.get(f"/static/{name}").status_code == 404
    assert page.http.get("/static/viewer.js").headers["content-type"].startswith("text/javascript")
    assert json.loads(page.http.get("/page.json").text)["model"] == page.lm.name
