"""The tasks: right answers score 1, broken ones less, the split is clean, the graphs are what the docs say."""

from __future__ import annotations

import random

import pytest

from dapd.errors import DapdError
from dapd.lab import tasks
from dapd.lab.tasks import TASKS, Example, Split, Task, get, pieces
from dapd.lab.tasks.bundle import OPENINGS, Bundle, Loose, Tied
from dapd.lab.tasks.grids import GridTask, grids
from dapd.lab.tasks.lists import OPERATIONS, ListTask
from dapd.lab.tasks.questions import N_STYLES, draw_question, from_plain, to_plain
from dapd.lab.tasks.sentences import content_words
from dapd.lab.tasks.stories import Stories

EVERY = pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))


def drawn(task: Task, n: int, seed: int = 0) -> list[Example]:
    rng = random.Random(seed)
    return [task.draw(rng) for _ in range(n)]


@EVERY
def test_gold_answers_score_one(task: Task) -> None:
    assert [e.prompt for e in drawn(task, 2000) if task.score(e, e.answer) != 1.0] == []


@EVERY
def test_broken_answers_do_not(task: Task) -> None:
    rng = random.Random(1)
    for example in drawn(task, 300, seed=1):
        tokens = pieces(example.answer)
        at = rng.randrange(len(tokens))
        broken = ["".join(tokens[:at] + tokens[at + 1 :]), "".join([*tokens[:at], " Zzz", *tokens[at + 1 :]]), ""]
        for text in broken:
            # Removing a name from a list that lost one at random can never be right again, nor can any other cut.
            assert task.score(example, text) < 1.0, (example, text)


@EVERY
def test_an_answer_to_another_prompt_is_wrong(task: Task) -> None:
    wrong = [(a, b) for a, b in zip(drawn(task, 200, 2), drawn(task, 200, 3), strict=True) if a.prompt != b.prompt]
    scores = [task.score(a, b.answer) for a, b in wrong]
    # A Latin square with two clues may fit another prompt by chance, and two prompts may share a single question.
    assert sum(score == 1.0 for score in scores) < 0.1 * len(scores)


@EVERY
def test_deterministic_and_fits_its_room(task: Task) -> None:
    assert drawn(task, 50, 4) == drawn(task, 50, 4)
    assert max(len(pieces(e.answer)) for e in drawn(task, 2000, 5)) < task.room


@EVERY
def test_splits_are_disjoint(task: Task) -> None:
    rng = random.Random(6)
    train = {task.make(rng, Split.TRAIN).prompt for _ in range(1500)}
    test = {task.make(rng, Split.TEST).prompt for _ in range(100)}
    assert not train & test
    assert all(Split.of(prompt) is Split.TEST for prompt in test)
    assert task.examples(3, seed=1) != task.examples(3, seed=2)


@EVERY
def test_edges_are_pairs_inside_the_answer(task: Task) -> None:
    for example in drawn(task, 60, 7):
        tokens = pieces(example.answer)
        edges = task.edges(example, tokens)
        assert (edges is None) == (task.graph is None)
        assert all(0 <= a < b < len(tokens) for a, b in edges or ())


@pytest.mark.parametrize("name", [name for name, operation in OPERATIONS.items() if operation.free])
def test_free_list_operations_accept_other_choices(name: str) -> None:
    task = TASKS[name]
    assert isinstance(task, ListTask)
    rng = random.Random(8)
    for example in drawn(task, 100, 8):
        meta = example.meta
        other = ", ".join(task.operation.do(meta["names"], meta["place"], meta["new"], rng))
        assert task.score(example, other) == 1.0
    names = [i for i, token in enumerate(pieces(example.answer)) if token != ","]
    assert task.edges(example, pieces(example.answer)) == {(a, b) for a in names for b in names if a < b}


def test_shuffle_must_move_something() -> None:
    example = TASKS["shuffle"].draw(random.Random(9))
    assert TASKS["shuffle"].score(example, ", ".join(example.meta["names"])) == 0.0


