"""Prescribed forms: texts are valid at every speed, the witness is the best one, promises are kept or refused."""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch

import dapd
from dapd import forms
from dapd.canvas import Canvas
from dapd.errors import DapdError
from dapd.forms import BuildLimits, build, check_schema, worker
from dapd.lab.tasks import get
from dapd.models.base import Profile
from dapd.models.tokenizer import byte_letters

pytest.importorskip("outlines_core", reason="forms need dapd[forms]")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        "married": {"type": "boolean"},
    },
    "required": ["name", "age", "tags", "married"],
}
DECODERS = ["original", "dream", "fast-dllm", "fast-dllm-factor", "eb-sampler", "klass", "dapd-staged", "dapd-direct"]
DECODERS += ["dawn", "local-leap"]


@pytest.fixture(scope="module")
def lm():
    return dapd.load("random:tiny-llada", device="cpu")


@pytest.fixture(scope="module")
def dream():
    return dapd.load("random:tiny-dream", device="cpu")


@pytest.fixture(scope="module")
def lab():
    return dapd.load("lab", device="cpu")


def keeps_person(text: str) -> bool:
    said = json.loads(text)
    return (
        set(said) == set(PERSON["required"])
        and isinstance(said["name"], str)
        and len(said["name"]) <= 8
        and type(said["age"]) is int
        and len(said["tags"]) <= 2
        and set(said["tags"]) <= {"a", "b"}
        and type(said["married"]) is bool
    )


@pytest.mark.parametrize("name", DECODERS)
def test_every_decoder_keeps_a_schema(lm, name):
    done = lm.generate("x", strategy=name, max_new_tokens=96, json_schema=PERSON)
    assert keeps_person(done.text)


LOOPS = [
    {"block_length": 12},
    {"block_length": 12, "reuse": "dual"},
    {"reuse": "settled"},
    {"temperature": 3.0, "seed": 4},
    {"temperature": 1.0, "top_k": 1},
    {"eos": "ban"},
    {"eos": "defer", "early_stop": True},
    {"suppress": tuple(range(256))},
]


@pytest.mark.parametrize("loop", LOOPS, ids=str)
@pytest.mark.parametrize("family", ["lm", "dream"])
def test_every_loop_keeps_a_form(family, loop, request):
    model = request.getfixturevalue(family)  # which keeps the forms that it has built
    for pattern in ("[a-f]{3}-[0-9]{2,9}( ok)?", "(ab|cd)+", "日本[あ-ん]{2}"):
        done = model.generate("x", max_new_tokens=24, regex=pattern, **loop)
        assert re.fullmatch(pattern, done.text), done.text


def test_rows_of_a_batch_keep_it_as_they_do_alone(lm):
    prompts = ["one", "a longer one", "x"]
    together = lm.generate_batch(prompts, max_new_tokens=24, regex="[a-z]+ [0-9]+")
    for prompt, done in zip(prompts, together, strict=True):
        assert done.ids == lm.generate(prompt, max_new_tokens=24, regex="[a-z]+ [0-9]+").ids


def test_what_is_forced_comes_first_and_alone(lm):
    """Two letters in front and one behind three open ones; whatever a later commit forces comes with it."""
    done = lm.generate("x", max_new_tokens=6, regex="ab(cde|fgh)z", strategy="original")
    steps = [[place - done.trace.steps[0].positions[0] for place in step.positions] for step in done.trace.steps]
    assert steps == [[0, 1, 5], [2, 3, 4]]
    assert done.text in ("abcdez", "abfghz")


def test_a_schema_does_not_spoil_what_the_model_knows(lab):
    """The keys of a record come in any order when it is free; the schema names one, and its keys are what is forced."""
    (example,) = get("record").examples(1)
    values = example.meta["values"]
    kinds = {str: "string", int: "integer", bool: "boolean"}
    texts = {"type": "array", "items": {"type": "string"}, "maxItems": 3}
    fields = {key: {"type": kinds[type(v)]} if type(v) in kinds else texts for key, v in values.items()}
    schema = {"type": "object", "properties": fields, "required": list(values)}
    asked = [{"role": "user", "content": example.prompt}]
    done = lab.generate(asked, strategy="fast-dllm", max_new_tokens=96, json_schema=schema, early_stop=True)
    assert json.loads(done.text) == values
    assert done.nfe < 20


def test_a_form_over_words(lab):
    pattern = " ?[A-Za-z]+( [a-z]+){2}, [0-9]+[.]"
    prompt = [{"role": "user", "content": "Shuffle the list: 3 1 2"}]
    for name in ("original", "dapd-staged", "fast-dllm"):
        assert re.fullmatch(pattern, lab.generate(prompt, strategy=name, max_new_tokens=32, regex=pattern).text)


