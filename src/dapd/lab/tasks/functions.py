"""`code`: short Python functions, scored by running them.

A right answer is any function that does what was asked. The generator writes loops, comprehensions and early returns,
and chooses the names of variables: a name must be the same wherever it stands, which is what makes the tokens depend on
each other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dapd.lab.tasks.base import Example, Task
from dapd.lab.tasks.syntax import normal_form
from dapd.sandbox import judge

ARGUMENTS = ("numbers", "values", "items", "data")
ITEMS = ("n", "x", "number", "value", "item")
PARTS = ("found", "chosen", "kept")
TOTALS = {
    "sum": ("total", "result", "answer"),
    "count": ("count", "total", "result"),
    "list": ("result", "answer", "output"),
}
VERBS = {
    "sum": ("sum", "total", "add"),
    "count": ("count", "number"),
    "list": ("list", "select", "collect"),
    "first": ("first", "find"),
    "any": ("any", "has"),
    "all": ("all", "only"),
}
"""Kind of function -> words that its name may begin with."""


@dataclass(frozen=True)
class Test:
    """A condition on a number: its words in the prompt, its forms in Python, its meaning."""

    many: str
    """The condition in words, as in `those that are ...`."""
    one: str
    """The condition in words, as in `the first one that is ...`."""
    yes: tuple[str, ...]
    """Expressions that are true for such a number; `{v}` is the variable."""
    no: tuple[str, ...]
    """Expressions that are true for every other number."""
    holds: Callable[[int, int], bool]
    """The meaning, given a number and the constant `k`."""


SHAPES = {
    "even": Test(
        "even", "even", ("{v} % 2 == 0", "not {v} % 2"), ("{v} % 2 == 1", "{v} % 2 != 0"), lambda n, k: n % 2 == 0
    ),
    "odd": Test(
        "odd", "odd", ("{v} % 2 == 1", "{v} % 2 != 0"), ("{v} % 2 == 0", "not {v} % 2"), lambda n, k: n % 2 == 1
    ),
    "multiples": Test(
        "multiples of {k}",
        "a multiple of {k}",
        ("{v} % {k} == 0", "not {v} % {k}"),
        ("{v} % {k} != 0", "{v} % {k} > 0"),
        lambda n, k: n % k == 0,
    ),
}
"""Conditions on the divisors of a number."""

SIZES = {
    "above": Test(
        "above {k}", "above {k}", ("{v} > {k}", "{k} < {v}"), ("{v} <= {k}", "not {v} > {k}"), lambda n, k: n > k
    ),
    "below": Test(
        "below {k}", "below {k}", ("{v} < {k}", "{k} > {v}"), ("{v} >= {k}", "not {v} < {k}"), lambda n, k: n < k
    ),
    "positive": Test("positive", "positive", ("{v} > 0", "0 < {v}"), ("{v} <= 0", "not {v} > 0"), lambda n, k: n > 0),
    "negative": Test("negative", "negative", ("{v} < 0", "0 > {v}"), ("{v} >= 0", "not {v} < 0"), lambda n, k: n < 0),
}
"""Conditions on the size of a number. A function may combine one of these with one of `SHAPES`."""

TESTS = {**SHAPES, **SIZES}

Condition = tuple[str, int]
"""The name of a test and its constant, which only some tests use."""


@dataclass(frozen=True)
class Change:
    """A change that is made to every number: its words in the prompt, its forms in Python, its meaning."""

    words: str
    forms: tuple[str, ...]
    does: Callable[[int, int], int]


CHANGES = {
    "same": Change("", ("{v}",), lambda n, k: n),
    "squared": Change(", each squared", ("{v} * {v}", "{v} ** 2"), lambda n, k: n * n),
    "times": Change(", each times {k}", ("{v} * {k}", "{k} * {v}"), lambda n, k: n * k),
    "plus": Change(", each plus {k}", ("{v} + {k}", "{k} + {v}"), lambda n, k: n + k),
    "minus": Change(", each minus {k}", ("{v} - {k}",), lambda n, k: n - k),
}

COMMENTS = ("# Go through all numbers.", "# Take the numbers one by one.", "# Look at one number after the other.")

GIVEN = ([], list(range(-12, 31)), list(range(30, -13, -1)), *([n] for n in range(-6, 26)))
"""Arguments of the test calls: an empty list, many numbers in both orders, single numbers around every constant."""


@dataclass(frozen=True)
class Wanted:
    """The specification of a function."""

    kind: str
    """A key of `VERBS`."""
    verb: str
    """The first word of the function's name."""
    conditions: tuple[Condition, ...]
    """The conditions that a number must meet to count; empty: all numbers count."""
    change: str = "same"
    """A key of `CHANGES`: the change that is made to every number that counts."""
    by: int = 0
    """The constant of the change."""

    @property
    def name(self) -> str:
        return "_".join([self.verb, *([name for name, _ in self.conditions] or ["numbers"])])

    @property
    def prompt(self) -> str:
        """The request in words."""
        many, one = (
            " and ".join(getattr(TESTS[name], form).format(k=k) for name, k in self.conditions)
            for form in ("many", "one")
        )
        change = CHANGES[self.change].words.format(k=self.by)
        these = f"those that are {many}" if many else "all of them"
        returns = {
            "sum": f"the sum of {these}{change}",
            "list": f"a list of {these}{change}",
            "count": f"how many of them are {many}",
            "first": f"the first one that is {one}, or None",
            "any": f"whether any of them is {one}",
            "all": f"whether all of them are {many}",
        }[self.kind]
        return f"Write a Python function {self.name} that takes a list of numbers and returns {returns}."

    def result(self, numbers: Sequence[int]) -> object:
        """The right return value of the function for `numbers`."""
        held = [all(TESTS[name].holds(n, k) for name, k in self.conditions) for n in numbers]
        change = CHANGES[self.change]
        picked = [change.does(n, self.by) for n, yes in zip(numbers, held, strict=True) if yes]
        results: dict[str, object] = {
            "sum": sum(picked),
            "list": picked,
            "count": len(picked),
            "first": picked[0] if picked else None,
            "any": any(held),
            "all": all(held),
        }
        return results[self.kind]

    def check(self, name: str) -> str:
        """Python code that fails unless the function called `name` returns the right values, of the right type."""
        pairs = [(numbers, self.result(numbers)) for numbers in GIVEN]
        return (
            f"for given, wanted in {pairs!r}:\n"
            f"    found = {name}(list(given))\n"
            "    assert type(found) is type(wanted) and found == wanted, (given, found, wanted)\n"
        )