def test_grid_counts_and_edges() -> None:
    assert (len(grids(False)), len(grids(True))) == (576, 288)
    task = TASKS["latin"]
    assert isinstance(task, GridTask)
    example = task.draw(random.Random(10))
    tokens = pieces(example.answer)
    cells = [i for i, token in enumerate(tokens) if token != "\n"]
    edges = task.edges(example, tokens)
    free = [cell for cell in range(16) if cell not in example.meta["clues"]]
    expected = {(cells[a], cells[b]) for a in free for b in free if a < b and (a // 4 == b // 4 or a % 4 == b % 4)}
    assert edges == expected


def test_every_valid_completion_of_a_grid_counts() -> None:
    task = TASKS["latin"]
    example = task.draw(random.Random(11))
    fitting = [g for g in grids(False) if all(g[cell] == digit for cell, digit in example.meta["clues"].items())]
    assert len(fitting) > 1
    for grid in fitting:
        text = "\n".join(" ".join(map(str, grid[4 * r : 4 * r + 4])) for r in range(4))
        assert task.score(example, text) == 1.0


def test_all_styles_of_a_question_are_equally_long() -> None:
    rng = random.Random(12)
    for _ in range(1500):
        question = draw_question(rng)
        told = [question.tell(style) for style in range(N_STYLES)]
        assert len({len(pieces(text)) for text in told}) == 1
        assert len(set(told)) == N_STYLES
        assert all(text.endswith(f"Therefore, the answer is {question.answer}.") for text in told)
        assert from_plain(to_plain(question)) == question


def test_sums_are_right() -> None:
    rng = random.Random(13)
    asked = [q for q in (draw_question(rng) for _ in range(2000)) if type(q).__name__ != "Fact"]
    for question in asked:
        words = question.ask().removeprefix("What is ").removesuffix("?")
        value = eval(words.replace("plus", "+").replace("minus", "-").replace("times", "*"))
        assert question.answer == str(value)
        assert 0 <= value < 100


def retold(task: Bundle, example: Example, styles: list[int]) -> str:
    questions = [from_plain(values) for values in example.meta["questions"]]
    lines = [f"[{i}] {q.tell(s)}" for i, (q, s) in enumerate(zip(questions, styles, strict=True), 1)]
    return "\n".join(lines)


def test_bundles_take_any_style_but_no_mixture() -> None:
    task = Bundle(fewest=4, most=4)
    example = task.draw(random.Random(14))
    assert task.score(example, retold(task, example, [0, 3, 7, 9])) == 1.0
    first, second = retold(task, example, [1] * 4).split("\n"), retold(task, example, [2] * 4).split("\n")
    half = len(pieces(first[0])) // 3
    mixed = "".join(pieces(first[0])[:half] + pieces(second[0])[half:])
    assert task.score(example, "\n".join([mixed, *first[1:]])) == 0.75
    assert task.score(example, "\n".join(first[:2])) == 0.5


def test_bundle_edges_are_blocks_and_exact() -> None:
    task = Bundle(fewest=3, most=3)
    example = task.draw(random.Random(15))
    tokens = pieces(example.answer)
    starts = [i for i, token in enumerate(tokens) if token in ("[1]", "[2]", "[3]")] + [len(tokens)]
    edges = task.edges(example, tokens)
    assert edges
    block = [sum(i >= s for s in starts) for i in range(len(tokens))]
    assert all(block[a] == block[b] for a, b in edges)
    # A position has edges exactly if its token is not the same in all styles.
    versions = [pieces(retold(task, example, [style] * 3)) for style in range(N_STYLES)]
    varying = {i for i in range(len(tokens)) if len({version[i] for version in versions}) > 1}
    assert {i for edge in edges for i in edge} == varying


def test_tied_bundles_want_one_style() -> None:
    task = Tied(fewest=4, most=4)
    seen = {}
    for example in drawn(task, 40, 16):
        seen[example.meta["rho"]] = example
    assert set(seen) == {0.0, 0.5, 1.0}
    assert task.score(seen[1.0], retold(task, seen[1.0], [2, 2, 2, 5])) == 0.75
    assert task.score(seen[0.5], retold(task, seen[0.5], [2, 2, 2, 5])) == 1.0
    tied, free = (task.edges(seen[rho], pieces(seen[rho].answer)) or set() for rho in (1.0, 0.0))
    assert len(tied) > 2 * len(free)


def test_loose_bundles_take_any_opening() -> None:
    task = Loose(fewest=2, most=2)
    example = task.draw(random.Random(17))
    bare = retold(task, example, [4, 5])
    assert task.score(example, bare) == 1.0
    for opening in OPENINGS[1:]:
        assert task.score(example, bare.replace("[2] ", f"[2] {opening} ")) == 1.0
    assert task.score(example, bare.replace("[2] ", "[2] Sure. Sure. ")) == 0.5


def test_stories_need_every_step() -> None:
    task = Stories()
    example = task.draw(random.Random(18))
    final = example.meta["steps"][-1][-1]
    assert task.score(example, f"Therefore, the answer is {final}.") == 0.0


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("An angry king sees the foxes.", ("angry", "king", "see", "fox")),
        ("These mice help a uncle.", None),
        ("These mice helps an uncle.", None),
        ("The king see the foxes.", None),
        ("A foxes sees the king.", None),
        ("The men thank every baker near the lake gladly.", ("man", "thank", "baker", "lake", "gladly")),
        ("The men thank every baker gladly near the lake.", None),
        ("the men thank every baker.", None),
        ("The men thank every baker", None),
        ("The men  thank every baker.", None),
    ],
)
def test_grammar(text: str, used: tuple[str, ...] | None) -> None:
    assert content_words(text) == used


def test_unknown_task() -> None:
    with pytest.raises(DapdError, match="did you mean 'shuffle'"):
        tasks.get("shufle")


def test_bundles_of_one_size() -> None:
    task = get("bundle-5")
    drawn = [task.make(random.Random(seed), Split.TEST) for seed in range(50)]
    assert {len(example.meta["questions"]) for example in drawn} == {5}
    assert {example.task for example in drawn} == {"bundle-5"}
    assert task.room == 160
    assert max(len(pieces(example.answer)) + 1 for example in drawn) <= task.room
    assert [get(f"bundle-{k}").room for k in (1, 2, 8)] == [32, 64, 256]


@pytest.mark.parametrize("name", ["bundle-9", "bundle-0", "tied-1"])
def test_sizes_that_a_bundle_does_not_have(name: str) -> None:
    with pytest.raises(DapdError, match=rf"questions, so {name} does not exist"):
        get(name)


@pytest.mark.parametrize("name", ["copy-5", "bundle-", "bundle-x", "-5"])
def test_only_bundles_have_sizes(name: str) -> None:
    with pytest.raises(DapdError, match=r"bundle-1 \.\.\. bundle-8"):
        get(name)


@pytest.mark.parametrize("task", ["bundle", "tied", "loose"])
def test_the_longest_answer_fits(task: str) -> None:
    own = TASKS[task]
    assert isinstance(own, Bundle)
    largest = [own.of(own.most).draw(random.Random(seed)) for seed in range(300)]
    assert max(len(pieces(example.answer)) + 1 for example in largest) <= own.room
