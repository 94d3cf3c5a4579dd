"""The record of a decoding: every step as plain data, JSONL out and in, and the counts that follow from it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from dapd.canvas import Canvas
from dapd.decoding import Step
from dapd.decoding.step import Top
from dapd.errors import DapdError
from dapd.io.files import parse_json, write_text
from dapd.models import Profile

VERSION = 1


@dataclass(frozen=True)
class Record:
    """One forward pass of one row. Positions count from the row's first token, the prompt's included."""

    step: int
    """Forward passes of this row up to here, this one included: 1, 2, ..."""
    positions: list[int]
    tokens: list[int]
    confidences: list[float]
    masks_left: int
    segments: int
    """Contiguous runs of decided tokens in the generation region."""
    seconds: float
    """Time since the row's first pass began."""
    tail: list[int] = field(default_factory=list)
    """Positions that an early stop filled with EOS."""
    texts: list[str] | None = None
    edges: list[list[int]] | None = None
    """The dependency graph as pairs [i, j]: a taken j keeps i out. None if it was not recorded."""
    held: list[list[float]] | None = None
    """[position, confidence] of every position that this pass saw and left masked; None if it was not recorded."""
    top: list[list[list[Any]]] | None = None
    """For each committed position its likeliest tokens as [token, log-probability, text], the likeliest first."""


@dataclass
class Trace:
    """One row's decoding from the first mask to the last."""

    canvas: list[int]
    """The row's tokens at the start, masks included."""
    slots: list[int]
    """The masked positions at the start."""
    mask_id: int
    eos_id: int
    start: int = 0
    """First position of the generation region."""
    open_ended: bool = True
    """Whether the text may end before the slots do; where a template is filled, EOS is a token like any other."""
    about: dict[str, Any] = field(default_factory=dict)
    """Model, strategy, options, prompt, and anything else that the writer adds."""
    steps: list[Record] = field(default_factory=list)
    texts: list[str] | None = None
    """The text of each token of the canvas, empty for a mask; None without a tokenizer."""
    eot_id: int | None = None
    """The token that ends a turn; None: there is none, or the trace was written before it was kept."""

    @property
    def nfe(self) -> int:
        """Forward passes."""
        return len(self.steps)

    @property
    def seconds(self) -> float:
        return self.steps[-1].seconds if self.steps else 0.0

    @property
    def complete(self) -> bool:
        return not self.slots or bool(self.steps and self.steps[-1].masks_left == 0)

    def tokens(self, upto: int | None = None) -> list[int]:
        """The row after `upto` steps (None: all)."""
        row = list(self.canvas)
        for record in self.steps[:upto]:
            for position, token in zip(record.positions, record.tokens, strict=True):
                row[position] = token
            for position in record.tail:
                row[position] = self.eos_id
        return row

    @property
    def generated_ids(self) -> list[int]:
        """The tokens in the slots, in order of position."""
        row = self.tokens()
        return [row[position] for position in self.slots]

    @property
    def n_generated(self) -> int:
        """Generated tokens up to the end of the text, whether that was generated or fixed beforehand."""
        start = self.start if self.open_ended else None
        return _count_text(
            self.tokens(), self.slots, mask_id=self.mask_id, eos_id=self.eos_id, eot_id=self.eot_id, start=start
        )

    @property
    def tokens_per_forward(self) -> float:
        """Generated tokens of the text, per forward pass: what comes after its end does not count."""
        return self.n_generated / max(1, self.nfe)

    @property
    def has_top(self) -> bool:
        """Whether the likeliest tokens of every commit were kept."""
        return any(record.top is not None for record in self.steps)

    def commits(self) -> list[dict[str, Any]]:
        """Every committed token in the order of the text: its position, the pass that committed it, its probability in
        that pass, and the likeliest tokens there where they were kept."""
        commits = []
        for record in self.steps:
            for place, position in enumerate(record.positions):
                one = {
                    "position": position,
                    "pass": record.step,
                    "token": record.tokens[place],
                    "text": None if record.texts is None else record.texts[place],
                    "confidence": record.confidences[place],
                }
                commits.append(one if record.top is None else {**one, "top": record.top[place]})
        return sorted(commits, key=lambda one: one["position"])

    def summary(self) -> dict[str, Any]:
        return {
            "nfe": self.nfe,
            "generated_tokens": self.n_generated,
            "tokens_per_forward": round(self.tokens_per_forward, 4),
            "seconds": round(self.seconds, 6),
            "complete": self.complete,
        }