def draw_wanted(rng: random.Random) -> Wanted:
    """Draw a specification. Only sums and lists change their numbers, and only they may go without a condition."""
    kind = rng.choice(tuple(VERBS))
    verb = rng.choice(VERBS[kind])
    shape = (rng.choice(tuple(SHAPES)), rng.randint(3, 9))
    size = (rng.choice(tuple(SIZES)), rng.randint(2, 20))
    choices: list[tuple[Condition, ...]] = [(shape,), (size,), (shape, size), (size, shape)]
    conditions = rng.choice(choices)
    if kind not in ("sum", "list"):
        return Wanted(kind, verb, conditions)
    change = rng.choice(tuple(CHANGES))
    if change != "same" and rng.random() < 0.25:
        conditions = ()
    return Wanted(kind, verb, conditions, change, rng.randint(2, 9))


class Writer:
    """Writes one function that meets a specification; every choice of form and of names is drawn."""

    def __init__(self, wanted: Wanted, rng: random.Random) -> None:
        self.wanted = wanted
        self.rng = rng
        self.data = self.pick(ARGUMENTS)
        self.item = self.pick(ITEMS)
        self.part = self.pick(PARTS)
        self.change = self.pick(CHANGES[wanted.change].forms).format(v=self.item, k=wanted.by)

    def pick(self, options: Sequence[str]) -> str:
        """One of the options, drawn so that earlier ones are more likely."""
        return self.rng.choices(options, [1 / rank for rank in range(1, len(options) + 1)])[0]

    def test(self, *, negated: bool = False) -> str:
        """The conditions as one expression, or its negation."""
        tests = [(TESTS[name], k) for name, k in self.wanted.conditions]
        forms = [self.pick(own.no if negated else own.yes).format(v=self.item, k=k) for own, k in tests]
        return (" or " if negated else " and ").join(forms)

    def write(self) -> str:
        """The whole function."""
        body = {
            "sum": self.gather,
            "count": self.gather,
            "list": self.gather,
            "first": self.first,
            "any": self.decide,
            "all": self.decide,
        }[self.wanted.kind]()
        comment = [self.pick(COMMENTS)] if self.rng.random() < 0.25 else []
        return "\n".join([f"def {self.wanted.name}({self.data}):", *(f"    {line}" for line in (*comment, *body))])

    def each(self) -> str:
        """The `for` and `if` of a comprehension."""
        return f"for {self.item} in {self.data}" + (f" if {self.test()}" if self.wanted.conditions else "")

    def gather(self) -> list[str]:
        """The body of a sum, count or list: a comprehension, with or without a variable for it, or a loop."""
        kind = self.wanted.kind
        form = self.rng.random()
        if form < 0.3:
            return [f"return {self.gathered()}"]
        if form < 0.45:
            whole = f"[{self.change} {self.each()}]"
            finish = {"sum": f"sum({self.part})", "count": f"len({self.part})", "list": self.part}[kind]
            return [f"{self.part} = {whole}", f"return {finish}"]
        total = self.pick(TOTALS[kind])
        guard = [f"if not {self.data}:", f"    return {self.nothing}"] if self.rng.random() < 0.2 else []
        return [*guard, f"{total} = {self.nothing}", *self.loop(total), f"return {total}"]

    def gathered(self) -> str:
        """The whole result as one expression."""
        if self.wanted.kind == "list":
            return f"[{self.change} {self.each()}]"
        if self.wanted.kind == "sum":
            return self.pick((f"sum({self.change} {self.each()})", f"sum([{self.change} {self.each()}])"))
        return self.pick((f"sum(1 {self.each()})", f"len([{self.item} {self.each()}])"))

    @property
    def nothing(self) -> str:
        return "[]" if self.wanted.kind == "list" else "0"

    def loop(self, total: str) -> list[str]:
        """The loop that gathers into the variable `total`."""
        head = f"for {self.item} in {self.data}:"
        more = "1" if self.wanted.kind == "count" else self.change
        grow = self.pick((f"{total} += {more}", f"{total} = {total} + {more}"))
        if self.wanted.kind == "list":
            grow = self.pick((f"{total}.append({more})", f"{total} += [{more}]"))
        if not self.wanted.conditions:
            return [head, f"    {grow}"]
        if self.rng.random() < 0.2:
            return [head, f"    if {self.test(negated=True)}:", "        continue", f"    {grow}"]
        return [head, f"    if {self.test()}:", f"        {grow}"]

    def first(self) -> list[str]:
        """The body that returns the first number to meet the conditions: an early return, `next`, or the first entry of
        a list of all of them."""
        form = self.rng.random()
        if form < 0.3:
            return [f"{self.part} = [{self.item} {self.each()}]", f"return {self.part}[0] if {self.part} else None"]
        if form < 0.45:
            return [f"return next(({self.item} {self.each()}), None)"]
        head = [f"for {self.item} in {self.data}:", f"    if {self.test()}:", f"        return {self.item}"]
        return [*head, "return None"]

    def decide(self) -> list[str]:
        """The body that tells whether any or all numbers meet the conditions: an early return, or `any` or `all`."""
        kind = self.wanted.kind
        if self.rng.random() < 0.4:
            return [f"return {kind}({self.test()} for {self.item} in {self.data})"]
        head = f"for {self.item} in {self.data}:"
        found = kind == "any"
        return [head, f"    if {self.test(negated=not found)}:", f"        return {found}", f"return {not found}"]