class TestWitness:
    """The best text of a form, held against all of them."""

    PROFILE = Profile(mask_id=5, eos_id=4, pad_id=4)
    TOKENS = {0: b"a", 1: b"b", 2: b"ab", 3: b"ba"}
    PATTERN = "(aab?|b)*a"

    @pytest.fixture(scope="class")
    def language(self):
        return build(self.TOKENS, 6, self.PROFILE, regex=self.PATTERN)

    def texts(self, length: int):
        for ids in itertools.product(range(5), repeat=length):
            end = ids.index(4) if 4 in ids else length
            text = b"".join(self.TOKENS[i] for i in ids[:end]).decode()
            if set(ids[end:]) <= {4} and re.fullmatch(self.PATTERN, text):
                yield ids

    @pytest.mark.parametrize("seed", range(12))
    def test_it_is_the_best_that_agrees_with_what_stands(self, language, seed):
        random = torch.Generator().manual_seed(seed)
        length = 5
        scores = torch.randn(length, 6, generator=random)
        texts = list(self.texts(length))
        canvas = Canvas.blank([0], length, mask_id=5)
        kept = texts[int(torch.randint(len(texts), (1,), generator=random))]
        for place in range(length):
            if torch.rand(1, generator=random) < 0.3:
                canvas = canvas.commit(slice(1, 6), torch.arange(5) == place, torch.tensor(kept))
        standing = {i: t for i, t in enumerate(canvas.tokens[1:].tolist()) if t != 5}
        agreeing = [ids for ids in texts if all(ids[i] == t for i, t in standing.items())]
        value = {ids: sum(float(scores[i, t]) for i, t in enumerate(ids) if i not in standing) for ids in agreeing}
        forced = [i not in standing and len({ids[i] for ids in agreeing}) == 1 for i in range(length)]
        assert language.forced(canvas, slice(1, 6)).tolist() == forced
        found = language.tokens(scores, canvas, slice(1, 6)).tolist()
        whole = tuple(standing.get(i, token) for i, token in enumerate(found))
        assert whole in value
        assert value[whole] == pytest.approx(max(value.values()))

    def test_what_lies_behind_the_window_can_still_be_completed(self, language):
        scores = torch.zeros(2, 6)
        scores[:, 1] = 9  # b, which is no text by itself
        canvas = Canvas.blank([0], 3, mask_id=5)
        found = language.tokens(scores, canvas, slice(1, 3)).tolist()
        assert any(ids[:2] == tuple(found) for ids in self.texts(3))

    def test_scores_that_are_no_numbers_are_left_to_the_row(self, language):
        canvas = Canvas.blank([0], 3, mask_id=5)
        assert language.tokens(torch.full((3, 6), torch.nan), canvas, slice(1, 4)).shape == (3,)

    def test_forbidden_tokens_are_the_last_resort(self, language):
        canvas = Canvas.blank([0], 2, mask_id=5)
        scores = torch.zeros(2, 6)
        scores[:, 0] = torch.finfo(torch.float32).min
        assert tuple(language.tokens(scores, canvas, slice(1, 3)).tolist()) in set(self.texts(2))


def test_a_canvas_that_is_too_short_is_refused(lm):
    with pytest.raises(DapdError, match="needs at least 10 tokens; max_new_tokens is 8"):
        lm.generate("x", max_new_tokens=8, regex="[a-z]{10}")
    assert len(lm.generate("x", max_new_tokens=10, regex="[a-z]{10}").text) == 10


def test_the_order_of_alternatives_does_not_matter(lm):
    assert lm.generate("x", max_new_tokens=4, regex="a|ab", bias=((ord("b"), 1000.0),)).text == "ab"


@pytest.mark.parametrize("pattern", [".{6}", "[^a]{5}.+", "(.|\\n){6,}"])
def test_a_letter_that_may_be_any_is_not_the_end(lm, pattern):
    end = ((lm.network.profile.eos_id, 1000.0),)  # a text that could end sooner would
    assert re.fullmatch(pattern, lm.generate("x", max_new_tokens=16, regex=pattern, bias=end).text)


def test_a_beginning_that_comes_again_costs_nothing():
    """`No` may stand anywhere in the twenty letters behind it; what began there would make a million states."""
    tokens = {byte: bytes([byte]) for byte in range(256)}
    limits = BuildLimits(seconds=10)
    assert build(tokens, 300, Profile(299, 298, 298), regex="N.{20}", limits=limits).automaton.shortest == 21


