"""Honest programs are judged as if program and check stood in one file, though they run in two processes."""

import os
import resource

import pytest

from dapd.errors import DapdError
from dapd.sandbox import judge, judge_many
from sandbox.cases import cases

PASSES = cases(
    r"""
== a value
x = [1, (2, {'a': 3.5})]
--
assert x == [1, (2, {'a': 3.5})] and type(x[1]) is tuple
== HumanEval's form
def f(x): return x + 1
--
def check(candidate):
    assert candidate(1) == 2

check(f)
== noise
print('noise' * 100000)
def f(): print('more'); return 1
--
assert f() == 1
== large numbers
def f(n): return 7 ** n
--
assert f(50000) == 7 ** 50000
== not a number
def f(): return float('nan')
--
x = f()
assert x != x
== containers of other kinds
from collections import *
from decimal import Decimal
from fractions import Fraction
def f(): return [defaultdict(int, a=1), Counter('aab'), deque([1, 2], 5), OrderedDict(b=1), 2j, range(3),
    Decimal('1.50'), Fraction(1, 3), {1, 2}, frozenset({3}), b'x', bytearray(b'y'), {'k': 1}.keys(), int]
--
from collections import *
from decimal import Decimal
from fractions import Fraction
assert f() == [{'a': 1}, {'a': 2, 'b': 1}, deque([1, 2]), {'b': 1}, 2j, range(3),
    Decimal('1.5'), Fraction(1, 3), {1, 2}, {3}, b'x', b'y', {'k'}, int]
== subclasses
from collections import namedtuple
from enum import IntEnum
P = namedtuple('P', 'x y')
class E(IntEnum):
    A = 3
class S(str): pass
def f(): return [P(1, 2), E.A, S('s')]
--
assert f() == [(1, 2), 3, 's']
== dates
import datetime
def f(d): return d + datetime.timedelta(days=1)
--
import datetime
assert f(datetime.date(2024, 2, 28)) == datetime.date(2024, 2, 29)
== numbers of NumPy
import numpy as np
def f(x): return np.sum(x), np.all(x)
--
assert f([1, 2]) == (3, True)
== an argument that is changed
def f(x): x.sort(); x.append(9)
--
a = [3, 1]
assert f(a) is None and a == [1, 3, 9]
== an argument within another
def f(d): d['in'].append(2); d['new'] = [d['in']]; del d['old']
--
inner = [1]
d = {'in': inner, 'old': 0}
f(d)
assert inner == [1, 2] and d == {'in': [1, 2], 'new': [[1, 2]]} and d['new'][0] is inner
== the argument as the result
def f(x): x.append(1); return x
--
a = []
assert f(a) is a and a == [1]
== a set that is changed
def f(s): s |= {2}
--
s = {1}
f(s)
assert s == {1, 2}
== a container that holds itself
def f(x): x.append(x)
--
a = [1]
f(a)
assert a[1] is a and len(a) == 2
== instances
class P:
    def __init__(self, x): self.x = x
    def twice(self): return 2 * self.x
    def __len__(self): return 7
    def __eq__(self, o): return self.x == o.x
def f(ps): return max(ps, key=lambda p: p.x)
--
p = P(3)
p.x += 1
assert f([P(1), p]) is p and p.twice() == 8 and len(p) == 7 and isinstance(p, P)
assert P(1) == P(1) and P(1) != P(2) and not isinstance(3, P)
== iterators
def f(n):
    for i in range(n): yield i
def g(): return map(str, [1, 2])
class C:
    def __getitem__(self, i): return [4, 5][i]
    def __contains__(self, x): return x == 4
--
assert list(f(1000)) == list(range(1000)) and sorted(g()) == ['1', '2'] and list(C()) == [4, 5]
assert 4 in C() and 6 not in C() and C()[1] == 5
i = f(3)
assert next(i) == 0 and next(i) == 1 and list(i) == [2]
== iterators of which the check takes a part
def f():
    yield from range(4)
    while True: pass
--
for i, j in zip(range(4), f()): assert i == j
== truth of an object
import re
def f(s): return re.match('a', s)
--
assert f('ab') and not f('b')
assert f('a').group() == 'a'
== functions of the check
def f(g, x): return [g(i) for i in x]
--
calls = []
def g(x):
    calls.append(x)
    return x * 2
assert f(g, [1, 2]) == [2, 4] and calls == [1, 2]
assert f(lambda x: x, 'ab') == ['a', 'b'] and f(str, [1]) == ['1']
== errors
class Mine(ValueError): pass
def f(x):
    if x: raise Mine('no')
    return {}['k']
--
for x, kind in ((1, ValueError), (0, KeyError)):
    try: f(x)
    except kind: continue
    assert False
== errors of the check's functions
def f(g):
    try: g()
    except ZeroDivisionError: return 'caught'
--
assert f(lambda: 1 / 0) == 'caught'
== a module that the program brings
import sys
def f(x): return sys.getsizeof(x)
--
assert f('a') == sys.getsizeof('a')
== a module that the check brings
def f(x): return math.floor(x)
--
import math
assert f(1.5) == 1
== a helper of the program
import math
def poly(x): return x - 2
def root(): return 2
--
assert abs(poly(root())) < 1
== a function with a builtin's name
def sum(a, b): return a + b
--
assert sum(10, 15) == 25
== a builtin that the program replaces for itself
def abs(x): return 5
def f(): return abs(1)
--
assert f() == 5 and abs(-1) == 1
== annotations
from dataclasses import dataclass
from typing import ClassVar
@dataclass
class A:
    n: ClassVar[int] = 0
    x: int = 1
def f(x: int): return A(x).x, f.__annotations__
--
assert f(5) == (5, {'x': int})
== a type as an argument
def f(x, t): return [i for i in x if type(i) is t]
--
assert f([1, 'a'], int) == [1]
== its own name
ran = __name__ == '__main__'
def f(): return ran
--
assert f() is False
== a file of its own
open('x', 'w').write('hi')
def f(): return open('x').read()
--
assert f() == 'hi'
== a thread
import threading
def f():
    out = []
    t = threading.Thread(target=lambda: out.append(1))
    t.start(); t.join()
    return out
--
assert f() == [1]
== a process
import subprocess
def f(): return subprocess.run(['true']).returncode
--
assert f() == 0
== strange letters
def f(): return '\ud800\u00e9\0'
--
assert f() == '\ud800\u00e9\0'
"""
)