@lru_cache(maxsize=65536)
def passes(program: str, check: str) -> bool:
    """Whether a program passes a check. Cached, because a sweep over decoders sees the same programs repeatedly."""
    return judge(program, check).passed


@dataclass(frozen=True)
class Functions(Task):
    """One function on a list of numbers."""

    name: str = "code"

    room = 96
    scored = "the function returns the right results when it is run"
    graph = None

    def draw(self, rng: random.Random) -> Example:
        wanted = draw_wanted(rng)
        meta = {"wanted": [wanted.kind, wanted.verb, list(map(list, wanted.conditions)), wanted.change, wanted.by]}
        return Example(self.name, wanted.prompt, Writer(wanted, rng).write(), meta)

    def score(self, example: Example, text: str) -> float:
        kind, verb, conditions, change, by = example.meta["wanted"]
        wanted = Wanted(kind, verb, tuple((name, k) for name, k in conditions), change, by)
        program = normal_form(text, wanted.name)
        return float(program is not None and passes(program, wanted.check("f")))

    def words(self) -> Iterable[str]:
        for kind, verbs in VERBS.items():
            for verb in verbs:
                yield from (Wanted(kind, verb, ((test, 2),), "same").prompt for test in TESTS)
        yield from (Wanted("sum", "sum", (), change, 2).prompt for change in CHANGES)
        yield " ".join((*ARGUMENTS, *ITEMS, *PARTS, *COMMENTS, *(name for names in TOTALS.values() for name in names)))
        yield "def for in if else not and or return continue True False None sum len any all next append"
        yield "( ) [ ] : , . # _ = == != < > <= >= += + - * ** %"
        yield "\n    " + "\n        " + "\n            "