class Recorder:
    """Makes the trace of a row from its steps."""

    def __init__(
        self,
        canvas: Canvas,
        eos_id: int,
        about: dict[str, Any] | None = None,
        text: Callable[[int], str] | None = None,
        *,
        eot_id: int | None = None,
        held: bool = False,
    ) -> None:
        self.text = text
        self.held = held
        self.before = canvas.masked
        self.compute_seconds = 0.0
        """The row's share of the time of its passes."""
        self.trace = Trace(
            canvas=canvas.tokens.tolist(),
            slots=_where(canvas.slots),
            mask_id=canvas.mask_id,
            eos_id=eos_id,
            start=canvas.start,
            open_ended=canvas.n_new is not None,
            about=about or {},
            eot_id=eot_id,
        )
        if text is not None:
            self.trace.texts = ["" if token == canvas.mask_id else text(token) for token in self.trace.canvas]

    def add(self, step: Step) -> None:
        """Record a step of the row."""
        first = step.window.start
        places = _where(step.commit)
        tokens = step.token[step.commit].tolist()
        masked = step.canvas.masked
        self.compute_seconds += step.compute_seconds
        self.trace.steps.append(
            Record(
                step=self.trace.nfe + 1,
                positions=[first + place for place in places],
                tokens=tokens,
                confidences=[round(confidence, 6) for confidence in step.confidence[step.commit].tolist()],
                masks_left=int(masked.sum()),
                segments=segments(step.canvas),
                seconds=round(step.seconds, 6),
                tail=[] if step.tail is None else _where(step.tail),
                texts=None if self.text is None else [self.text(token) for token in tokens],
                edges=None if step.edges is None else self._edges(step),
                held=self._held(step) if self.held else None,
                top=None if step.top is None else self._top(step.top, places),
            )
        )
        self.before = masked

    def _edges(self, step: Step) -> list[list[int]]:
        """The edges between positions that were masked before the step."""
        assert step.edges is not None
        nodes = self.before[step.window]
        first = step.window.start
        return [[first + i, first + j] for i, j in (step.edges & nodes[:, None] & nodes).nonzero().tolist()]

    def _top(self, top: Top, places: Sequence[int]) -> list[list[list[Any]]]:
        """The likeliest tokens at the places that were committed, without those that are ruled out there."""
        text = self.text or (lambda token: "")
        return [
            [[token, round(log_p, 4), text(token)] for token, log_p in zip(*pair, strict=True) if math.exp(log_p) > 0]
            for pair in zip(top.token[places].tolist(), top.log_p[places].tolist(), strict=True)
        ]

    def _held(self, step: Step) -> list[list[float]]:
        """The positions that stayed masked, each with the confidence that this pass gave it."""
        stayed = step.canvas.masked[step.window]
        confidences = step.confidence[stayed].tolist()
        return [
            [step.window.start + place, round(confidence, 3)]
            for place, confidence in zip(_where(stayed), confidences, strict=True)
        ]


def _count_text(
    row: Sequence[int], slots: Iterable[int], *, mask_id: int, eos_id: int, eot_id: int | None, start: int | None
) -> int:
    """The number of slots that hold text: decided ones before the first EOS from `start` on, or up to the first token
    that ends a turn, which counts.

    Every figure of tokens per forward pass counts these. Without a `start` the text has no end of its own, and both are
    tokens like any other.
    """
    end = len(row)
    if start is not None:
        end = next((place for place in range(start, end) if row[place] in (eos_id, eot_id)), end)
        if end < len(row) and row[end] != eos_id:
            end += 1
    return sum(position < end and row[position] != mask_id for position in slots)


