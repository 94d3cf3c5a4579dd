"""Folders of results that a killed run goes on from: what was asked for, where it ran, and a line per result."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import IO, Any

import torch

from dapd.errors import DapdError
from dapd.io.files import lock, make_folder, parse_json, write_once, write_text, writing

RESULTS, SETUP, ENVIRONMENT = "results.jsonl", "setup.json", "environment.jsonl"

PACKAGES = ("dapd", "torch", "transformers", "tokenizers", "lm_eval", "datasets", "math-verify", "sympy", "nltk")

Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One folder: `setup.json` (what must agree), `environment.jsonl` (a line per start), `results.jsonl`."""

    folder: Path
    otherwise: str = "choose another folder with --out"
    """What to do where the folder holds something else, as an error tells the user."""
    setup: Record | None = None
    """The set-up that the folder's must equal, as JSON gives it back; None: any will do."""
    what: str = "run"

    @classmethod
    def open(
        cls,
        folder: Path,
        setup: Mapping[str, Any],
        what: str = "run",
        otherwise: str = otherwise,
        *,
        take_over: bool = True,
    ) -> Run:
        """A new folder, or one that holds results of the same set-up; any other is refused, untouched.

        `take_over`: a folder that has a set-up and no results, because its run was interrupted or failed at once,
        counts as new. That is wrong for runs that keep files other than results.
        """
        run = cls(folder, otherwise, json.loads(json.dumps(dict(setup), default=str)), what)
        make_folder(folder)
        where = folder / SETUP
        text = json.dumps(run.setup, indent=1) + "\n"
        if where.is_file():
            if take_over and where.read_bytes() != text.encode():
                run._take_over(where, text)
        elif (folder / RESULTS).exists():
            raise DapdError(f"{folder} holds results but no {SETUP}: {otherwise}")
        else:
            write_once(where, text)
        # Processes of one run start together: the set-up that one of them wrote must be that of all others, too.
        run._check()
        return run

    def records(self) -> list[Record]:
        """The results so far. A last line that a kill cut short does not count; any other damage is an error."""
        return read_records(self.folder / RESULTS)

    def append(self, records: Iterable[Record]) -> None:
        """Add results; the system has them when this returns. Several processes may do so at the same time."""
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        with self._results() as file:
            self._check()  # before the first result another run may have taken the folder over
            _drop_cut_line(file)
            file.write(lines.encode())
            file.flush()

    def note_environment(self) -> None:
        """Add a line with the time, the versions and the hardware of this start."""
        path = self.folder / ENVIRONMENT
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(environment()) + "\n")

    def write(self, name: str, content: Any) -> Path:
        """A JSON file in the folder, whole or not at all; one that says the same already stays as it is."""
        path = self.folder / name
        text = json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n"
        if path.is_file() and path.read_bytes() == text.encode():
            return path
        return write_text(path, text)

    def read(self, name: str, default: Any) -> Any:
        """The content that `write` wrote under this name. Where there is no such file, or its content has another
        form than the default, the default is returned: whatever is stored this way can be computed again."""
        try:
            content = parse_json((self.folder / name).read_bytes())
        except (OSError, ValueError):
            return default
        same = isinstance(content, type(default)) and all(
            isinstance(content.get(k), type(v)) for k, v in default.items()
        )
        return content if same else default

    @contextlib.contextmanager
    def _results(self) -> Iterator[IO[bytes]]:
        """Open the file of results, locked against other processes."""
        path = self.folder / RESULTS
        with writing(path), path.open("a+b") as file:
            lock(file, wait=True)
            yield file

    def _take_over(self, where: Path, text: str) -> None:
        """Replace the folder's set-up, unless the folder has results."""
        with self._results() as file:
            if file.seek(0, os.SEEK_END) == 0:
                write_text(where, text)

    def _check(self) -> None:
        """Refuse a folder whose set-up is another one by now."""
        if self.setup is None:
            return
        where = self.folder / SETUP
        try:
            before = parse_json(where.read_text(encoding="utf-8"))
            differ = difference(before, self.setup)
        except (ValueError, AttributeError):
            raise DapdError(f"{where} is damaged; move the folder away or {self.otherwise}") from None
        if differ:
            said = ", ".join(differ)
            raise DapdError(f"{self.folder} holds a {self.what} of another set-up ({said}); {self.otherwise}")


def read_records(path: Path) -> list[Record]:
    """The records of a file of results, without a last line that is not finished."""
    if not path.is_file():
        return []
    # Not splitlines(): answers may hold separators that count as line ends there and not in JSON.
    whole = path.read_bytes().rpartition(b"\n")[0]
    out = []
    for number, line in enumerate(whole.split(b"\n") if whole else [], 1):
        try:
            record = parse_json(line)
            if not isinstance(record, dict):
                raise ValueError("not an object")
        except ValueError as error:
            raise DapdError(f"{path}, line {number} is not a result ({error}); nothing was changed") from None
        out.append(record)
    return out


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The fields in which two set-ups disagree, in words. Where a part of them, such as the strategy, has another name,
    its other fields are left out."""
    apart = disagreements(before, now)
    renamed = tuple(field.removesuffix("name") for field in apart if field.endswith(".name"))
    return [
        f"{field}: {old!r} there, {new!r} here"
        for field, (old, new) in apart.items()
        if field.endswith(".name") or not field.startswith(renamed)
    ]


def disagreements(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """The fields in which two set-ups disagree: name -> the two values. Nested fields are named `outer.inner`."""
    out: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys((*now, *before)):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            out |= disagreements(old, new, f"{prefix}{key}.")
        elif old != new:
            out[f"{prefix}{key}"] = (old, new)
    return out


def environment() -> Record:
    """Versions, commit and hardware."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "commit": _commit(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "rank": int(os.environ.get("RANK", 0)),
        "world_size": int(os.environ.get("WORLD_SIZE", 1)),
    }


@cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def _commit() -> str | None:
    """The commit of the source tree, with a mark where files were changed since; None outside of one.

    Git is asked only once, because the code that this process has imported does not change.
    """
    here = Path(__file__).parent
    try:
        ran = [
            subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10, check=True)
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    return ran[0].stdout.strip() + ("+changes" if ran[1].stdout.strip() else "")


def _drop_cut_line(file: IO[bytes]) -> None:
    """Cut the file back to its last whole line: a kill in the middle of a write leaves part of one."""
    end = file.seek(0, os.SEEK_END)
    if end == 0:
        return
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    file.truncate(file.read().rfind(b"\n") + 1)
    file.seek(0, os.SEEK_END)
