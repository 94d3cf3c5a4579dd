"""Confining the judged program's process: before the program is read, it gives up rights, layer by layer.

Which layers there are depends on the system.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from dapd.sandbox import system

USERS = range(61184, 65520)
"""User ids that systemd reserves for services that need one for a short time."""

SCRATCH_MB = 64
"""Size of the program's folder, where it can be limited."""

DESCRIPTORS = 256

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

READABLE = (
    *("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/etc/passwd", "/etc/group"),
    *("/sys/devices/system/cpu", "/proc/cpuinfo", "/proc/meminfo"),
)
"""Files and folders that Python and its packages read apart from their own folders."""


# A NamedTuple, here and in the examiner: importing dataclasses would take a third of the time that the keeper needs to
# start.
class Allowance(NamedTuple):
    """The resources that the program's process may use, and the protections around it."""

    folder: str
    user: int
    """Id of the user that the process becomes where the keeper runs as root."""
    seconds: int
    memory_mb: int
    processes: int
    file_mb: int
    layers: tuple[str, ...]
    """The protections to try; tests leave some out."""


def confine(allowance: Allowance, keep: tuple[int, ...]) -> tuple[str, ...]:
    """Become the program's process: return in a descendant that has nothing but the descriptors `keep`.

    The layers that hold are returned by name. A layer that the system does not offer is left out: the verdict does not
    depend on any of them; they limit the harm that a program can do and the traces that it can leave.
    """
    close_all_but(keep)
    os.setsid()
    root = os.geteuid() == 0
    layers: list[str] = []

    def attempt(name: str, work: Callable[[], None]) -> None:
        if name in allowance.layers:
            try:
                work()
            except OSError:
                return
            layers.append(name)

    attempt("end", system.die_with_parent)
    attempt("keys", system.forget_keys)
    attempt("namespaces", lambda: _enter_namespaces(root))
    if "namespaces" in layers:
        attempt("scratch", lambda: system.mount_scratch(allowance.folder, SCRATCH_MB))
        _descend_twice()
    if root:
        attempt("user", lambda: _become(allowance.user, allowance.folder))
    if "user" not in layers:  # root may be the only user, as in some containers
        attempt("capabilities", lambda: system.set_capabilities(0))
    if "end" in layers:
        system.die_with_parent()  # the kernel forgets the setting at every fork and when the user changes
    os.chdir(allowance.folder)
    _limit(allowance, alone="user" in layers or ("namespaces" in layers and not root and _counts_by_namespace()))
    folders = (*READABLE, *python_folders())
    attempt("privileges", system.no_new_privileges)
    attempt("landlock", lambda: system.restrict_files(folders, DEVICES, allowance.folder))
    return tuple(layers)


def close_all_but(keep: tuple[int, ...]) -> None:
    """Close every descriptor but these, and point the standard ones at /dev/null."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    for low, high in pairwise((2, *sorted(keep), most if most > 0 else 1 << 20)):
        os.closerange(low + 1, high)


def _enter_namespaces(root: bool) -> None:
    """Enter new namespaces of process ids, network, mounts and shared memory.

    Root may do so directly. Other users need a user namespace, too, and some systems allow its first steps and refuse a
    later one. There is no way back from there, so a process that is thrown away tries all of them first.
    """
    apart = system.NEW_PIDS | system.NEW_NETWORK | system.NEW_IPC | system.NEW_MOUNTS
    if root:
        system.unshare(apart)
        return
    system.show_memory()
    trial = os.fork()
    if trial == 0:
        try:
            _enter_as_user(apart)
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(trial, 0)[1] != 0:
        raise OSError("namespaces are not allowed here")
    _enter_as_user(apart)


def _enter_as_user(apart: int) -> None:
    user = os.getuid()
    group = os.getgid()
    system.unshare(apart | system.NEW_USER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _descend_twice() -> None:
    """Return in the second process of the new namespace; the first one only waits. To process 1 of a namespace the
    kernel does not deliver all signals, and when it ends, every other process of the namespace ends."""
    for _ in range(2):
        child = os.fork()
        if child:
            close_all_but(())
            while os.wait()[0] != child:
                pass
            os._exit(0)
        system.die_with_parent()


def _become(user: int, folder: str) -> None:
    """Become a user who owns nothing but a folder. Where Python itself lies in a folder that only root may enter, the
    capability to read it is kept."""
    closed = any(not _open_to_all(path) for path in python_folders())
    os.setgroups([])
    system.keep_capabilities()
    os.chown(folder, user, user)
    try:
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    except OSError:
        os.chown(folder, 0, 0)
        raise
    system.set_capabilities(system.READ_SEARCH if closed else 0)


def _open_to_all(path: str) -> bool:
    """Whether every user may enter a folder."""
    while True:
        if not os.stat(path).st_mode & 0o001:
            return False
        above = os.path.dirname(path)
        if above == path:
            return True
        path = above


def python_folders() -> list[str]:
    """The folders of the interpreter, its library and its packages."""
    places = (sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.__file__), *sys.path)
    return sorted({os.path.realpath(place) for place in places if place and os.path.isdir(place)})


def _limit(allowance: Allowance, alone: bool) -> None:
    """Set the limits. The kernel counts all processes of a user, so those that run already are added to the limit,
    unless the program's process is the first of its user or its namespace (`alone`)."""
    megabyte = 1 << 20
    processes = allowance.processes if alone else allowance.processes + _threads_of(os.getuid())
    limit_memory(allowance.memory_mb)
    limits = (
        (resource.RLIMIT_CPU, allowance.seconds),
        (resource.RLIMIT_FSIZE, allowance.file_mb * megabyte),
        (resource.RLIMIT_NOFILE, DESCRIPTORS),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, processes),
    )
    for kind, value in limits:
        _set(kind, value)


def limit_memory(megabytes: int) -> None:
    """Limit the address space of this process."""
    _set(resource.RLIMIT_AS, megabytes << 20)


def _set(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(kind, (value, value))
    except (ValueError, OSError):
        if sys.platform == "linux":  # other systems do not have all of them
            raise


def _counts_by_namespace() -> bool:
    """Whether the kernel counts the processes of a user namespace on their own."""
    release = os.uname().release.split(".")
    return (int(release[0]), int(release[1].split("-")[0])) >= (5, 14)


def _threads_of(user: int) -> int:
    count = 0
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return count
