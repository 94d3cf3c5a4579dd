"""The page in a real browser: it plays, seeks, explains, keeps in step, and asks nothing of the network."""

from __future__ import annotations

import dataclasses
import math
import re
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from itertools import combinations, count
from xml.etree import ElementTree

import pytest

from dapd.trace import Record, Trace
from dapd.viewer import write_page
from dapd.viewer.compact import compact
from dapd.viewer.page import embedded, read
from viewer.helpers_viewer import Browser, big, made

numbers = count()


def show(browser: Browser, traces: list[Trace], title: str | None = None) -> None:
    path = browser.folder / f"{next(numbers)}.html"
    write_page(path, traces, title)
    browser.complaints()
    browser.requests()
    browser.open(path)


def seek(browser: Browser, step: int) -> None:
    """Move the slider as a hand would."""
    browser.js(
        "const s = document.querySelector('input[type=range]'); s.value = arguments[0];"
        "s.dispatchEvent(new Event('input', {bubbles: true}))",
        step,
    )


def seen(trace: Trace, step: int) -> dict[int, str | None]:
    """What a lane must show after a step: line ends stand outside of the token's box, other controls as pictures."""
    out: dict[int, str | None] = dict.fromkeys(trace.slots)
    for record in trace.steps[:step]:
        for position, token, text in zip(record.positions, record.tokens, record.texts, strict=True):
            text = "".join(chr(0x2400 + ord(c)) if ord(c) < 32 and c not in "\t\n" else c for c in text)
            out[position] = "·" if token == trace.eos_id or text == "" else text.rstrip("\n")
    return out


def press(browser: Browser, key: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser.driver).send_keys(key).perform()


def until(check, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)


def test_it_plays_to_the_end(browser, decoded):
    show(browser, decoded[:1])
    assert set(browser.shown().values()) == {None}
    browser.js("dapdViewer.clock.rate = 60; document.querySelector('.play').click()")
    until(lambda: browser.js("return !dapdViewer.clock.playing && dapdViewer.clock.pass === dapdViewer.clock.last"))
    assert browser.shown() == seen(decoded[0], decoded[0].nfe)
    assert "done in" in browser.js("return document.querySelector('.badge').textContent")
    assert browser.js("return document.querySelector('.play').getAttribute('aria-label')") == "Play"


