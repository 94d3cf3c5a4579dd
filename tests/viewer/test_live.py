"""The picture in the terminal: how often, how wide, and silence elsewhere."""

from __future__ import annotations

import io
import re
import time

import pytest
import torch
from rich.cells import cell_len

import dapd
from dapd.canvas import Canvas
from dapd.cli.generate import cost
from dapd.cli.live import MASK, REDRAWS_PER_SECOND, SHADES, LiveView, printable
from dapd.decoding import Step


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def lm():
    return dapd.load("random:tiny-llada", device="cpu")


@pytest.fixture(autouse=True)
def size(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "12")
    monkeypatch.setenv("TERM", "xterm-256color")


def step(lm, tokens: list[int | None], commit: list[int], index: int = 0) -> Step:
    """A step after which the new tokens are `tokens`, None where masked."""
    profile = lm.network.profile
    canvas = Canvas.blank([65], len(tokens), mask_id=profile.mask_id)
    window = slice(1, 1 + len(tokens))
    known = torch.tensor([t is not None for t in tokens])
    token = torch.tensor([0 if t is None else t for t in tokens])
    chosen = torch.tensor([i in commit for i in range(len(tokens))])
    after = canvas.commit(window, known, token)
    return Step(
        row=0,
        index=index,
        window=window,
        commit=chosen,
        token=token,
        confidence=torch.ones(len(tokens)),
        tail=None,
        edges=None,
        canvas=after,
        seconds=0.1,
        compute_seconds=0.1,
    )


def test_at_most_so_many_redraws_a_second(lm):
    now = iter(i / 200 for i in range(1000))
    out = Terminal()
    view = LiveView(lm, out, clock=lambda: next(now))
    drawn = []
    view.live.update = lambda *_, **__: drawn.append(1)
    for index in range(200):
        view.add(step(lm, [65, None], [0], index))
    assert len(drawn) <= REDRAWS_PER_SECOND


def test_it_is_quiet_where_there_is_no_terminal(lm):
    out = io.StringIO()
    with LiveView(lm, out) as view:
        view.add(step(lm, [65, None], [0]))
    assert out.getvalue() == ""


def test_the_end_is_the_plain_text(lm):
    out = Terminal()
    with LiveView(lm, out) as view:
        lm.generate("hello", max_new_tokens=8, on_step=view.add)
    last = view.render(view.last, done=True)
    assert MASK not in last.plain
    assert "left" not in last.plain
    assert "forward pass" not in last.plain


def test_with_a_pace_the_masks_are_seen_first(lm):
    frames = []
    view = LiveView(lm, Terminal(), pace=0.001)
    view.live.update = lambda text, **_: frames.append(text.plain)
    view.add(step(lm, [72, None, 105], [0, 2]))
    view.add(step(lm, [72, 33, 105], [1], 1))
    assert [frame.splitlines()[0] for frame in frames] == [MASK * 3, f"H{MASK}i", "H!i"]
    assert "0 forward passes, 3 masks left" in frames[0]


def test_waiting_for_the_eye_is_not_counted_as_time(lm):
    done = lm.generate("hello", max_new_tokens=8, strategy="original", on_step=lambda _: time.sleep(0.05))
    assert done.seconds > 0.3
    assert f"{done.compute_seconds:.2f} s" in cost(done, paced=True)
    assert f"{done.seconds:.2f} s" in cost(done)
    assert done.seconds - done.compute_seconds > 0.3


def test_tokens_are_counted_as_everywhere(lm, monkeypatch):
    """The end of the text is no token of it, and what stands behind it neither."""
    monkeypatch.setenv("COLUMNS", "80")
    view = LiveView(lm, Terminal())
    end = lm.network.profile.eos_id
    view.add(step(lm, [65, 66, None, end, end, end], [0, 1, 3, 4, 5]))
    assert "1 mask left, 2.0 tokens a pass" in view.render(view.last).plain
    done = lm.generate("hello", max_new_tokens=40, on_step=LiveView(lm, Terminal()).add)
    view = LiveView(lm, Terminal())
    lm.generate("hello", max_new_tokens=40, on_step=view.add)
    assert f"{done.tokens_per_forward:.1f} tokens a pass" in view.render(view.last).plain


def test_wide_characters_are_whole_or_masked(lm):
    view = LiveView(lm, Terminal())
    view.add(step(lm, [*"日本".encode()], list(range(6))))
    assert view.render(view.last).plain.startswith("日本\n")
    half = [*"日本".encode()]
    view.add(step(lm, [*half[:4], None, half[5]], []))
    shown = view.render(view.last).plain.splitlines()[0]
    assert shown.startswith("日" + MASK * 2)
    assert "\ufffd" not in shown[:2]


def test_no_line_is_wider_or_lower_than_the_terminal(lm):
    view = LiveView(lm, Terminal())
    text = "日本語のとても長い文章 and some words \x1b[2J that wrap " * 12
    view.add(step(lm, [*text.encode()], [600]))
    lines = view.render(view.last).wrap(view.console, view.console.width)
    assert max(cell_len(line.plain) for line in lines) <= 40
    assert len(lines) <= 12
    assert "\x1b" not in view.render(view.last).plain


def test_controls_are_left_out():
    assert printable("a\x1b[2J\tb\r\nc\x07") == "a[2J b\nc"


def test_what_is_written_holds_the_text(lm):
    out = Terminal()
    with LiveView(lm, out) as view:
        view.add(step(lm, [72, 105, None], [0, 1]))
        view.add(step(lm, [72, 105, 33], [2], 1))
    assert "Hi!" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())


def test_light_means_early_as_on_the_page():
    """The newest token stands out by itself; among the others the older one is lighter."""
    newest, *others = SHADES
    assert newest == "bold reverse"
    lights = [sum(bytes.fromhex(shade.rpartition("#")[2])) for shade in others]
    assert lights == sorted(lights)
