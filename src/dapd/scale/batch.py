"""Many prompts offline: one result for every row of a file, even if workers die on the way."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dapd.decoding import Options
from dapd.errors import DapdError
from dapd.evaluation.fingerprint import fingerprint
from dapd.evaluation.ledger import Job, Ledger, digest
from dapd.evaluation.runs import SETUP, Record, Run
from dapd.generation import Completion, DiffusionLM, Prompt
from dapd.io.files import alone_in, check_writable, make_folder
from dapd.lab.tasks.rooms import room_for
from dapd.models.chat import read_prompt
from dapd.scale import files
from dapd.scale.team import Team
from dapd.scale.work import Failure, Order
from dapd.settings import LOOP_FIELDS, Setting, describe, with_fields

COLUMNS = {
    "id": int,
    "text": str,
    "finish_reason": str,
    "passes": int,
    "tokens": int,
    "seconds": float,
    "error": str,
}
"""The columns of a result: its text and what it cost, or why there is none. An id may also be a text."""

MEANT = frozenset({"id", "prompt", "messages", "template", "max_new_tokens", *LOOP_FIELDS})
"""Columns of a row that are read; any other is ignored."""

Id = str | int


@dataclass(frozen=True)
class Plan:
    """How rows are decoded, where their own columns do not say otherwise."""

    setting: Setting
    max_new_tokens: int | None = None
    """New tokens of a text; None: what a task of the lab needs, or the common default."""
    options: Options = field(default_factory=Options)
    system: str | None = None
    """A system message before every prompt."""
    raw: bool = False
    """Whether a text is continued as it stands instead of being answered."""

    def setup(self, lm: DiffusionLM) -> dict[str, Any]:
        """The settings that must agree for two results to belong in one file."""
        return {
            "model": lm.name,
            "weights": fingerprint(lm),
            "strategy": describe(self.setting.strategy),
            "n_blocks": self.setting.n_blocks,
            "max_new_tokens": self.max_new_tokens,
            "loop": asdict(self.options),
            "system": self.system,
            "raw": self.raw,
        }


@dataclass(frozen=True)
class Row:
    """A row of the input, as it travels to a worker."""

    id: Id
    content: Any
    """The row as it was read: an object, a text, messages, or `Unreadable`."""
    plan: Plan

    def begin(self, lm: DiffusionLM) -> Order:
        if isinstance(self.content, files.Unreadable):
            raise DapdError(self.content)
        options = self.plan.setting.with_blocks(self._options())
        if self._template is None:
            asked = read_prompt(self.content, "the row")
            canvas = lm.canvas(self._prompt(lm), self._room(lm, asked))
        else:
            canvas = lm.template(self._template, self._prompt(lm) if self._asks else None)
            options = replace(options, early_stop=False)  # in a template, EOS is a token like any other
        return Order(canvas, self.plan.setting.strategy, options)

    def end(self, lm: DiffusionLM, done: Completion) -> Record:
        if self._template is not None:
            done = lm.filled(done, len(lm.encode(self._prompt(lm))) if self._asks else 0)
        return {
            "text": done.text,
            "finish_reason": done.finish_reason,
            "passes": done.nfe,
            "tokens": done.n_generated,
            "seconds": round(done.compute_seconds, 6),
        }

    @property
    def _said(self) -> dict[str, Any]:
        """The row's columns that are not null."""
        columns = self.content if isinstance(self.content, dict) else {}
        return {name: _plain(value) for name, value in columns.items() if value is not None}

    @property
    def _template(self) -> str | None:
        template = self._said.get("template")
        if template is not None and not isinstance(template, str):
            raise DapdError(f"template is {template!r}; it must be a text")
        return template

    @property
    def _asks(self) -> bool:
        return "prompt" in self._said or "messages" in self._said

    def _prompt(self, lm: DiffusionLM) -> Prompt:
        asked = read_prompt(self.content, "the row")
        return asked if self.plan.raw and isinstance(asked, str) else lm.question(asked, self.plan.system)

    def _room(self, lm: DiffusionLM, asked: Prompt) -> int:
        n_new = self._said.get("max_new_tokens", self.plan.max_new_tokens)
        if n_new is None:
            return room_for(lm, asked)
        if not isinstance(n_new, int) or isinstance(n_new, bool):
            raise DapdError(f"max_new_tokens is {n_new!r}; it must be a whole number")
        return n_new

    def _options(self) -> Options:
        """The common options with the row's own. Its seed comes from its id, not from its place in a file or batch."""
        own = {name: value for name, value in self._said.items() if name in LOOP_FIELDS}
        seed = own.get("seed", zlib.crc32(repr((self.plan.options.seed, self.id)).encode()))
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise DapdError(f"seed is {seed!r}; it must be a whole number")
        return with_fields(self.plan.options, {**own, "seed": seed})