def text_on(canvas: Canvas, profile: Profile) -> int:
    """The number of tokens of text on a canvas, counted as in a trace."""
    return _count_text(
        canvas.tokens.tolist(),
        _where(canvas.slots),
        mask_id=canvas.mask_id,
        eos_id=profile.eos_id,
        eot_id=profile.eot_id,
        start=None if canvas.n_new is None else canvas.start,
    )


def segments(canvas: Canvas) -> int:
    """How many contiguous runs of decided tokens there are among the slots."""
    decided = canvas.slots & ~canvas.masked
    return int((decided[1:] & ~decided[:-1]).sum()) + int(decided[0])


def write_traces(path: str | Path, traces: Iterable[Trace]) -> None:
    """One JSON object a line: for each row a `trace`, its `step`s and an `end`."""
    lines = []
    for trace in traces:
        head = {k: v for k, v in vars(trace).items() if k != "steps"}
        lines.append(_line({"kind": "trace", "version": VERSION, **head}))
        for record in trace.steps:
            lines.append(_line({"kind": "step", **{k: v for k, v in vars(record).items() if v is not None}}))
        lines.append(_line({"kind": "end", **trace.summary()}))
    write_text(Path(path), "".join(lines))


def read_traces(path: str | Path) -> list[Trace]:
    """The traces of a file. A truncated file, or one of another kind, is refused by an error that names the line."""
    traces: list[Trace] = []
    is_open = False
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise DapdError(f"cannot read a trace from {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DapdError(f"{path} is not a trace: it is not text") from None
    # Not splitlines(): tokens may hold separators that count as line ends there and not in JSON.
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], 1):
        try:
            content = parse_json(line)
            if not isinstance(content, dict) or "kind" not in content:
                raise ValueError("a line of a trace is a JSON object with a kind")
            kind = content.pop("kind")
            if kind == "trace" and not is_open:
                if content.pop("version") != VERSION:
                    raise DapdError(f"{path}, line {number}: a trace of another version; version {VERSION} is needed")
                traces.append(Trace(**content))
                is_open = True
            elif kind == "step" and is_open:
                traces[-1].steps.append(Record(**content))
            elif kind == "end" and is_open:
                is_open = False
                _check(traces[-1])
            else:
                raise ValueError(f"a {kind!r} line is out of place")
        except DapdError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DapdError(f"{path}, line {number}: not a dapd trace ({error})") from None
    if is_open:
        raise DapdError(f"{path} ends in the middle of a trace: it is truncated")
    if not traces:
        raise DapdError(f"{path} holds no trace")
    return traces


def _check(trace: Trace) -> None:
    """Refuse a trace that contradicts itself, before anything is computed from it."""
    left = {int(position) for position in trace.slots}
    if not left <= set(range(len(trace.canvas))):
        raise ValueError("a slot lies outside of the canvas")
    if not isinstance(trace.about, dict) or len(trace.texts or trace.canvas) != len(trace.canvas):
        raise ValueError("'about' is not an object, or 'texts' does not hold one text for every token")
    for number, record in enumerate(trace.steps, 1):
        pairs: list[Any] = [*(record.edges or []), *(record.held or [])]
        if record.step != number or sum(record.confidences) < 0 or any(len(pair) != 2 for pair in pairs):
            raise ValueError(f"step {record.step} is out of order, or its confidences, edges or held are wrong")
        told = {len(record.positions), len(record.tokens), len(record.confidences), len(record.texts or record.tokens)}
        if len(told) > 1:
            raise ValueError(f"step {record.step} has different numbers of positions, tokens, confidences or texts")
        decided = [*record.positions, *record.tail]
        if len(set(decided)) < len(decided) or not left.issuperset(decided):
            raise ValueError(f"step {record.step} decides a position twice, or one that was not masked")
        left.difference_update(decided)


def _line(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, default=_plain) + "\n"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)


def _where(mask: Tensor) -> list[int]:
    return [int(i) for i in mask.nonzero().flatten().tolist()]
