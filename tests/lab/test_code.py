"""The `code` task: what is run and what is refused unseen, and that a verdict needs the right results."""

from __future__ import annotations

import random

import pytest

from dapd.lab.tasks import TASKS, Example, functions
from dapd.lab.tasks.functions import Functions, Wanted, Writer, draw_wanted
from dapd.lab.tasks.syntax import normal_form
from dapd.sandbox import judge

TASK = TASKS["code"]
EVEN = Wanted("sum", "sum", (("even", 3),))
ASKED = Example("code", EVEN.prompt, "", {"wanted": ["sum", "sum", [["even", 3]], "same", 0]})

LOOP = """def sum_even(numbers):
    total = 0
    for n in numbers:
        if n % 2 == 0:
            total += n
    return total"""


@pytest.mark.parametrize(
    "text",
    [
        LOOP,
        "def sum_even(data):\n    return sum(x for x in data if not x % 2)",
        "def sum_even(items):\n    # Go through all numbers.\n    return sum([n for n in items if n % 2 == 0])",
        "def sum_even(values):\n    found = [n for n in values if n % 2 == 0]\n    return sum(found)",
    ],
)
def test_any_right_function_counts(text: str) -> None:
    assert TASK.score(ASKED, text) == 1.0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("total += n", "total += number"),  # another name for the same thing
        ("return total", "return result"),
        ("== 0", "== 1"),
        ("total = 0", "total = 1"),
        ("sum_even", "sum_odd"),
        ("in numbers", "in values"),
        ("    return total", "return total"),
        ("        if", "    if"),
        ("% 2", "% 3"),
        ("total += n", "total += n * n"),
    ],
)
def test_one_slip_is_wrong(old: str, new: str) -> None:
    assert old in LOOP
    assert TASK.score(ASKED, LOOP.replace(old, new)) == 0.0


@pytest.mark.parametrize(
    "body",
    [
        "import os",
        "__import__('os')",
        "return open('x')",
        "return numbers.__class__",
        "return numbers.sort()",
        "numbers.append(1)",
        "while True:\n        pass",
        "for n in numbers:\n        for x in numbers:\n            return n",
        "for n in [1]:\n        return n",
        "return sum_even(numbers)",
        "return 9 ** 9 ** 9",
        "return numbers ** n",
        "return 1000",
        "return 'text'",
        "return [x for x in numbers for y in numbers]",
        "return (lambda: 1)()",
        "return sum(numbers, start=1)",
        "sum = 1",
        "global numbers",
        "return [*numbers]",
        "with numbers:\n        return 1",
        "try:\n        return 1\n    except ValueError:\n        return 2",
        "del numbers",
        "return f'{numbers}'",
        "return (n := 1)",
        "return numbers[0:1]",
        "return _",
        "def f(x):\n        return x",
    ],
)
def test_what_the_generator_cannot_write_is_not_run(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> bool:
        raise AssertionError("it was run")

    monkeypatch.setattr(functions, "passes", refuse)
    assert TASK.score(ASKED, f"def sum_even(numbers):\n    {body}") == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "def sum_even(numbers):",
        "x = 1",
        f"{LOOP}\nsum_even([])",
        "def sum_even(numbers, more):\n    return 1",
        "def sum_even(*numbers):\n    return 1",
        "def sum_even(numbers=1):\n    return 1",
        "@sum\ndef sum_even(numbers):\n    return 1",
        "def sum_even(numbers: len):\n    return 1",
        "def sum_even(sum):\n    return 1",
        "async def sum_even(numbers):\n    return 1",
        "(" * 3000,
        "\0",
    ],
)
def test_what_is_not_one_plain_function_is_not_run(text: str) -> None:
    assert normal_form(text, "sum_even") is None


def test_programs_that_differ_in_names_alone_are_one() -> None:
    other = LOOP.replace("numbers", "data").replace("total", "answer").replace(" n ", " item ").replace("= n", "= item")
    assert other != LOOP
    assert normal_form(LOOP, "sum_even") == normal_form(other, "sum_even")
    mixed = LOOP.replace("total += n", "answer += n")
    assert normal_form(LOOP, "sum_even") != normal_form(mixed, "sum_even")


def test_all_generated_programs_are_allowed_and_few_are_run() -> None:
    rng = random.Random(0)
    forms = []
    for _ in range(3000):
        wanted = draw_wanted(rng)
        form = normal_form(Writer(wanted, rng).write(), wanted.name)
        assert form is not None
        forms.append((form, wanted.check("f")))
    assert len(set(forms)) < 0.8 * len(forms)


def test_verdicts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(functions, "judge", lambda program, check: calls.append(program) or judge(program, check))
    functions.passes.cache_clear()
    for _ in range(3):
        assert TASK.score(ASKED, LOOP) == 1.0
    assert len(calls) == 1
    functions.passes.cache_clear()


def test_the_checks_tell_neighbouring_constants_apart() -> None:
    """Whatever constant is asked for, the functions with the next ones fail. Run here: the programs are our own."""
    for kind in ("sum", "count", "list", "first", "any", "all"):
        for test, k in (("above", 2), ("above", 20), ("below", 20), ("multiples", 3), ("multiples", 9)):
            verb = functions.VERBS[kind][0]
            wanted = Wanted(kind, verb, ((test, k),))
            for off in (-1, 0, 1):
                other = Wanted(kind, verb, ((test, k + off),))
                program = normal_form(Writer(other, random.Random(1)).write(), other.name)
                assert program is not None
                space: dict[str, object] = {}
                exec(program, space)
                try:
                    exec(wanted.check("f"), space)
                    right = True
                except AssertionError:
                    right = False
                assert right == (off == 0), (kind, test, k, off)


@pytest.mark.parametrize(
    ("program", "passed"),
    [
        ("def f(x):\n    return x", True),
        ("def f(x):\n    return 2", False),
        ("def f(x):\n    return y", False),
        ("def f(x):\n    while True:\n        pass", False),
    ],
)
def test_judge(program: str, passed: bool) -> None:
    assert judge(program, "assert f(1) == 1", seconds=2.0).passed == passed


def test_results_keep_their_types_on_the_way() -> None:
    """A check compares types, too: they must survive whatever lies between a program and its check."""
    program = "def f(x):\n    return [x, True, None, [1, -2]]"
    check = "assert [type(one) for one in f(3)] == [int, bool, type(None), list] and f(3) == [3, True, None, [1, -2]]"
    assert judge(program, check).passed


def test_meta_is_plain_and_enough() -> None:
    task = Functions()
    example = task.draw(random.Random(3))
    kind, verb, conditions, change, by = example.meta["wanted"]
    again = Wanted(kind, verb, tuple((name, k) for name, k in conditions), change, by)
    assert again.prompt == example.prompt
