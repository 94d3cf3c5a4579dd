"""Each promise of docs/evaluation.md about code that wants to pass without being right, or to outlive its time."""

import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapd.sandbox import Limits, judge, system
from dapd.sandbox.examiner import Line, Remote
from dapd.sandbox.judge import LAYERS
from dapd.sandbox.wire import BUILDERS, PLAIN, GarbageError, send
from sandbox.cases import cases

CHECK = "assert f(1) == 'swordfish'"

ALL = Limits()
LESS = Limits(layers=tuple(name for name in LAYERS if name not in ("namespaces", "scratch", "landlock")))
"""As in a container that allows neither namespaces nor Landlock."""

SOON = 30.0
"""Seconds: far more than a verdict takes on a machine with much else to do, far less than a program that had its way
would take."""

kernel = pytest.mark.parametrize("limits", [ALL, LESS], ids=["all layers", "fewer layers"])

OFFERED = judge("x = 1", "assert x == 1", seconds=20).layers
"""What this system has."""

namespaces = pytest.mark.skipif("namespaces" not in OFFERED, reason="no namespaces on this system")
landlock = pytest.mark.skipif("landlock" not in OFFERED, reason="no Landlock on this system")

FORGERIES = cases(
    r"""
== words on every descriptor
import os
for fd in range(256):
    for word in (b"passed", b"passed\n", b"{'reason': 'passed', 'seconds': 0}\n", b"ready\n"):
        try: os.write(fd, word)
        except OSError: pass
os._exit(0)
== an early exit
import os
os._exit(0)
== an early exit within a call
import os
def f(x): os._exit(0)
== another program
import os
def f(x): os.execv('/bin/true', ['true'])
== a signal
import os
def f(x): os.kill(os.getpid(), 15)
== an object that equals everything
class A:
    __eq__ = lambda *_: True
    __bool__ = lambda _: True
def f(x): return A()
== a text that equals everything
class A(str):
    __eq__ = lambda *_: True
    __hash__ = str.__hash__
def f(x): return A('x')
== a checker that is changed
import builtins, sys
builtins.AssertionError = SystemExit
builtins.compile = builtins.exec = lambda *a, **k: None
sys.excepthook = sys.exit = lambda *a: None
for name, module in list(sys.modules.items()):
    for word in ("examine", "_error", "_raised", "judge"):
        if hasattr(module, word): setattr(module, word, lambda *a: None)
import gc
for one in gc.get_objects():
    if isinstance(one, dict) and 'reason' in one: one['reason'] = 'passed'
def f(x): return None
== answers of its own
import os, pickle, struct
for frame in (("value", {"f": True}, None), ("value", True, None), ("value", "passed", None)) * 3:
    raw = pickle.dumps(frame)
    for fd in range(3, 20):
        try: os.write(fd, struct.pack("<Q", len(raw)) + raw)
        except OSError: pass
def f(x): return True
== a message that runs code
import os, struct
raw = b"cos\nsystem\n(S'exit 0'\ntR."
for fd in range(3, 20):
    try: os.write(fd, struct.pack("<Q", len(raw)) + raw)
    except OSError: pass
== an endless message
import os, struct
for fd in range(3, 20):
    try: os.write(fd, struct.pack("<Q", 1 << 62))
    except OSError: pass
"""
)


@kernel
@pytest.mark.parametrize("name", FORGERIES)
def test_nothing_that_a_program_says_makes_it_pass(name: str, limits: Limits) -> None:
    verdict = judge(*FORGERIES[name], CHECK, seconds=5, limits=limits)
    assert not verdict.passed
    assert verdict.reason.startswith("failed"), verdict


