"""Files: written whole or not at all, read with care, and every mistake with them in one line."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from dapd.errors import DapdError, first_line


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Inside, what the system refuses (a full disk, a folder that may not be written to) is a user's error.

    torch and safetensors, which write weights, have exceptions of their own for it.
    """
    try:
        yield
    except OSError as error:
        raise DapdError(f"cannot write {path}: {error.strerror or error}") from None
    except (RuntimeError, SafetensorError) as error:
        raise DapdError(f"cannot write {path}: {first_line(error)}") from None


def make_folder(folder: Path) -> Path:
    """A folder, with those above it, unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DapdError(f"cannot make the folder {folder}: {error.strerror or error}") from None
    return folder


def write_text(path: Path, text: str) -> Path:
    """Write a text file: whoever reads it sees the old content or the new one, and a failure leaves the old one."""
    return write_bytes(path, text.encode(errors="surrogateescape"))


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a file of bytes in the same way. What is no plain file (`/dev/stdout`) is written to as it is."""
    if path.exists() and not path.is_file():
        with writing(path):
            path.write_bytes(content)
        return path
    with replacing(path) as draft:
        draft.write_bytes(content)
    return path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A draft to write to, which takes the place of `path` at the end; whatever goes wrong, the draft does not stay."""
    draft = _draft_of(path)
    with writing(path):
        try:
            yield draft
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def write_once(path: Path, text: str) -> None:
    """The whole file at once, unless another process was faster: then the file stays as it is."""
    draft = _draft_of(path)
    with writing(path):
        try:
            draft.write_text(text, encoding="utf-8")
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(draft)
        finally:
            draft.unlink(missing_ok=True)


def _draft_of(path: Path) -> Path:
    """Where a file is written before it takes its place: beside it, under a name that no other process uses."""
    return path.with_name(f"{path.name}.{os.getpid()}.draft")


def check_writable(path: Path, *inputs: Path | None) -> None:
    """Refuse a file that could not be written, before hours are spent on what is to go into it; also one of the
    inputs, under whatever name: it would be lost."""
    with writing(path):
        if path.is_dir():
            raise DapdError(f"cannot write {path}: it is a folder")
        if any(one is not None and one.is_file() and path.exists() and path.samefile(one) for one in inputs):
            raise DapdError(f"cannot write {path}: it is the input itself; choose another name")
        if path.exists():
            with path.open("ab"):
                return
        draft = _draft_of(path)
        draft.touch()
        draft.unlink()


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; whatever is wrong with it, also that it is nested too deeply, is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Inside, no other process does the same in this folder; a second one is refused. Where the system has no locks,
    nobody is."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    path = folder / ".lock"
    with writing(path), path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DapdError(
                f"another process is at work in {folder}: wait for its end, or give another folder"
            ) from None
        yield
