"""The calls to Linux that Python has no functions for. On other systems each of them raises OSError."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Sequence

NEW_MOUNTS = 0x00020000
NEW_IPC = 0x08000000
NEW_USER = 0x10000000
NEW_PIDS = 0x20000000
NEW_NETWORK = 0x40000000

_SET_DEATH_SIGNAL = 1
_SET_DUMPABLE = 4
_SET_KEEP_CAPABILITIES = 8
_SET_CHILD_SUBREAPER = 36
_SET_NO_NEW_PRIVILEGES = 38

_RECURSIVE_PRIVATE = 0x4000 | 0x40000
_NO_DEVICES_NO_SETUID = 0x2 | 0x4

READ_SEARCH = 1 << 2
"""The capability to read what the permissions of files forbid."""

_LIBRARY = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _call(name: str, *arguments: object) -> int:
    if _LIBRARY is None:
        raise OSError(f"{name}: only on Linux")
    result = int(getattr(_LIBRARY, name)(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it is gone."""
    _call("prctl", _SET_DEATH_SIGNAL, 9, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent has ended, even of one that has called `setsid`."""
    _call("prctl", _SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hide_memory() -> None:
    """Keep other processes of the same user from tracing this one or reading its memory and descriptors."""
    _call("prctl", _SET_DUMPABLE, 0, 0, 0, 0)


def show_memory() -> None:
    """Undo `hide_memory`, under which a process may not write to its own entries in /proc."""
    _call("prctl", _SET_DUMPABLE, 1, 0, 0, 0)


def no_new_privileges() -> None:
    """Never gain rights by running a program that has more of them than its caller, such as sudo."""
    _call("prctl", _SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def keep_capabilities() -> None:
    """Keep the permitted capabilities when the user changes."""
    _call("prctl", _SET_KEEP_CAPABILITIES, 1, 0, 0, 0)


def set_capabilities(mask: int) -> None:
    """Have these capabilities and no others (only the first 32 can be named)."""
    header = struct.pack("=Ii", 0x20080522, 0)
    content = struct.pack("=6I", mask, mask, 0, 0, 0, 0)
    _call("capset", header, content)


def unshare(flags: int) -> None:
    """Leave the namespaces of the parent for new ones."""
    _call("unshare", flags)


def mount_scratch(folder: str, megabytes: int) -> None:
    """Put an empty file system in memory over a folder, for this mount namespace alone."""
    _call("mount", b"none", b"/", None, _RECURSIVE_PRIVATE, None)
    options = f"size={megabytes}m,mode=700".encode()
    _call("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", _NO_DEVICES_NO_SETUID, options)


KEYS = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "loongarch64": 219, "ppc64le": 271, "s390x": 280}
"""The number of the call that manages the kernel's keyrings, by kind of machine."""
_JOIN_SESSION_KEYRING = 1


def forget_keys() -> None:
    """Exchange the session's keyring, in which the kernel keeps the user's keys (such as Kerberos tickets), for an
    empty one: the old one would survive even a change of the user."""
    machine = os.uname().machine
    if machine not in KEYS:
        raise OSError(f"keyctl: not known on {machine}")
    _call("syscall", KEYS[machine], _JOIN_SESSION_KEYRING, None)


# Landlock, the kernel's own way for a process to give up rights on files; the numbers are the same on all machines.
_CREATE_RULES = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_READ_FILES = 0b1101
_READ_FILE = 0b101
_WRITE_FILE = 0b10
_TRUNCATE = 1 << 14
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All rights on files that a version of Landlock knows."""


def restrict_files(readable: Sequence[str], devices: Sequence[str], writable: str) -> None:
    """Give up access to all files but those that may be read, some devices and one folder. Where the kernel can do so,
    give up TCP, signals to processes outside and their abstract sockets, too. A process under such rules may not trace
    one without them."""
    version = _call("syscall", _CREATE_RULES, None, 0, 1)
    rights = _RIGHTS[min(version, 5)]
    attributes = struct.pack("=QQQ", rights, 0b11, 0b11)[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = _call("syscall", _CREATE_RULES, attributes, len(attributes), 0)
    for path in readable:
        _allow(rules, path, _READ_FILES if os.path.isdir(path) else _READ_FILE)
    for path in devices:
        _allow(rules, path, (_READ_FILE | _WRITE_FILE | _TRUNCATE) & rights)
    _allow(rules, writable, rights)
    no_new_privileges()
    _call("syscall", _RESTRICT_SELF, rules, 0)
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        _call("syscall", _ADD_RULE, rules, 1, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)