REPLACED = cases(
    r"""
== a builtin
def abs(x): return 0
def f(x): return 7.0
--
assert abs(f(1) - 1.5) < 1e-6
== a builtin of all
import builtins
builtins.abs = lambda x: 0
def f(x): return 7.0
--
assert abs(f(1) - 1.5) < 1e-6
== a module by name
class math: isclose = lambda *a: True
def f(x): return 7
--
assert math.isclose(f(1), 1.5)
== a module of all
import sys, types
fake = types.ModuleType('math')
fake.isclose = lambda *a: True
sys.modules['math'] = fake
def f(x): return 7
--
import math
assert math.isclose(f(1), 1.5)
== a module from within
import math
math.isclose = lambda *a: True
def f(x): return 7
--
import math
assert math.isclose(f(1), 2)
== the check
def check(f): pass
def f(x): return 7
--
def check(g):
    assert g(1) == 2
check(f)
== arithmetic
class A:
    __sub__ = __rsub__ = __abs__ = lambda *_: A()
    __lt__ = __le__ = __gt__ = lambda *_: True
def f(x): return A()
--
assert abs(f(1) - 1.5) < 1e-6
== a length
class A:
    __len__ = lambda s: 3
    __eq__ = lambda *_: True
def f(x): return [A()]
--
assert f(1) == [3]
== an element
class A:
    __eq__ = lambda *_: True
def f(x): return {1: A()}
--
assert f(1) == {1: 2}
== a function of the check, by a message of its own
import os, pickle, struct, sys
def f(near):
    frame = sys._getframe()
    while 'line' not in frame.f_locals: frame = frame.f_back
    tag, state, answer = (pickle.dumps(one, 2)[2:-1] for one in (
        ('yours', 0), (None, {'__defaults__': (1e9,)}), ('value', 7.0, None)))
    raw = tag + b'Q' + state + b'b0' + answer + b'.'
    os.write(frame.f_locals['line']._writer, struct.pack('<Q', len(raw)) + raw)
    return 7.0
--
def near(a, b, distance=1e-6): return abs(a - b) < distance
assert near(f(near), 1.5)
"""
)


@pytest.mark.parametrize("name", REPLACED)
def test_the_check_is_out_of_reach(name: str) -> None:
    program, check = REPLACED[name]
    assert not judge(program, check, seconds=5).passed


SPY = """
import gc, glob, os, sys

def holds(raw):
    # The word must not stand here in one piece, or the search finds itself.
    place = raw.find(b'sword')
    while place >= 0:
        if raw[place + 5:place + 10] == b'fish!': return True
        place = raw.find(b'sword', place + 1)
    return False

def words(one):
    try: return repr(one).encode()
    except Exception: return b''

def start(path):
    # Closed again: on a busy machine there are more processes than a program may have files open.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try: return os.read(file, 1 << 16)
    finally: os.close(file)

def parts():
    yield from map(words, (sys.argv, dict(os.environ), vars(sys.modules['__main__']), gc.get_objects()))
    frame = sys._getframe()
    while frame:
        yield words((frame.f_locals, frame.f_globals)); frame = frame.f_back
    for name in glob.glob('/proc/[0-9]*') + ['/proc/self', f'/proc/{os.getppid()}']:
        for part in ('cmdline', 'environ', 'stat', 'fd/0', 'fd/1', 'fd/3', 'fd/4'):
            try: yield start(f'{name}/{part}')
            except OSError: pass
        try:
            with open(f'{name}/maps') as lines: maps = list(lines)
            memory = open(f'{name}/mem', 'rb', 0)
        except OSError: continue
        with memory:
            for line in maps:
                low, high = (int(i, 16) for i in line.split()[0].split('-'))
                if ' rw-p ' not in line: continue
                # In pieces that overlap: a process that has lived for long has a heap of hundreds of megabytes.
                for place in range(low, min(high, low + (1 << 31)), 1 << 24):
                    try: memory.seek(place); yield memory.read(min(high - place, (1 << 24) + 16))
                    except OSError: break

def f(x):
    return 'sword' + 'fish' if any(map(holds, parts())) else 'nothing'
"""


@kernel
def test_what_is_expected_never_reaches_the_program(limits: Limits) -> None:
    """The memory of every process in sight is searched, the caller's included, which holds the check as text."""
    if limits is LESS and os.getuid() != 0:
        pytest.skip("without namespaces and Landlock a user's own processes are open to each other")
    verdict = judge(SPY, "assert f(1) == 'swordfish!'[:-1]", seconds=60, limits=limits)
    assert verdict.reason == "failed: AssertionError"