@pytest.mark.parametrize("name", PASSES)
def test_an_honest_program_passes(name: str) -> None:
    verdict = judge(*PASSES[name], seconds=20)
    assert verdict.passed, verdict
    assert verdict.reason == "passed"


FAILS = cases(
    r"""
== wrong
def f(): return 1
--
assert f() == 2, 'sum'
--
failed: AssertionError: sum
== no such function
x = 1
--
assert f() == 2
--
failed: NameError: name 'f' is not defined
== a type that was not imported
def f(x: List[int]): return x
--
assert f([1]) == [1]
--
failed: NameError: name 'List' is not defined
== no Python
def f(:
--
assert f() == 2
--
failed: SyntaxError
== an error of its own
class Odd(Exception): pass
raise Odd('why')
--
assert True
--
failed: Exception: Odd: why
== an exit
import sys; sys.exit(0)
--
assert True
--
failed: SystemExit
== an exit within a call
def f(): raise SystemExit
--
assert f() is None
--
failed: SystemExit
== an interrupt
raise KeyboardInterrupt
--
assert True
--
failed: KeyboardInterrupt
== no input
input()
--
assert True
--
failed: EOFError
== memory
x = bytearray(1 << 31)
--
assert True
--
failed: MemoryError
== a large file
open('big', 'wb').write(b'x' * (1 << 25))
--
assert True
--
failed
== endless depth
def f(): return f()
--
assert f()
--
failed: RecursionError
== a list for a tuple
def f(): return [1]
--
assert f() == (1,)
--
failed: AssertionError
== a check that is no Python
x = 1
--
assert (
--
failed: SyntaxError
== an object of the check's
def f(x): return x
--
class A: pass
f(A())
--
failed: TypeError: a check can hand over
== escape sequences
raise ValueError('\x1b[2J' + 'x' * 1000)
--
assert True
--
failed: ValueError:  [2Jxxx
"""
)


@pytest.mark.parametrize("name", FAILS)
def test_a_program_that_fails_says_why(name: str) -> None:
    program, check, said = FAILS[name]
    verdict = judge(program, check, seconds=20)
    assert not verdict.passed
    assert verdict.reason.startswith(said)
    assert len(verdict.reason) < 400
    assert verdict.reason.isprintable()


def test_a_program_with_a_zero_byte() -> None:
    assert judge("x = '\0'", "assert x", seconds=20).reason.startswith("failed: ")


def test_a_caller_with_many_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip("so many files may not be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2000, hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert judge("x = 1", "assert x == 1", seconds=20).passed
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_mistakes_of_the_caller() -> None:
    with pytest.raises(DapdError, match="check is empty"):
        judge("x = 1", " \n")
    with pytest.raises(DapdError, match="seconds is 0"):
        judge("x = 1", "assert x", seconds=0)


def test_many_come_back_in_order() -> None:
    pairs = [(f"def f(): return {i}", f"assert f() == {i - i % 2}") for i in range(8)]
    assert [v.passed for v in judge_many(pairs, workers=3, seconds=20)] == [True, False] * 4