def read_rows(path: Path, plan: Plan) -> list[Row]:
    """The rows of a file. A row that cannot be decoded gets an error as its result; an id that occurs twice is refused,
    because nobody could tell which of the results belongs to which row."""
    rows = [_row(number, content, plan) for number, content in enumerate(files.read(path))]
    for one, times in Counter(row.id for row in rows).items():
        if times > 1:
            places = ", ".join(str(number) for number, row in enumerate(rows) if row.id == one)
            raise DapdError(
                f"{path}: {times} rows have the id {one!r} (rows {places}, counted from 0; a row without an id has its "
                "number); every row needs its own"
            )
    return rows


def _row(number: int, content: Any, plan: Plan) -> Row:
    given = content.get("id") if isinstance(content, dict) else None
    name = number if given is None else _plain(given)
    if isinstance(name, str | int) and not isinstance(name, bool):
        return Row(name, content, plan)
    return Row(number, files.Unreadable(f"id is {given!r}; it must be a text or a whole number"), plan)


def _plain(value: Any) -> Any:
    """A value of a file as settings take it. A list becomes a tuple, and 4.0 becomes 4: programs that have no whole
    numbers in columns with missing values write 4 as 4.0."""
    if isinstance(value, list):
        return tuple(_plain(one) for one in value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def without_meaning(rows: Sequence[Row]) -> list[str]:
    """Columns of the rows that nothing here reads."""
    return sorted({str(name) for row in rows if isinstance(row.content, dict) for name in row.content} - MEANT)


def parts_of(output: Path) -> Path:
    """The folder in which results are kept as they come in."""
    return output.with_name(f"{output.name}.parts")


def check_own(output: Path) -> None:
    """Refuse an output file with content that no earlier start of this job wrote."""
    parts = parts_of(output)
    if output.is_file() and output.stat().st_size and not (parts / SETUP).is_file():
        raise DapdError(
            f"{output} exists and is not of this job (there is no {parts.name}): move it or choose another name"
        )


def run(
    rows: Sequence[Row], plan: Plan, team: Team, output: Path, progress: Callable[[int], None] = lambda n: None
) -> list[Record]:
    """Decode what is not done yet, and write all results in the order of the rows."""
    check_writable(output)
    folder = make_folder(parts_of(output))
    with alone_in(folder):
        otherwise = "choose another output, or move the folder away"
        kept = Run.open(folder, plan.setup(team.lm), "batch job", otherwise)
        jobs = [Job(row.id, digest(row.content), row) for row in rows]
        records = Ledger(kept, lambda record: record["id"]).fill(jobs, lambda missing: _work(team, missing), progress)
        files.write(output, records, COLUMNS)
    return records


def _work(team: Team, missing: list[Job[Row]]) -> Iterator[Record]:
    """The results of the missing rows. The longest go first, so that texts of about the same length share passes and no
    long one is left for the end."""
    jobs = sorted(missing, key=lambda job: -len(str(job.what.content)))
    for number, found in team.crew.outcomes([job.what for job in jobs]):
        result = {"error": found.reason} if isinstance(found, Failure) else found
        yield {"id": jobs[number].key, "digest": jobs[number].digest, **result}
