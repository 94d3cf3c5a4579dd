"""The tasks: right answers score 1, broken ones less, the split is clean, the graphs are what the docs say."""

from __future__ import annotations

import json
import random
from functools import cache
from itertools import pairwise

import pytest

from dapd.errors import DapdError
from dapd.lab import tasks
from dapd.lab.settings import LENGTHS
from dapd.lab.tasks import TASKS, Example, Split, Task, functions, get, pieces
from dapd.lab.tasks.bundle import Bundle, parts
from dapd.lab.tasks.facts import CAPITALS, CONTINENTS, CURRENCIES, LANGUAGES, RELATIONS
from dapd.lab.tasks.grammar import draw, leaves, longest
from dapd.lab.tasks.grids import GridTask, grids
from dapd.lab.tasks.lexicon import CHARACTERS
from dapd.lab.tasks.questions import (
    KINDS,
    Fact,
    Next,
    Product,
    Question,
    Sum,
    answers,
    draw_question,
    every_fact,
    from_plain,
    to_plain,
)
from dapd.lab.tasks.quiz import Quiz, canvas_for
from dapd.lab.tasks.scenes import Character, texts
from dapd.lab.tasks.sentences import content_words
from dapd.lab.tasks.stories import Event, Plot
from dapd.lab.tasks.tied import N_STYLES, Tied, tell
from dapd.lab.tokenizer import LabTokenizer

EVERY = pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))