@pytest.mark.skipif(os.getuid() != 0, reason="only root could look into other processes")
def test_the_spy_would_find_it() -> None:
    """The test above means something: with all of root's rights and no layer, the memory of the others is open."""
    assert judge(SPY, "assert f(1) == 'swordfish!'[:-1]", seconds=60, limits=Limits(layers=())).passed


def processes_of(mark: str) -> list[str]:
    """The processes that were started for a verdict whose folder has this name."""
    out = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                out.append(path.parent.name)
        except OSError:
            continue
    return out


LEFTOVERS = cases(
    r"""
== a fork
if os.fork() == 0:
    time.sleep(600)
    os._exit(0)
== a session of its own
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
== deaf to signals
if os.fork() == 0:
    os.setsid()
    [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]
    time.sleep(600)
== a thread
threading.Thread(target=time.sleep, args=(600,)).start()
== a command
subprocess.Popen(['sleep', '600'], start_new_session=True)
"""
)


@kernel
@pytest.mark.parametrize("name", LEFTOVERS)
def test_what_a_program_leaves_behind_neither_counts_nor_stays(name: str, limits: Limits, tmp_path: Path) -> None:
    begin = f"import os, signal, subprocess, threading, time\n{LEFTOVERS[name][0]}\n"
    began = time.monotonic()
    verdict = in_folder(tmp_path, begin + "def f(x): return 'swordfish'", CHECK, limits, seconds=120)
    assert verdict == "passed"
    assert time.monotonic() - began < SOON
    assert processes_of(str(tmp_path)) == []


def in_folder(folder: Path, program: str, check: str, limits: Limits, seconds: float = 20) -> str:
    """A verdict whose processes can be told by their command line, which names the folder."""
    import tempfile

    before = tempfile.tempdir
    tempfile.tempdir = str(folder)
    try:
        return judge(program, check, seconds=seconds, limits=limits).reason
    finally:
        tempfile.tempdir = before


@kernel
def test_a_fork_bomb_ends_in_time_and_to_the_last(limits: Limits, tmp_path: Path) -> None:
    bomb = "import os\nwhile True:\n    try:\n        os.fork()\n        os.setsid()\n    except OSError: pass"
    began = time.monotonic()
    assert in_folder(tmp_path, bomb, CHECK, limits, seconds=1) == "timed out"
    assert time.monotonic() - began < SOON
    assert processes_of(str(tmp_path)) == []


@kernel
def test_the_number_of_processes_is_limited(limits: Limits) -> None:
    count = """
import os, time
def f():
    n = 0
    try:
        while n < 500:
            if os.fork() == 0: time.sleep(60)
            n += 1
    except OSError: pass
    return n
"""
    verdict = judge(count, "n = f()\nassert 8 < n < 17, n", seconds=20, limits=limits)
    assert verdict.passed, verdict


HANGS = cases(
    r"""
== the program
while True: pass
--
assert f(1) == 'swordfish'
== a call
import time
def f(x): time.sleep(60)
--
assert f(1) == 'swordfish'
== a closed line
import os, time
def f(x):
    os.closerange(0, 256)
    time.sleep(60)
--
assert f(1) == 'swordfish'
== a deaf program
import signal, time
[signal.signal(s, signal.SIG_IGN) for s in (1, 2, 3, 15, 24)]
time.sleep(60)
--
assert f(1) == 'swordfish'
== the check, by what it got
def f(x): return 10 ** 2_000_000
--
assert 7 ** f(1) == 'swordfish'
== an endless iterator
import itertools
def f(x): return itertools.count()
--
assert list(f(1)) == []
== a flood
import os
while True:
    os.write(1, b'x' * 65536)
--
assert f(1) == 'swordfish'
== a flood of messages
import os
for fd in (3, 4, 5, 6):
    try:
        while True: os.write(fd, b'\0' * 65536)
    except OSError: pass
--
assert f(1) == 'swordfish'
"""
)