def test_fixed_tokens_are_part_of_the_text(lm):
    done = lm.generate("x", max_new_tokens=6, regex="[a-z]{4}", fixed={2: ord("q")})
    assert re.fullmatch("[a-z]{2}q[a-z]", done.text)
    with pytest.raises(DapdError, match="do not fit the form"):
        lm.generate("x", max_new_tokens=6, regex="[a-z]{4}", fixed={2: ord("7")})


def test_what_the_tokens_cannot_spell_is_refused(lab):
    with pytest.raises(DapdError, match="cannot"):
        lab.generate([{"role": "user", "content": "Shuffle the list: 3"}], max_new_tokens=8, regex="日本")


@pytest.mark.parametrize("pattern", ["(a", "a)|(b", "(?=a)b", r"(a)\1", "", "x" * 30_000], ids=lambda p: p[:8])
def test_a_pattern_that_cannot_be_read_is_refused(lm, pattern):
    with pytest.raises(DapdError, match="pattern"):
        lm.generate("x", max_new_tokens=8, regex=pattern)


def test_where_a_pattern_is_wrong_is_said(lm):
    words = r"not a valid regular expression: missing \), unterminated subpattern at position 4"
    with pytest.raises(DapdError, match=words):
        lm.generate("x", max_new_tokens=8, regex="Ask (Nora|")


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"regex": "a(?=b)"}, "the pattern cannot be used: .*look-around"),
        ({"regex": "^a$"}, r"the pattern cannot be used: .*\^ or \$"),
        ({"json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}}, "the schema .*leads to itself"),
    ],
    ids=str,
)
def test_why_a_form_cannot_be_used_is_said_in_plain_words(lm, form, words):
    with pytest.raises(DapdError, match=words):
        lm.form(**form)


def test_a_pattern_that_no_machine_holds_ends_in_time():
    tokens = {byte: bytes([byte]) for byte in range(256)}
    limits = BuildLimits(seconds=2, memory=1 << 30)
    began = time.monotonic()
    for pattern in ("(a|b)*a(a|b){40}", "((a{1,900}){1,900}){1,900}"):
        with pytest.raises(DapdError, match=r"too complicated|cannot be used"):
            build(tokens, 300, Profile(299, 298, 298), regex=pattern, limits=limits)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(("pattern", "shortest"), [("a{20000}", 20000), ("a{0,20000}b", 1), ("a?", 0), ("ab|c{3}", 2)])
def test_the_shortest_text_is_found_in_one_look_at_the_edges(pattern, shortest):
    """To look at all edges once for every length took hours where a form has many states."""
    letters = {byte: bytes([byte]) for byte in range(256)}
    language = build(letters, 300, Profile(299, 298, 298), regex=pattern)
    began = time.monotonic()
    assert language.automaton.shortest == shortest
    assert time.monotonic() - began < 1


def test_a_form_that_would_slow_every_pass_is_refused(lm):
    canvas = lm.canvas("x", 200)
    with pytest.raises(DapdError, match=r"too complicated for 200 new tokens: it has \d+ edges; allowed: 250000"):
        lm.form(regex="a{0,130000}").check(canvas)
    lm.form(regex="a{0,2000}").check(canvas)


def test_a_form_too_large_to_be_kept_is_refused_when_it_is_built(lm):
    """Each one of 1,800,000 edges took 90 MB, and a model keeps 32 of them."""
    with pytest.raises(DapdError, match="too complicated: 600002 edges; allowed: 500000"):
        lm.form(regex="a{0,300000}")


REFUSED = {
    "minimum": {"type": "integer", "minimum": 3},
    "pattern": {"type": "string", "pattern": ".*"},
    "multipleOf": {"type": "number", "multipleOf": 2},
    "uniqueItems": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    "allOf": {"allOf": [{"type": "integer"}]},
    "oneOf": {"oneOf": [{"type": "integer"}]},
    "needs a type": {},
    "additionalProperties": {"type": "object", "additionalProperties": {"type": "integer"}},
    "required": {"type": "object", "properties": {}, "required": ["a"]},
    "required must name": {"type": "object", "properties": {"1": {"type": "null"}}, "required": [1]},
    "minLength is 5 and maxLength 2": {"type": "string", "minLength": 5, "maxLength": 2},
    "minItems is 3": {"type": "array", "items": {"type": "null"}, "minItems": 3, "maxItems": 1},
    "not of type": {"type": "integer", "enum": ["a"]},
    "format": {"type": "string", "format": "email"},
    "maxLength": {"type": "string", "maxLength": 10**9},
    "several types": {"type": ["string", "null"], "maxLength": 3},
    "not a JSON object": {"type": "array", "items": 3},
    r"with a format\): 'maxLength'": {"type": "string", "format": "date", "maxLength": 3},
    "not of type string or null": {"enum": ["a", 1], "type": ["string", "null"]},
    "type is 'text'": {"const": "a", "type": "text"},
    "the number 18446744073709551616": {"enum": [2**64]},
    "the number 0.1234567890123456 ": {"const": 0.1234567890123456},
    "the number nan": {"const": float("nan")},
}


