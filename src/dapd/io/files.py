"""Files that are written whole or not at all, JSON that is read with care, and one-line errors for both."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from dapd.errors import DapdError, reason


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """In this context, a write that the system refuses (a full disk, a read-only folder) raises a one-line `DapdError`.

    torch and safetensors, which write weights, raise exceptions of their own for it; those are covered too.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        raise DapdError(f"cannot write {path}: {reason(error)}") from None


def make_folder(folder: Path) -> Path:
    """Make a folder and its parents, unless they exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DapdError(f"cannot make the folder {folder}: {reason(error)}") from None
    return folder


def write_text(path: Path, text: str) -> Path:
    """Write a text file: a reader sees either the old content or the new, and a failure leaves the old one in place."""
    return write_bytes(path, text.encode(errors="surrogateescape"))


def write_bytes(path: Path, content: bytes) -> Path:
    """Write bytes in the same way as `write_text`; a device or a pipe (`/dev/stdout`) is written to directly."""
    if path.exists() and not path.is_file():
        with writing(path):
            path.write_bytes(content)
        return path
    with replacing(path) as draft:
        draft.write_bytes(content)
    return path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a draft to write to, which replaces `path` at the end; after a failure the draft is removed.

    It gets the permissions of any other new file; safetensors would let only its owner read it.
    """
    draft = _draft_of(path)
    with writing(path):
        try:
            draft.touch()
            mode = draft.stat().st_mode
            yield draft
            draft.chmod(mode)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def write_once(path: Path, text: str) -> None:
    """Write a whole file at once unless it exists: of several processes that do so, the first one's file stays."""
    draft = _draft_of(path)
    with writing(path):
        try:
            draft.write_text(text, encoding="utf-8")
            try:
                path.hardlink_to(draft)
            except FileExistsError:
                pass
            except OSError:  # some file systems have no links, such as those of memory sticks and cloud drives
                if not path.exists():
                    draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def _draft_of(path: Path) -> Path:
    """The path at which a file is written first: in the same folder, under a name that no other process uses."""
    return path.with_name(f"{path.name}.{os.getpid()}.draft")


def check_writable(path: Path, *inputs: Path | None) -> None:
    """Refuse a file that cannot be written, before hours are spent on its content. A file that is one of the inputs,
    even under another name, is refused too: it would be overwritten."""
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
    """The value of a JSON text. Every fault in the text raises ValueError, nesting that is too deep included."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def lock(file: IO[Any], *, wait: bool) -> None:
    """Lock an open file against other processes until it is closed; where one of them has it and `wait` is False,
    BlockingIOError is raised. On a system or a file system without locks nothing is locked."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
            raise


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder: a second process that asks for it is refused. Where there are no file locks, no
    process is refused."""
    path = folder / ".lock"
    with contextlib.ExitStack() as held:
        with writing(path):
            try:
                lock(held.enter_context(path.open("a")), wait=False)
            except BlockingIOError:
                raise DapdError(
                    f"another process is at work in {folder}: wait for its end, or give another folder"
                ) from None
        yield  # outside of `writing`: later failures do not concern the lock file