@kernel
@pytest.mark.parametrize("name", HANGS)
def test_the_time_limit_is_kept(name: str, limits: Limits) -> None:
    """The best of three is exact: other work on the machine can only make it longer."""
    took = []
    while len(took) < 3 and not (took and min(took) < 0.7 + 0.5):
        began = time.monotonic()
        verdict = judge(*HANGS[name], seconds=0.7, limits=limits)
        assert not verdict.passed
        assert time.monotonic() - began < SOON  # with the start of an interpreter, which is not counted
        took.append(verdict.seconds)
    assert min(took) < 0.7 + 0.5


def test_memory_is_limited_for_the_check_too() -> None:
    greedy = "class A:\n    def __iter__(self):\n        while True: yield 'x' * (1 << 22)\ndef f(x): return A()"
    verdict = judge(greedy, "assert list(f(1)) == []", seconds=20, limits=Limits(memory_mb=300))
    assert not verdict.passed
    assert "timed out" not in verdict.reason


def test_a_caller_that_is_killed_leaves_nobody(tmp_path: Path) -> None:
    words = (
        "import tempfile, sys\nfrom dapd.sandbox import judge\n"
        "tempfile.tempdir = sys.argv[1]\njudge('while 1: pass', 'x', seconds=60)"
    )
    caller = subprocess.Popen([sys.executable, "-c", words, str(tmp_path)])
    deadline = time.monotonic() + 60
    # The caller, the keeper and the examiner, the program and those that wait for it.
    while len(processes_of(str(tmp_path))) < 4:
        assert time.monotonic() < deadline
        assert caller.poll() is None
        time.sleep(0.05)
    caller.kill()
    caller.wait()
    deadline = time.monotonic() + 5
    while processes_of(str(tmp_path)):
        assert time.monotonic() < deadline, processes_of(str(tmp_path))
        time.sleep(0.02)


@namespaces
def test_no_signal_reaches_anybody_else() -> None:
    verdict = judge(
        "import os\ndef f(pids):\n    out = []\n    for pid in pids:\n        try: os.kill(pid, 9); out.append(pid)\n"
        "        except OSError: pass\n    return out",
        f"assert f({[os.getpid(), os.getppid()]}) == []",
        seconds=20,
    )
    assert verdict.passed
    mass = "import os, signal\nif os.fork() == 0:\n    os.kill(-1, 9)\ndef f(x): return 'swordfish'"
    assert not judge(mass + "\nimport time; time.sleep(0.2)", CHECK, seconds=5).passed


@pytest.mark.skipif(os.uname().machine not in system.KEYS, reason="keyrings have no known number here")
def test_no_keys_of_the_session() -> None:
    """A keyring stands for what it may hold: the program's is another one, which it may empty."""
    ring = f"import ctypes\ndef f(x): return ctypes.CDLL(None).syscall({system.KEYS[os.uname().machine]}, 0, -3, 1)"
    space: dict[str, Any] = {}
    exec(ring, space)
    ours = space["f"](1)
    if ours == -1:
        pytest.skip("the kernel keeps no keys, or none for this process")
    assert judge(ring, f"assert f(1) not in (-1, {ours})", seconds=20).passed


@namespaces
@pytest.mark.parametrize("layers", [LAYERS, LAYERS[:-1]])
def test_no_network(layers: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        accepted: list[object] = []
        threading.Thread(target=lambda: accepted.append(server.accept()), daemon=True).start()
        program = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)\ndef f(x): return 'swordfish'"
        assert "[Errno" in judge(program, CHECK, seconds=20, limits=Limits(layers=layers)).reason
        assert accepted == []


@landlock
def test_no_files_of_the_user(tmp_path: Path) -> None:
    secret = tmp_path / "tests.jsonl"
    secret.write_text("swordfish")
    for path in (tmp_path, *tmp_path.parents):
        if path.owner() == tmp_path.owner() and str(path).startswith("/tmp/"):
            path.chmod(0o777)
    secret.chmod(0o666)
    read = f"def f(x): return open({str(secret)!r}).read()"
    assert judge(read, CHECK, seconds=20).reason.startswith("failed: PermissionError")
    write = f"open({str(tmp_path / 'new')!r}, 'w').write('x')\ndef f(x): return 'swordfish'"
    assert judge(write, CHECK, seconds=20).reason.startswith("failed: PermissionError")
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif("scratch" not in OFFERED, reason="no mounts of its own on this system")
def test_its_folder_is_of_limited_size() -> None:
    fill = "def f(x):\n    for i in range(100):\n        with open(str(i), 'wb') as file: file.write(b'x' * (1 << 23))"
    assert judge(fill, CHECK, seconds=20).reason.startswith("failed: OSError: [Errno 28]")