@pytest.mark.parametrize("word", REFUSED)
def test_a_keyword_that_would_be_ignored_is_refused(word):
    with pytest.raises(DapdError, match=word):
        check_schema(REFUSED[word])


def test_a_deep_schema_is_refused():
    schema = {"type": "integer"}
    for _ in range(20):
        schema = {"type": "array", "items": schema}
    with pytest.raises(DapdError, match="levels deep"):
        check_schema(schema)


NAMES = ['"', "\\", "\n", "\\d"]
"""Names of properties that JSON writes with escapes."""


@pytest.mark.parametrize(
    ("schema", "check"),
    [
        ({"type": "string", "minLength": 2, "maxLength": 4}, lambda v: 2 <= len(v) <= 4),
        ({"type": "number"}, lambda v: isinstance(v, int | float)),
        ({"type": ["integer", "null"]}, lambda v: v is None or isinstance(v, int)),
        ({"anyOf": [{"type": "boolean"}, {"const": "x"}]}, lambda v: v in (True, False, "x")),
        ({"enum": ["a", 1, None, 'q"\\']}, lambda v: v in ["a", 1, None, 'q"\\']),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}, lambda v: 2 <= len(v) <= 3),
        (
            {"$defs": {"n": {"type": "integer"}}, "type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}},
            lambda v: v == {} or (list(v) == ["a"] and isinstance(v["a"], int)),
        ),
        ({"type": "string", "format": "date"}, lambda v: re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", v)),
        ({"type": "object"}, lambda v: isinstance(v, dict)),
        ({"type": "object", "additionalProperties": False}, lambda v: v == {}),
        (
            {"type": "object", "properties": {name: {"type": "null"} for name in NAMES}, "required": NAMES},
            lambda v: list(v) == NAMES,
        ),
    ],
    ids=["length", "number", "null", "any of", "enum", "array", "reference", "date", "object", "nothing", "names"],
)
def test_values_are_what_the_schema_says(lm, schema, check):
    for done in lm.generate_batch(["x"] * 3, max_new_tokens=48, json_schema=schema, temperature=8.0):
        assert check(json.loads(done.text))


def test_a_time_with_a_fraction_is_json():
    pattern = worker.expression({"regex": None, "schema": {"type": "string", "format": "time"}})
    assert re.fullmatch(pattern, '"12:00:00.5Z"')
    assert not re.fullmatch(pattern, '"12:00:00\\\\x5Z"')


def test_a_schema_that_is_no_json_is_refused(lm):
    for schema in (dict, {"const": {1}}):
        with pytest.raises(DapdError, match=r"the schema is not a JSON object: .* is not JSON serializable"):
            lm.form(json_schema=schema)


def test_a_form_says_what_is_to_be_installed(lm, monkeypatch):
    """Neither torch nor the core brings numpy, without which nothing of a form can be imported."""
    monkeypatch.setitem(sys.modules, "dapd.forms", None)
    with pytest.raises(DapdError, match=r"pip install 'dapd\[forms\]'"):
        lm.form(regex="a")


def test_forms_are_kept(lm):
    assert lm.form(regex="kept+") is lm.form(regex="kept+")
    assert lm.form() is None


def test_a_form_that_takes_long_holds_up_no_other(lm, monkeypatch):
    """Two threads that want the same one share its building; one that failed may be asked for again."""
    may_end = Event()
    built = []

    def build(*_, regex, **__):
        built.append(regex)
        if regex.startswith("slow"):
            assert may_end.wait(30)
        if regex == "slow and wrong":
            raise DapdError("too complicated")
        return object()

    monkeypatch.setattr(forms, "build", build)
    with ThreadPoolExecutor(3) as threads:
        slow = [threads.submit(lm.form, "slow") for _ in range(2)]
        wrong = threads.submit(lm.form, "slow and wrong")
        assert lm.form("quick") is lm.form("quick")
        assert not any(one.done() for one in (*slow, wrong))
        may_end.set()
        assert slow[0].result() is slow[1].result()
        with pytest.raises(DapdError, match="too complicated"):
            wrong.result()
    with pytest.raises(DapdError, match="too complicated"):
        lm.form("slow and wrong")
    assert sorted(built) == ["quick", "slow", "slow and wrong", "slow and wrong"]


def test_the_letters_of_bytes():
    letters = byte_letters()
    assert sorted(letters.values()) == list(range(256))
    assert letters["a"] == ord("a")
    assert letters["Ġ"] == ord(" ")