def test_the_slider_shows_the_text_of_its_step(browser, decoded):
    show(browser, decoded[:1])
    last = decoded[0].nfe
    for step in (1, last, last // 2, 0, last - 1):
        seek(browser, step)
        assert browser.shown() == seen(decoded[0], step)
        assert browser.js("return document.querySelector('input').getAttribute('aria-valuetext')") == (
            f"pass {step} of {last}"
        )


def ended() -> list[Trace]:
    """Texts that end early: by a tail, an EOS in the middle, one that was fixed; a template, which has no end; and one
    that goes on behind the end of its turn."""
    slots = list(range(2, 10))
    first = Record(1, [2, 3, 5], [5, 5, 5], [0.9] * 3, 5, 2, 0.1, texts=["a", "b", "c"])
    tail = Record(2, [4, 6], [5, 8], [0.9] * 2, 0, 1, 0.2, tail=[7, 8, 9], texts=["d", ""])
    middle = Record(2, [4, 6, 7, 8, 9], [5, 8, 5, 5, 5], [0.9] * 5, 0, 1, 0.2, texts=["d", "", "e", "f", "g"])
    blank = [1] * 2 + [9] * 8
    fixed = [*blank[:7], 8, *blank[8:]]
    slots_beside = [p for p in slots if p != 7]
    turns = Record(2, [4, 6, 7, 8, 9], [5, 7, 5, 7, 5], [0.9] * 5, 0, 1, 0.2, texts=["d", "", "e", "", "g"])
    return [
        Trace(blank, slots, 9, 8, 2, steps=[first, tail]),
        Trace(blank, slots, 9, 8, 2, steps=[first, middle]),
        Trace(fixed, slots_beside, 9, 8, 2, steps=[first, dataclasses.replace(tail, tail=[8, 9])]),
        Trace(blank, slots, 9, 8, 2, open_ended=False, steps=[first, middle]),
        Trace(blank, slots, 9, 8, 2, steps=[first, turns], eot_id=7),
    ]


def test_tokens_are_counted_as_everywhere(browser):
    """The page said 160 tokens and 32.0 a pass where the command line said 133 and 26.6."""
    traces = ended()
    assert [trace.n_generated for trace in traces] == [4, 4, 4, 8, 5]
    show(browser, traces)
    seek(browser, 2)
    told = browser.js("return [...document.querySelectorAll('.counts')].map((p) => p.textContent)")
    for trace, words in zip(traces, told, strict=True):
        assert f"{trace.n_generated} tokens, {trace.tokens_per_forward:.1f} a pass" in words
    lead = browser.js("return document.querySelector('.lead').textContent")
    assert re.findall(r"for (\d+) tokens", lead) == [str(trace.n_generated) for trace in traces]
    seek(browser, 1)
    told = browser.js("return [...document.querySelectorAll('.counts')].map((p) => p.textContent)")
    assert all("3 tokens, 3.0 a pass" in words for words in told)


def test_keys(browser, decoded):
    from selenium.webdriver.common.keys import Keys

    show(browser, decoded[:1])
    at = "return dapdViewer.clock.pass"
    for key, expected in (
        (Keys.ARROW_RIGHT, 1),
        (Keys.ARROW_RIGHT, 2),
        (Keys.ARROW_LEFT, 1),
        (Keys.END, decoded[0].nfe),
    ):
        press(browser, key)
        assert browser.js(at) == expected
    press(browser, Keys.HOME)
    assert browser.js(at) == 0
    press(browser, " ")
    assert browser.js("return dapdViewer.clock.playing")
    press(browser, " ")
    assert not browser.js("return dapdViewer.clock.playing")
    press(browser, "g")
    assert browser.js("return dapdViewer.showGraph")


def test_side_by_side_keeps_in_step(browser, decoded):
    show(browser, decoded)
    last = max(trace.nfe for trace in decoded)
    assert browser.js("return dapdViewer.clock.last") == last
    for step in range(0, last + 1, max(1, last // 7)):
        seek(browser, step)
        for lane, trace in enumerate(decoded):
            assert browser.shown(lane) == seen(trace, min(step, trace.nfe))
    labels = browser.js("return [...document.querySelectorAll('h2')].map((h) => h.textContent)")
    assert labels[0].startswith("dapd-staged")
    assert labels[1].startswith("fast-dllm")


def test_nothing_is_logged_and_nothing_asked_for(browser, decoded):
    show(browser, decoded)
    press(browser, "g")
    for step in range(decoded[0].nfe):
        seek(browser, step)
    browser.js("for (const lane of dapdViewer.lanes) lane.step(1)")
    time.sleep(0.6)
    assert browser.complaints() == []
    assert all(url.startswith("file://") and url.endswith(".html") for url in browser.requests())


def test_html_is_shown_and_never_run(browser):
    nasty = '<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script>&amp;'
    trace = made([[nasty, "<b>"], ["</div>"]], prompt=nasty, model=nasty, strategy={"name": nasty, "x<i>": nasty})
    show(browser, [trace], title=nasty)
    seek(browser, 2)
    browser.js("dapdViewer.lanes[0].step(1)")
    assert list(browser.shown().values()) == [nasty, "<b>", "</div>"]
    assert browser.js("return document.title") == nasty
    assert browser.js("return document.querySelector('pre').textContent") == nasty
    assert browser.js("return [window.hacked, document.querySelectorAll('img, b:not(.badge)').length]") == [None, 0]
    assert browser.complaints() == []


def test_it_says_why_a_token_was_held_back(browser, decoded):
    trace = decoded[0]
    show(browser, [trace])
    step, held, blocker = next(
        (r.step, i, j) for r in trace.steps for i, j in r.edges if j in r.positions and i not in r.positions
    )
    seek(browser, step)
    browser.js("dapdViewer.lanes[0].inspect(arguments[0])", held)
    said = browser.js("return document.querySelector('.tip').textContent")
    assert f"Held back in pass {step}" in said
    assert "It depends on" in said
    assert "chosen in this pass" in said
    found = browser.js("return dapdViewer.lanes[0].decoding.blockers(arguments[0], arguments[1])", held, step)
    assert blocker in found
    assert set(found) == {
        j for i, j in trace.steps[step - 1].edges if i == held and j in trace.steps[step - 1].positions
    }


def test_a_threshold_is_named_where_there_is_no_graph(browser):
    trace = made([["sure"], ["unsure"]], strategy={"name": "Threshold", "threshold": 0.9})
    trace.steps[0] = dataclasses.replace(trace.steps[0], held=[[3, 0.43]])
    show(browser, [trace])
    seek(browser, 1)
    browser.js("dapdViewer.lanes[0].inspect(3)")
    said = browser.js("return document.querySelector('.tip').textContent")
    assert "confidence 0.43" in said
    assert "below the threshold of 0.9" in said
    press(browser, "g")
    assert "were not recorded" in browser.js("return document.querySelector('.note').textContent")


def test_the_graph_is_drawn_on_demand(browser, decoded):
    show(browser, decoded[:1])
    seek(browser, 1)
    ink = (
        "const c = document.querySelector('.graph');"
        "return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v) => v > 0)"
    )
    assert not browser.js(ink)
    press(browser, "g")
    assert browser.js(ink)
    press(browser, "g")
    assert not browser.js(ink)


def test_different_prompts_are_labelled(browser):
    show(browser, [made([["a"]], prompt="one"), made([["b"]], prompt="two")])
    page = browser.js("return document.querySelector('.facts').textContent")
    assert "different prompts" in page
    assert "one" in page
    assert "two" in page


def test_a_large_trace_steps_fast(browser):
    show(browser, [big()])
    assert browser.js("return dapdViewer.lanes[0].panel.spans.size") == 1024
    took = browser.js(
        "const began = performance.now();"
        "for (let p = 1; p <= 256; p++) { dapdViewer.clock.seek(p); document.body.offsetHeight; }"
        "return (performance.now() - began) / 256"
    )
    assert took < 33, f"{took:.1f} ms a step"
    assert "left out to keep the page small" in browser.js(
        "dapdViewer.clock.seek(3); dapdViewer.graph(true); return document.querySelector('.note').textContent"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1300])
def test_it_fits_and_can_be_read(browser, decoded, scheme, width):
    browser.width(width)
    browser.media(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    try:
        show(browser, decoded)
        seek(browser, decoded[0].nfe)
        assert browser.js("return document.documentElement.scrollWidth") <= width
        worst = browser.js(CONTRAST)
        assert worst >= 4.5, f"a token has contrast {worst:.2f}"
        assert browser.js("return getComputedStyle(document.querySelector('.new')).animationName") == "none"
    finally:
        browser.media()
        browser.width(1300)


CONTRAST = """
const light = (css) => {
  const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = css.match(/[0-9.]+/g).map((v) => linear(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
return Math.min(...[...document.querySelectorAll('.t:not(.m)')].map((span) => {
  const style = getComputedStyle(span);
  const [a, b] = [light(style.color), light(style.backgroundColor)].sort((x, y) => x - y);
  return (b + 0.05) / (a + 0.05);
}));
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_low_confidence_is_underlined_and_does_not_fade(browser, scheme):
    trace = made([["no", "perhaps", "yes"]])
    trace.steps[0] = dataclasses.replace(trace.steps[0], confidences=[0.1, 0.7, 0.99])
    browser.media(prefers_color_scheme=scheme)
    try:
        show(browser, [trace])
        seek(browser, 1)
        looks = browser.js(
            "return [...dapdViewer.lanes[0].panel.spans.values()].map(getComputedStyle)"
            ".map((s) => [s.backgroundColor, s.textDecorationLine, s.textDecorationStyle])"
        )
        assert len({back for back, _, _ in looks}) == 1
        assert [look[1:] for look in looks] == [["underline", "wavy"], ["underline", "dotted"], ["none", "solid"]]
        legend = browser.js("return document.querySelector('.legend').textContent")
        for words in ("early", "late", "masked", "in this pass", "below 0.9", "below 0.5"):
            assert words in legend
        assert browser.js("return document.querySelectorAll('.legend .t').length") == 4
    finally:
        browser.media()


def test_everything_has_a_name_for_screen_readers(browser, decoded):
    show(browser, decoded)
    nameless = browser.js(
        "return [...document.querySelectorAll('button, input, select, canvas:not([aria-hidden]), section, nav, .text')]"
        ".filter((e) => !(e.getAttribute('aria-label') || e.labels?.[0]?.textContent.trim())).map((e) => e.outerHTML)"
    )
    assert nameless == []
    seek(browser, 2)
    until(lambda: "pass 2 of" in browser.js("return document.querySelector('[role=status]').textContent"), 5)


def test_live_records_one_by_one(browser, decoded):
    """What a server's page does: the same class, the trace's own records, as they come."""
    show(browser, decoded[:1])
    trace = decoded[0]
    head = compact(trace)["head"]
    browser.js("window.live = new dapdViewer.constructor(document.querySelector('main'), {title: 'live'})")
    browser.js("window.lane = live.lane(arguments[0])", head)
    for record in trace.steps:
        browser.js("lane.add(arguments[0])", {k: v for k, v in vars(record).items() if v is not None})
        assert browser.js("return live.clock.pass") == record.step
    shown = browser.js(
        "return [...lane.panel.spans].map(([p, s]) => [p, s.classList.contains('m') ? null : s.textContent])"
    )
    assert dict(shown) == seen(trace, trace.nfe)
    assert browser.js("return lane.decoding.graph(1).count") == len(trace.steps[0].edges)
    assert browser.complaints() == []


def test_the_modules_stand_alone(browser, decoded, tmp_path):
    """Served as they are, without the inlining."""
    page = tmp_path / "index.html"
    page.write_text(
        f"<!doctype html><link rel=icon href=data:,><style>{read('viewer.css')}</style><main></main>"
        f"<script type=application/json id=traces>{embedded({'title': 't', 'traces': [compact(decoded[0])]})}</script>"
        "<script type=module>import {mount} from './viewer.js';"
        "const page = JSON.parse(document.getElementById('traces').textContent);"
        "window.dapdViewer = mount(document.querySelector('main'), page)"
        "</script>"
    )
    for source in (files("dapd.viewer") / "static").iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        browser.complaints()
        browser.open(f"http://127.0.0.1:{server.server_address[1]}/index.html")
        until(lambda: browser.js("return Boolean(window.dapdViewer)"), 5)
        seek(browser, 3)
        assert browser.shown() == seen(decoded[0], 3)
        assert browser.complaints() == []
    finally:
        server.shutdown()
        server.server_close()


class Quiet(SimpleHTTPRequestHandler):
    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".js": "text/javascript"}

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "odd", None, [1], {"a": float("nan")}], ids=str)
def test_odd_settings_do_not_leave_the_page_blank(browser, decoded, value):
    strategy = {"name": "Dapd", "tau_min": value, "tau_max": value, "certain": value, "threshold": value}
    about = {"prompt": value, "strategy": strategy, "options": {"block_length": value}, "temperature": value}
    show(browser, [dataclasses.replace(decoded[0], about=about)])
    assert browser.js("return dapdViewer.lanes.length") == 1
    for step in range(decoded[0].nfe + 1):
        seek(browser, step)
    assert browser.shown() == seen(decoded[0], decoded[0].nfe)
    assert browser.complaints() == []


CHAT = (
    "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)


@pytest.mark.parametrize("width", [390, 1300])
def test_a_long_prompt_does_not_push_the_text_away(browser, width):
    asked = "\n".join(f"[{i}] What is {i} times {i}?" for i in range(40))
    browser.width(width)
    try:
        show(browser, [made([["a"]], prompt=CHAT.format(asked))])
        assert browser.js("return document.querySelector('.prompt').offsetHeight") < 60
        assert browser.js("return document.querySelector('.text').getBoundingClientRect().top") < 600
        assert browser.js("return document.querySelector('.prompt pre').textContent") == asked
        browser.js("document.querySelector('.prompt summary').click()")
        assert browser.js("return document.querySelector('.prompt').offsetHeight") > 200
    finally:
        browser.width(1300)


def test_the_roles_of_several_turns_are_named(browser):
    turns = (("system", "Be brief."), ("user", "Hello"), ("assistant", ""))
    prompt = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    show(browser, [made([["a"]], prompt=prompt)])
    assert browser.js("return document.querySelector('.prompt pre').textContent") == "system: Be brief.\n\nuser: Hello"


def test_runners_up_are_shown_where_the_trace_has_them(browser):
    trace = made([["yes"], ["so"]])
    trace.steps[0] = dataclasses.replace(trace.steps[0], top=[[[5, -0.1, "yes"], [6, -2.5, " no"], [7, -9.0, "or"]]])
    trace.steps[1] = dataclasses.replace(trace.steps[1], top=[[[5, -0.2, "so"], [8, -1.8, ""], [9, -math.inf, "x"]]])
    show(browser, [trace])
    seek(browser, 1)
    said = "dapdViewer.lanes[0].inspect(arguments[0]); return document.querySelector('.tip').innerText"
    decided = browser.js(said, 2)
    for words in ("Likeliest in pass 1", "“yes” 90.5%, “no” 8.2%, “or” below 0.1%"):
        assert words in decided
    masked = browser.js(said, 3)
    for words in ("Held back in pass 1", "Pass 2 decides it; likeliest there: “so”", "the end of the text 16.5%"):
        assert words in masked
    assert "“x”" not in masked
    show(browser, [made([["yes"]])])
    assert "Likeliest" not in browser.js(said, 2)


def test_the_graph_is_no_hairball(browser):
    show(browser, [big(200, 20)])
    record = big(200, 20).steps[2]
    seek(browser, 3)
    press(browser, "g")
    links = "return dapdViewer.lanes[0].graph.links"
    note = "return document.querySelector('.note').textContent"
    assert 0 < len(browser.js(links)) <= 24
    assert all([held, chosen] in record.edges for held, chosen in browser.js(links))
    assert f"{len(record.edges)} edges in all" in browser.js(note)
    assert "Point at a token" in browser.js(note)
    held = next(i for i, j in record.edges if j in record.positions and i not in record.positions)
    browser.js("dapdViewer.lanes[0].inspect(arguments[0])", held)
    own = sorted(j for i, j in record.edges if i == held and j in record.positions)
    assert sorted(other for _, other in browser.js(links)) == own
    assert f"{len(own)} lead from this token" in browser.js(note)


def test_a_large_first_pass_does_not_flatten_the_chart(browser):
    show(browser, [made([["a"] * 138, ["b"] * 3, ["c"], ["d"] * 2, ["e"]])])
    passes = "const c = dapdViewer.curves[1]; "
    assert browser.js(passes + "return [c.steep, dapdViewer.curves[0].steep]") == [True, False]
    assert browser.js(passes + "return c.share(3, 138)") > 0.2
    assert "logarithmic" in browser.js(passes + "return c.element.textContent")
    show(browser, [made([["a"] * 3, ["b"] * 2, ["c"]])])
    assert browser.js(passes + "return c.steep || c.element.textContent.includes('logarithmic')") is False


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("strategy", ["Original", "Dapd"])
def test_lanes_of_one_family_can_be_told_apart(browser, decoded, scheme, strategy):
    browser.media(prefers_color_scheme=scheme)
    try:
        show(browser, [decoded[0] if strategy == "Dapd" else made([["a"]], strategy={"name": strategy})] * 4)
        inks = browser.js(
            "return [...document.querySelectorAll('.lane .swatch')].map((s) => getComputedStyle(s).backgroundColor)"
        )
        colours = [[int(part) for part in re.findall(r"\d+", ink)] for ink in inks]
        apart = [sum(abs(a - b) for a, b in zip(one, two, strict=True)) for one, two in combinations(colours, 2)]
        assert min(apart) > 60, colours
    finally:
        browser.media()


def test_an_address_leads_to_a_pass_and_is_kept_up_to_date(browser, decoded):
    path = browser.folder / "address.html"
    write_page(path, decoded[:1])
    browser.open(f"{path.as_uri()}#pass=2")
    at = "return dapdViewer.clock.pass"
    assert browser.js(at) == 2
    assert browser.shown() == seen(decoded[0], 2)
    seek(browser, 3)
    until(lambda: browser.js("return location.hash") == "#pass=3", 5)
    browser.js("location.hash = '#pass=1'")
    until(lambda: browser.js(at) == 1, 5)
    browser.js("location.hash = '#pass=999999'")
    until(lambda: browser.js(at) == decoded[0].nfe, 5)
    browser.js("location.hash = '#elsewhere'")
    time.sleep(0.4)
    assert browser.js(at) == decoded[0].nfe


@pytest.mark.parametrize("width", [360, 1300])
def test_the_text_is_saved_as_a_picture(browser, decoded, width):
    """A file of its own with what is decided, without what is still masked."""
    nasty = made([["<b>&", " sure\n"], [" later", "x" * 90]])
    browser.width(width)
    try:
        show(browser, [decoded[0], nasty])
        seek(browser, 1)
        browser.js(
            "globalThis.saved = null; const make = URL.createObjectURL.bind(URL);"
            "URL.createObjectURL = (blob) => { blob.text().then((t) => (globalThis.saved = t)); return make(blob); };"
            "document.querySelector('.shot').click()"
        )
        until(lambda: browser.js("return globalThis.saved !== null"), 5)
        root = ElementTree.fromstring(browser.js("return globalThis.saved"))
        said = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
        for words in ("dapd-staged", "<b>&", " sure↵", *decoded[0].steps[0].texts):
            assert words.strip() in " ".join(filter(None, said))
        assert " later" not in said
        for rect in list(root.iter("{http://www.w3.org/2000/svg}rect"))[1:]:
            assert 0 <= float(rect.get("x")) <= float(root.get("width"))
            assert 0 <= float(rect.get("y")) <= float(root.get("height"))
        assert browser.complaints() == []
    finally:
        browser.width(1300)


@pytest.mark.parametrize("word", [" word", "word", " a", "語", ""])
def test_tokens_are_not_broken_into_slivers(browser, word):
    browser.width(360)
    try:
        show(browser, [made([[word] * 150])])
        for step in (0, 1):
            seek(browser, step)
            boxes = browser.js(
                "return [...dapdViewer.lanes[0].panel.spans.values()].map(s => s.getClientRects().length)"
            )
            assert set(boxes) == {1}
            assert browser.js("return document.documentElement.scrollWidth") <= 360
            assert browser.js("const t = document.querySelector('.text'); return t.scrollWidth - t.clientWidth") <= 1
    finally:
        browser.width(1300)