@pytest.fixture(autouse=True)
def _run_programs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process for each of thousands of programs takes minutes; test_code.py runs some in the sandbox."""

    @cache
    def passes(program: str, check: str) -> bool:
        try:
            exec(f"{program}\n{check}", {})
        except Exception:
            return False
        return True

    monkeypatch.setattr(functions, "passes", passes)


def drawn(task: Task, n: int, seed: int = 0) -> list[Example]:
    rng = random.Random(seed)
    return [task.draw(rng) for _ in range(n)]


@EVERY
def test_gold_answers_score_one(task: Task) -> None:
    assert [e.prompt for e in drawn(task, 1500) if task.score(e, e.answer) != 1.0] == []


@EVERY
def test_broken_answers_do_not(task: Task) -> None:
    rng = random.Random(1)
    for example in drawn(task, 300, seed=1):
        tokens = pieces(example.answer)
        at = rng.randrange(len(tokens))
        lost, foreign = [*tokens[:at], *tokens[at + 1 :]], [*tokens[:at], " Zzz", *tokens[at + 1 :]]
        # A text without an adverb is still right, and so is a program without a newline behind its colon.
        if task.name not in ("scene", "quiz", "code"):
            assert task.score(example, "".join(lost)) < 1.0, (example, "".join(lost))
        if not (task.name == "code" and "#" in example.answer):
            assert task.score(example, "".join(foreign)) < 1.0, (example, "".join(foreign))
        assert task.score(example, "") < 1.0
        assert task.score(example, f"{example.answer} {example.answer}") < 1.0


@EVERY
def test_a_digit_changed_is_wrong(task: Task) -> None:
    rng = random.Random(2)
    for example in drawn(task, 300, seed=2):
        tokens = pieces(example.answer)
        places = [i for i, token in enumerate(tokens) if token.strip().isdigit()]
        # A program with another number may still do the same: see test_code.py.
        if places and task.name != "code":
            at = rng.choice(places)
            digit = int(tokens[at])
            other = tokens[at].replace(str(digit), str((digit + rng.randint(1, 9)) % 10))
            broken = "".join([*tokens[:at], other, *tokens[at + 1 :]])
            assert task.score(example, broken) < 1.0, (example, broken)


@EVERY
def test_an_answer_to_another_prompt_is_wrong(task: Task) -> None:
    wrong = [(a, b) for a, b in zip(drawn(task, 200, 2), drawn(task, 200, 3), strict=True) if a.prompt != b.prompt]
    scores = [task.score(a, b.answer) for a, b in wrong]
    # A Latin square with two clues may fit another prompt by chance, and two prompts may share a single question.
    assert sum(score == 1.0 for score in scores) < 0.1 * len(scores)


@EVERY
def test_deterministic(task: Task) -> None:
    assert drawn(task, 50, 4) == drawn(task, 50, 4)
    assert drawn(task, 50, 4) != drawn(task, 50, 5)


@EVERY
def test_answers_fit_their_canvas(task: Task) -> None:
    for example in drawn(task, 2000, 5):
        assert len(pieces(example.answer)) < task.canvas(example) <= task.room <= 256
        assert task.room % 32 == 0


@EVERY
def test_meta_is_plain(task: Task) -> None:
    for example in drawn(task, 30, 6):
        json.dumps(example.meta)


@EVERY
def test_splits_are_disjoint(task: Task) -> None:
    rng = random.Random(6)
    train = {task.make(rng, Split.TRAIN).prompt for _ in range(1500)}
    test = {task.make(rng, Split.TEST).prompt for _ in range(100)}
    assert not train & test
    assert all(Split.of(prompt) is Split.TEST for prompt in test)
    assert len(test) > 50
    assert task.examples(3, seed=1) != task.examples(3, seed=2)


@EVERY
def test_edges_are_pairs_inside_the_answer(task: Task) -> None:
    for example in drawn(task, 60, 7):
        tokens = pieces(example.answer)
        edges = task.edges(example, tokens)
        assert (edges is None) == (task.graph is None)
        assert all(0 <= a < b < len(tokens) for a, b in edges or ())


def test_the_longest_prompt_and_its_canvas_fit_a_row() -> None:
    """The bound over all that can be drawn, not over a sample."""
    tokenizer = LabTokenizer.build()
    asked: list[Question] = [*every_fact(), Sum(88, "minus", 11), Product(2, 9, 11), Next(60, 9)]
    longest_ask = max(len(pieces(f"[1] {ask}\n")) for question in asked for ask in question.asks)
    frame = len(tokenizer.chat("")) + len(pieces("Answer these questions in your own words.\n"))
    assert frame + 8 * longest_ask + canvas_for(8) <= max(LENGTHS)
    for task in TASKS.values():
        assert max(len(tokenizer.chat(e.prompt)) for e in drawn(task, 500)) + task.room <= max(LENGTHS)


# Quiz.


def test_every_kind_of_question_is_right_and_plain() -> None:
    rng = random.Random(12)
    seen = set()
    for _ in range(3000):
        question = draw_question(rng)
        seen.add(type(question).__name__)
        assert from_plain(json.loads(json.dumps(to_plain(question)))) == question
        assert question.result.lower() in draw(question.reasoning(), rng).lower()
    assert seen == set(KINDS)


def test_numbers_are_right() -> None:
    rng = random.Random(13)
    words = {"plus": "+", "minus": "-", "times": "*"}
    for _ in range(2000):
        question = rng.choice((Sum, Product)).draw(rng)
        asked = question.asks[0].removeprefix("What is ").removesuffix("?")
        for word, sign in words.items():
            asked = asked.replace(word, sign)
        assert question.result == str(eval(asked))
        assert 0 <= int(question.result) < 100
    row = Next(10, 3)
    assert (row.asks[0], row.result) == ("Which number comes next: 10, 13, 16, 19?", "22")


def test_every_sum_in_an_answer_is_right() -> None:
    """Read the texts as a person would: whatever is said to be a sum is one."""
    import re

    rng = random.Random(14)
    checked = 0
    for _ in range(3000):
        question = draw_question(rng)
        text = draw(answers(question), rng)
        for a, word, b, y in re.findall(r"(\d+) (plus|minus|times) (\d+)(?:,)? (?:which )?is (\d+)", text):
            value = {"plus": int(a) + int(b), "minus": int(a) - int(b), "times": int(a) * int(b)}[word]
            assert value == int(y), text
            checked += 1
    assert checked > 1000


def test_a_wrong_fact_or_a_wrong_alternative_is_wrong() -> None:
    example = Example("quiz-1", "", "", {"questions": [["Fact", "capital", "France"]]})
    task = get("quiz-1")
    assert task.score(example, "[1] The capital of France is Paris.") == 1.0
    assert task.score(example, "[1] Sure. It is Paris. So the answer is Paris. That is all.") == 1.0
    assert task.score(example, "[1] Some people think that it is Rome, but the capital of France is Paris.") == 1.0
    assert task.score(example, "[1] Some people think that it is Paris, but the capital of France is Paris.") == 0.0
    assert task.score(example, "[1] Some people think that it is France, but the capital of France is Paris.") == 0.0
    assert task.score(example, "[1] The capital of France is Rome.") == 0.0
    assert task.score(example, "[1] The capital of France is Paris. So the answer is Rome.") == 0.0
    assert task.score(example, "The capital of France is Paris.") == 0.0
    aside = "[1] The capital of France is Paris. By the way, the currency of France is the {}."
    assert task.score(example, aside.format("euro")) == 1.0
    assert task.score(example, aside.format("yen")) == 0.0


def test_quiz_scores_by_question() -> None:
    task = Quiz(fewest=4, most=4)
    example = task.draw(random.Random(14))
    lines = example.answer.split("\n")
    assert task.score(example, "\n".join([*lines[:2], "[3] No.", lines[3]])) == 0.75
    assert task.score(example, "\n".join(lines[:2])) == 0.5
    assert task.score(example, "\n".join([lines[1], lines[0], *lines[2:]])) == 0.5
    assert task.score(example, f"{example.answer}\n[5] Sure.") == 0.75


def test_the_wording_of_an_answer_is_wide_open() -> None:
    """Answers to one prompt differ in length and share words: neither gives away where the others stand."""
    rng = random.Random(15)
    question = Fact("capital", "France")
    told = {draw(answers(question), rng) for _ in range(3000)}
    lengths = [len(pieces(text)) for text in told]
    assert len(told) > 1000
    assert max(lengths) > 4 * min(lengths)
    firsts = {tuple(pieces(text)[:2]) for text in told}
    assert len(firsts) > 12


def test_bare_results_are_rare() -> None:
    rng = random.Random(16)
    told = [draw(Sum(34, "plus", 25).reasoning(), rng) for _ in range(2000)]
    assert sum(text == "34 plus 25 is 59." for text in told) / len(told) < 0.1


def test_quizzes_of_one_size() -> None:
    task = get("quiz-5")
    drawn_ = [task.make(random.Random(seed), Split.TEST) for seed in range(50)]
    assert {len(example.meta["questions"]) for example in drawn_} == {5}
    assert {example.task for example in drawn_} == {"quiz-5"}
    assert [get(f"quiz-{k}").room for k in range(1, 9)] == [64, 96, 128, 160, 192, 224, 256, 256]
    assert get("quiz-1").make(random.Random(0)).prompt.startswith("Answer this question in your own words.\n[1] ")


def test_single_answers_always_fit() -> None:
    asked: list[Question] = [*every_fact(), Sum(88, "minus", 11), Product(2, 9, 11), Next(60, 9)]
    assert max(longest(answers(question)) for question in asked) + 1 < 2 * canvas_for(1)


@pytest.mark.parametrize("name", ["quiz-9", "quiz-0", "tied-1"])
def test_sizes_that_a_bundle_does_not_have(name: str) -> None:
    with pytest.raises(DapdError, match=rf"questions, so {name} does not exist"):
        get(name)


@pytest.mark.parametrize("name", ["latin-5", "quiz-", "quiz-x", "-5"])
def test_only_bundles_have_sizes(name: str) -> None:
    with pytest.raises(DapdError, match=r"quiz-1 \.\.\. quiz-8"):
        get(name)


def test_parts_of_a_text() -> None:
    assert parts("[1] a\n[2] b", 3) == ["a", "b", ""]
    assert parts("[2] a\n[2] b", 2) == ["", "b"]
    assert parts("", 1) == [""]


def test_facts_agree_with_each_other() -> None:
    countries = set(CAPITALS)
    for table in (CONTINENTS, CURRENCIES, LANGUAGES):
        assert set(table) <= countries
    assert all(len(set(relation.known.values())) > 1 for relation in RELATIONS.values())
    assert len(every_fact()) > 450
    assert all("{" not in ask and ask.endswith("?") for fact in every_fact() for ask in fact.asks)


# Tied.


def retold(example: Example, styles: list[int]) -> str:
    questions = [from_plain(values) for values in example.meta["questions"]]
    return "\n".join(f"[{i}] {tell(q, s)}" for i, (q, s) in enumerate(zip(questions, styles, strict=True), 1))


def test_all_styles_of_a_question_are_equally_long() -> None:
    from dapd.lab.tasks.tied import LONGEST
    from dapd.lab.tasks.tied import draw_question as draw_tied

    rng = random.Random(12)
    for _ in range(1500):
        question = draw_tied(rng)
        told = [tell(question, style) for style in range(N_STYLES)]
        assert len({len(pieces(text)) for text in told}) == 1
        assert len(pieces(told[0])) + 2 <= LONGEST
        assert len(set(told)) == N_STYLES
        assert all(text.endswith(f"Therefore, the answer is {question.result}.") for text in told)
        # Any word that is not in all styles gives the style away.
        for column in zip(*map(pieces, told), strict=True):
            assert len(set(column)) in (1, N_STYLES)


def test_tied_bundles_want_one_style() -> None:
    task = Tied(fewest=4, most=4)
    seen = {}
    for example in drawn(task, 40, 16):
        seen[example.meta["rho"]] = example
    assert set(seen) == {0.0, 0.5, 1.0}
    assert task.score(seen[1.0], retold(seen[1.0], [2, 2, 2, 5])) == 0.75
    assert task.score(seen[0.5], retold(seen[0.5], [2, 2, 2, 5])) == 1.0
    assert task.score(seen[0.0], retold(seen[0.0], [0, 3, 7, 9])) == 1.0
    tied, free = (task.edges(seen[rho], pieces(seen[rho].answer)) for rho in (1.0, 0.0))
    assert len(tied) > 2 * len(free)


def test_tied_edges_are_exact() -> None:
    task = Tied(fewest=3, most=3)
    example = next(e for e in drawn(task, 40, 15) if e.meta["rho"] == 0)
    tokens = pieces(example.answer)
    starts = [i for i, token in enumerate(tokens) if token in ("[1]", "[2]", "[3]")] + [len(tokens)]
    edges = task.edges(example, tokens)
    block = [sum(i >= s for s in starts) for i in range(len(tokens))]
    assert all(block[a] == block[b] for a, b in edges)
    # A position has edges exactly if its token is not the same in all styles.
    versions = [pieces(retold(example, [style] * 3)) for style in range(N_STYLES)]
    varying = {i for i in range(len(tokens)) if len({version[i] for version in versions}) > 1}
    assert {i for edge in edges for i in edge} == varying


# The others.


def test_shuffle_takes_other_orders_but_not_the_same() -> None:
    task = TASKS["shuffle"]
    example = task.draw(random.Random(9))
    names = example.meta["names"]
    assert task.score(example, ", ".join(reversed(names))) == 1.0
    assert task.score(example, ", ".join(names)) == 0.0
    assert task.score(example, ", ".join([*names[1:], names[1]])) == 0.0
    tokens = pieces(example.answer)
    places = [i for i, token in enumerate(tokens) if token != ","]
    assert task.edges(example, tokens) == {(a, b) for a in places for b in places if a < b}


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


def test_stories_need_every_step_and_have_right_numbers() -> None:
    task = TASKS["story"]
    for example in drawn(task, 500, 18):
        events = [Event(*values) for values in example.meta["events"]]
        assert all(e.after == e.before + (e.n if e.word == "plus" else -e.n) for e in events)
        assert all(a.after == b.before for a, b in pairwise(events))
        assert all(2 <= e.after <= 99 for e in events)
        assert task.score(example, f"So the answer is {events[-1].after}.") == 0.0
    plot = Plot("Ada", "shells", (Event(8, "minus", 4, 4, "loses 4"), Event(4, "plus", 3, 7, "buys 3 more")))
    assert plot.prompt == "Ada has 8 shells, loses 4 and then buys 3 more. How many shells does Ada have now?"


def test_records_take_any_order_of_keys_and_no_other_change() -> None:
    task = TASKS["record"]
    for example in drawn(task, 200, 19):
        values = example.meta["values"]
        backwards = dict(reversed(values.items()))
        assert task.score(example, json.dumps(backwards)) == 1.0
        assert task.score(example, json.dumps(backwards, indent=1)) == 0.0
        assert task.score(example, json.dumps(backwards, separators=(",", ":"))) == 0.0
        flag = next(key for key, value in values.items() if isinstance(value, bool))
        assert task.score(example, json.dumps({**values, flag: int(values[flag])})) == 0.0
        assert task.score(example, json.dumps({key: values[key] for key in list(values)[1:]})) == 0.0
        several = next((key for key, value in values.items() if isinstance(value, list) and len(value) > 1), None)
        if several:
            assert task.score(example, json.dumps({**values, several: values[several][::-1]})) == 0.0
        twice = example.answer[:-1] + f', "{flag}": {json.dumps(values[flag])}' + "}"
        assert task.score(example, twice) == 0.0
    assert task.score(example, "[]") == task.score(example, "1") == 0.0


def test_sentences_of_records_tell_every_value() -> None:
    for example in drawn(TASKS["record"], 300, 20):
        for value in example.meta["values"].values():
            told = value if isinstance(value, list) else [] if isinstance(value, bool) else [str(value)]
            assert all(one in example.prompt for one in told)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("A clever fox sees two queens. They thank the fox.", False),  # they stands for the subject before, the fox
        ("A clever fox sees two queens. It thanks them.", True),
        ("A clever fox sees two queens. It thank them.", False),
        ("A clever fox see two queens. It thanks them.", False),
        ("A clever fox sees two queens. She thanks them.", False),
        ("A clever fox sees two queens. The queens thank it near the lake.", False),
        ("A clever fox sees two queens. The queens thank it gladly.", True),
        ("A clever fox sees two queens. A fox thanks them.", False),
        ("The clever fox sees two queens. It thanks them.", False),
        ("One day, two queens see a clever fox near the lake. They sleep. In the end, they are friends.", True),
        ("One day, Two queens see a clever fox near the lake. They sleep.", False),
        ("Two queens see a clever fox. Then they sleep. Later the fox sees them. It smiles.", True),
        ("Two queens see a clever fox. Then they sleep. Later it sees them.", False),
        ("A clever fox sees two queens.", False),
        ("A clever fox sleeps. It smiles.", False),
        ("", False),
    ],
)
def test_scenes(text: str, right: bool) -> None:
    pair = (Character("fox", "clever", False), Character("queen", "", True))
    example = Example("scene", "", "", {"characters": [list(vars(one).values()) for one in pair]})
    assert TASKS["scene"].score(example, text) == right


def test_scenes_name_characters_as_the_prompt_does() -> None:
    assert Character("owl", "", False).first == "an owl"
    assert Character("owl", "shy", False).first == "a shy owl"
    assert Character("mouse", "odd", True).first == "two odd mice"
    for noun in CHARACTERS:
        pair = (Character(noun, "", False), Character("king" if noun != "king" else "fox", "", True))
        assert CHARACTERS[noun].pronoun in set(leaves(texts(pair)))


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
def test_sentence_grammar(text: str, used: tuple[str, ...] | None) -> None:
    assert content_words(text) == used


def test_unknown_task() -> None:
    with pytest.raises(DapdError, match="did you mean 'shuffle'"):
        tasks.get("shufle")


@pytest.mark.parametrize("task", ["quiz", "tied"])
def test_the_longest_answer_fits(task: str) -> None:
    own = TASKS[task]
    assert isinstance(own, Bundle)
    largest = [own.of(own.most).draw(random.Random(seed)) for seed in range(300)]
    assert max(len(pieces(example.answer)) + 1 for example in largest) <= own.room