ALONE = """
import sys, types
for name, folder in (("dapd", sys.argv[1]), ("dapd.sandbox", sys.argv[1] + "/sandbox")):
    sys.modules[name] = types.ModuleType(name); sys.modules[name].__path__ = [folder]
from dapd.sandbox.judge import Limits, judge
"""
"""The beginning of a program that judges with nothing but the sandbox, which the system's Python can run."""

AS_USER = """
print(judge("def f(x): return x", "assert f(1) == 1", seconds=20).reason)
print(judge("def f(x): return x", "assert f(1) == 2", seconds=20).reason)
print(judge("import os\\nwhile True:\\n    try: os.fork()\\n    except OSError: pass", "f(1)", seconds=0.5).reason)
print(" ".join(judge("x = 1", "assert x", seconds=20).layers))
"""

SYSTEM = "/usr/bin/python3"


@pytest.mark.skipif(os.getuid() != 0 or not os.access(SYSTEM, os.X_OK), reason="only root can become somebody else")
def test_without_being_root() -> None:
    source = Path(judge.__code__.co_filename).parents[1]
    nobody: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}
    done = subprocess.run([SYSTEM, "-I", "-c", ALONE + AS_USER, str(source)], capture_output=True, text=True, **nobody)
    if "SyntaxError" in done.stderr or "ImportError" in done.stderr or "PermissionError" in done.stderr:
        pytest.skip("the system's Python is too old, or the source is not open to everybody")
    *reasons, layers = done.stdout.splitlines()
    assert reasons == ["passed", "failed: AssertionError", "timed out"], done.stderr
    assert "user" not in layers.split()


@pytest.mark.skipif(not os.access(SYSTEM, os.X_OK) or which("unshare") is None, reason="there is no unshare here")
def test_root_where_there_is_no_other_user() -> None:
    """As in some containers: root cannot become anybody else, but must not keep the rights to look into all memory."""
    source = Path(judge.__code__.co_filename).parents[1]
    check = "assert f(1) == 'swordfish!'[:-1]"
    words = f"{ALONE}print(judge({SPY!r}, {check!r}, seconds=60, limits=Limits(layers={LESS.layers})))"
    command = ["unshare", "--map-root-user", SYSTEM, "-I", "-", str(source)]  # arguments can be read by everybody
    done = subprocess.run(command, input=words, capture_output=True, text=True)
    if "unshare" in done.stderr or "ImportError" in done.stderr or "PermissionError" in done.stderr:
        pytest.skip("no user namespaces, or the source is not open to everybody")
    assert "reason='failed: AssertionError'" in done.stdout, done
    assert "'capabilities'" in done.stdout


def test_a_number_is_built_of_plain_parts_alone() -> None:
    """Newer versions of Python make a fraction of anything that says it is one, such as 0 / 0, which no number differs
    from by more than any tolerance."""
    with pytest.raises(GarbageError, match="parts that are not plain"):
        BUILDERS["fractions.Fraction"](Remote(Line(0, 0), 0))


@settings(max_examples=300, deadline=None)
@given(payload=st.binary(max_size=60), start=st.integers(0, 40))
def test_no_message_makes_more_than_plain_values(payload: bytes, start: int) -> None:
    """Bytes of every kind, and a message whose tail is replaced by them, end in plain values or in a refusal."""
    reader, writer = os.pipe()
    line = Line(reader, writer)
    honest = pickle.dumps(("value", {"f": [1, 2.5, ("a", None)]}, None), protocol=5)
    try:
        send(writer, honest[:start] + payload)
        value = line.get()
    except GarbageError:
        return
    finally:
        os.close(reader)
        os.close(writer)
    assert (
        type(value) in PLAIN or type(value).__module__ == "collections" or isinstance(value, (Remote, range, complex))
    )
