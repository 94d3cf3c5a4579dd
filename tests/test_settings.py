"""Strategies by name: presets, the paper's table, fields from text, and what is refused."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from dapd import PAPER, PRESETS, Dapd, DreamSchedule, EntropyBound, Factor, Klass, Setting, Threshold, TopK
from dapd.errors import DapdError
from dapd.io.fields import explain
from dapd.settings import changed, describe, read_settings, setting, strategy
from dapd.strategies import AttentionNeed, Dawn, LocalLeap, Needs, ShuffledGraph


def made(name, **fields):
    """A strategy with fields from text, as the command line has them, or with values, as Python has them."""
    if any(isinstance(value, str) for value in fields.values()):
        return read_settings(name, [f"{key}={value}" for key, value in fields.items()])[0].strategy
    return strategy(name, **fields)


def refuses(words, name, **fields):
    with pytest.raises(DapdError, match=words):
        made(name, **fields)


def test_preset_names():
    """The seven that were asked for, and Dream's own schedule; more may come."""
    wanted = {
        "original": TopK,
        "dream": DreamSchedule,
        "fast-dllm": Threshold,
        "fast-dllm-factor": Factor,
        "eb-sampler": EntropyBound,
        "klass": Klass,
        "dapd-staged": Dapd,
        "dapd-direct": Dapd,
    }
    assert {name: type(PRESETS[name]) for name in wanted} == wanted


@pytest.mark.parametrize("name", PRESETS)
def test_presets_by_name(name):
    assert setting(name) == Setting(PRESETS[name], 1)
    assert strategy(name) == PRESETS[name]


@pytest.mark.parametrize("name", PRESETS)
def test_every_field_takes_its_own_value_as_text_and_as_it_is(name):
    """What the command line writes and what Python passes come out the same."""
    preset = PRESETS[name]
    fields = {field.name: getattr(preset, field.name) for field in dataclasses.fields(preset)}
    assert changed(preset, fields) == preset
    texts = {key: str(value).strip("()").rstrip(",") for key, value in fields.items()}
    assert made(name, **texts) == preset


def test_text_is_read_by_the_command_line_alone():
    with pytest.raises(DapdError, match=r"tau_max is '0\.2'; it must be a number"):
        strategy("dapd-staged", tau_max="0.2")
    with pytest.raises(DapdError, match="steps is '8'; it must be a whole number or none"):
        strategy("original", steps="8")


def test_texts_go_to_whoever_has_the_field():
    chosen, options = read_settings("fast-dllm@llada/gsm8k", ["threshold=0.7", "block_length=32", "eos=ban+defer"])
    assert chosen == Setting(Threshold(0.7), 4)
    assert (options.block_length, options.sampling.eos) == (32, "ban+defer")
    assert chosen.with_blocks(options).n_blocks == 1, "the length of a block wins over the setting's blocks"
    for n_blocks in (1, 2):
        chosen, options = read_settings("fast-dllm@llada/gsm8k", [f"n_blocks={n_blocks}"])
        assert chosen.with_blocks(options).n_blocks == n_blocks, "a number that is asked for wins, one block too"
    with pytest.raises(DapdError, match=r"unknown field of fast-dllm or of the loop 'blocklength'; did you mean"):
        read_settings("fast-dllm", ["blocklength=4"])
    for pair in ("threshold", "=3", ""):
        with pytest.raises(DapdError, match="is not of the form field=value"):
            read_settings("fast-dllm", [pair])


def test_inherited_fields_are_explained():
    assert set(explain(ShuffledGraph)) == {field.name for field in dataclasses.fields(ShuffledGraph)}
    assert explain(ShuffledGraph)["tau_max"] == "Edge threshold when everything is unmasked."


def test_staged_and_direct_defaults():
    staged, direct = PRESETS["dapd-staged"], PRESETS["dapd-direct"]
    assert (staged.tau_min, staged.tau_max, staged.shortcut) == (0.01, 0.15, "staged")
    assert (staged.confident, staged.switch_at, staged.late_rule, staged.layers) == (0.9, 0.5, "union", 0.3)
    assert (staged.edge_norm, staged.direction, staged.rows) == ("row_max", "candidate_row", "position")
    assert (direct.shortcut, direct.certain) == ("direct", 0.998)


@pytest.mark.parametrize("name", PAPER)
def test_paper_settings_by_name(name):
    preset, model, _ = re.split("[@/]", name)
    found = setting(name)
    assert found == PAPER[name]
    assert type(found.strategy) is type(PRESETS[preset])
    assert found.n_blocks in (1, 4)
    assert found.n_blocks == 1 or (model == "llada" and "dapd" not in name)


LLADA_TASKS = ("humaneval", "mbpp", "gsm8k", "math500", "ifeval", "parallelbench")


def test_paper_names():
    rules = ("original", "fast-dllm", "eb-sampler", "klass", "dapd-staged", "dapd-direct")
    names = {f"{rule}@llada/{task}" for rule in rules for task in LLADA_TASKS}
    names |= {f"{rule}@dream/{task}" for rule in rules for task in LLADA_TASKS[:-1]}
    assert set(PAPER) == names


@pytest.mark.parametrize(
    ("name", "taus"),
    [
        ("dapd-staged@llada/gsm8k", (0.01, 0.05)),
        ("dapd-staged@llada/math500", (0.01, 0.05)),
        ("dapd-staged@llada/humaneval", (0.01, 0.15)),
        ("dapd-staged@llada/mbpp", (0.01, 0.15)),
        ("dapd-staged@llada/ifeval", (0.01, 0.15)),
        ("dapd-staged@llada/parallelbench", (0.01, 0.2)),
        ("dapd-direct@llada/gsm8k", (0.005, 0.05)),
        ("dapd-direct@llada/math500", (0.005, 0.05)),
        ("dapd-direct@llada/humaneval", (0.01, 0.05)),
        ("dapd-direct@llada/ifeval", (0.01, 0.05)),
        ("dapd-direct@llada/parallelbench", (0.01, 0.05)),
        ("dapd-direct@llada/mbpp", (0.01, 0.02)),
        ("dapd-staged@dream/gsm8k", (0.005, 0.05)),
        ("dapd-staged@dream/ifeval", (0.1, 0.5)),
        ("dapd-direct@dream/humaneval", (0.005, 0.01)),
        ("dapd-direct@dream/ifeval", (0.1, 0.5)),
    ],
)
def test_paper_taus(name, taus):
    found = setting(name).strategy
    assert (found.tau_min, found.tau_max) == taus
    assert found.shortcut == name.split("@")[0].removeprefix("dapd-")


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("klass@llada/gsm8k", (0.6, 0.015, False)),
        ("klass@llada/math500", (0.6, 0.01, False)),
        ("klass@llada/mbpp", (0.7, 0.01, False)),
        ("klass@llada/humaneval", (0.9, 0.01, False)),
        ("klass@dream/math500", (0.9, 0.005, True)),
        ("klass@dream/humaneval", (0.8, 0.001, True)),
        ("klass@dream/gsm8k", (0.9, 0.001, True)),
    ],
)
def test_paper_klass(name, want):
    found = setting(name).strategy
    assert (found.confidence, found.kl, found.inclusive) == want


def test_paper_setting_with_a_changed_field():
    found = read_settings("fast-dllm@llada/gsm8k", ["threshold=0.7"])[0]
    assert found == Setting(Threshold(0.7), 4)
    assert PAPER["fast-dllm@llada/gsm8k"].strategy.threshold == 0.9


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("dapd_staged", "dapd-staged"),
        ("fastdllm", "fast-dllm"),
        ("klas", "klass"),
        ("eb_sampler", "eb-sampler"),
        ("FAST-DLLM", "fast-dllm"),
        ("dapd-staged@llada/gsm8", "dapd-staged@llada/gsm8k"),
        ("klass@dream/math", "klass@dream/math500"),
    ],
)
def test_unknown_names_come_with_the_nearest(name, near):
    refuses(re.escape(f"did you mean {near!r}?"), name)


def test_unknown_name_with_nothing_near():
    with pytest.raises(DapdError, match="unknown strategy 'zzzzzz'") as caught:
        strategy("zzzzzz")
    assert "did you mean" not in str(caught.value)
    assert all(name in str(caught.value) for name in PRESETS)


@pytest.mark.parametrize(
    ("name", "field", "near"),
    [
        ("dapd-staged", "taumax", "tau_max"),
        ("klass", "confidense", "confidence"),
        ("fast-dllm", "treshold", "threshold"),
    ],
)
def test_unknown_fields_come_with_the_nearest(name, field, near):
    refuses(f"{field}'; did you mean '{near}'", name, **{field: 1})


def test_what_is_not_a_field_cannot_be_set():
    refuses("unknown field of Threshold 'needs'", "fast-dllm", needs=3)
    refuses("unknown field of dapd-staged or of the loop 'sampling'", "dapd-staged", sampling="none")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("4,5", (4, 5)),
        ("0.3", 0.3),
        ("3,", (3,)),
        ("-1,", (-1,)),
        ("1", 1.0),
        ("-2,-1", (-2, -1)),
        ("2, 3,", (2, 3)),
        ("1.0", 1.0),
        ("4+5", (4, 5)),
        ("-4+-3", (-4, -3)),
        ((4, 5), (4, 5)),
        (0.5, 0.5),
    ],
)
def test_layers(text, want):
    found = made("dapd-staged", layers=text).layers
    assert found == want
    assert type(found) is type(want)


@pytest.mark.parametrize(
    "text", ["0", "3", "-1", "top", "4,x", "", ",", "0.0", "1.5", "-0.5", "3.5,4", (), None, True, [4, 5]]
)
def test_layers_that_make_no_sense(text):
    refuses("layers", "dapd-staged", layers=text)


@pytest.mark.parametrize("value", ["none", "None", "null", None])
def test_none(value):
    assert made("original", steps=value).steps is None


@pytest.mark.parametrize("value", ["64", 64, "64.0", "+64"])
def test_whole_numbers(value):
    found = made("original", steps=value).steps
    assert (found, type(found)) == (64, int)


@pytest.mark.parametrize(("value", "want"), [("true", True), ("False", False), ("TRUE", True), (True, True)])
def test_bool(value, want):
    assert made("klass", inclusive=value).inclusive is want


@pytest.mark.parametrize(
    ("name", "field", "value", "words"),
    [
        ("original", "k", "two", "k is 'two'; it must be a whole number"),
        ("original", "k", "2.5", "k is '2.5'; it must be a whole number"),
        ("original", "k", 2.5, "k is 2.5; it must be a whole number"),
        ("original", "k", True, "k is True; it must be a whole number"),
        ("original", "k", None, "k is None; it must be a whole number"),
        ("original", "k", "0", "k is 0; it must be at least 1"),
        ("original", "steps", "soon", "steps is 'soon'; it must be a whole number or none"),
        ("original", "steps", "-1", "steps is -1; it must be at least 1"),
        ("original", "order", "best", "order is 'best'; it must be one of confidence, entropy, margin, random"),
        ("fast-dllm", "threshold", "high", "threshold is 'high'; it must be a number"),
        ("fast-dllm", "threshold", "1.5", "threshold is 1.5; allowed: 0 to 1"),
        ("fast-dllm", "budget", 0, "budget is 0"),
        ("fast-dllm-factor", "factor", -1, "factor is -1"),
        ("eb-sampler", "gamma", "-0.1", "gamma is -0.1"),
        ("eb-sampler", "order", "random", "order"),
        ("klass", "inclusive", "yes", "inclusive is 'yes'; it must be true or false"),
        ("klass", "inclusive", 1, "inclusive is 1; it must be true or false"),
        ("klass", "history", 0, "history"),
        ("klass", "unmask", "some", "unmask"),
        ("dream", "eps", 0, "eps"),
        ("dream", "alg_temp", -1, "alg_temp"),
        ("dapd-staged", "shortcut", "stage", "shortcut is 'stage'; it must be one of staged, direct, none"),
        ("dapd-staged", "confident", 1.1, "confident is 1.1"),
        ("dapd-staged", "tau_min", [0.1], "tau_min"),
    ],
)
def test_wrong_values(name, field, value, words):
    refuses(re.escape(words), name, **{field: value})


def test_the_shortcut_may_be_called_none():
    """A choice that reads like the absence of a value."""
    assert made("dapd-staged", shortcut="none").shortcut == "none"
    assert strategy("dapd-staged", edge_norm="none").edge_norm == "none"


@pytest.mark.parametrize(
    "fields", [{"tau_min": 0.2}, {"tau_max": 0.005}, {"tau_min": "0.3", "tau_max": "0.1"}, {"tau_min": -0.1}]
)
def test_tau_out_of_order(fields):
    refuses("need 0 <= tau_min <= tau_max", "dapd-staged", **fields)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("dapd-staged", "tau_min"),
        ("dapd-staged", "tau_max"),
        ("dapd-direct", "certain"),
        ("fast-dllm", "threshold"),
        ("fast-dllm-factor", "factor"),
        ("eb-sampler", "gamma"),
        ("klass", "kl"),
        ("dream", "alg_temp"),
    ],
)
def test_not_a_number_is_refused(name, field):
    """It compares false with everything, so that no bound would ever be met."""
    refuses(field, name, **{field: "nan"})
    refuses(field, name, **{field: math.nan})


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        (TopK, {"k": 1.5}, "k is 1.5; it must be a whole number"),
        (TopK, {"steps": 4.0}, "steps is 4.0"),
        (LocalLeap, {"radius": 1.5}, "radius is 1.5; it must be a whole number"),
        (EntropyBound, {"gamma": math.nan}, "gamma is nan; it must be a number"),
        (Factor, {"factor": math.nan}, "factor is nan"),
        (Klass, {"kl": math.nan}, "kl is nan"),
        (DreamSchedule, {"alg_temp": "hot"}, "alg_temp is 'hot'"),
        (Threshold, {"budget": 2.5}, "budget is 2.5"),
        (Dawn, {"reading": "text"}, "reading is 'text'; it must be one of program, paper"),
        (Needs, {"sees": "window"}, "sees is 'window'; it must be one of block, region, canvas"),
        (Needs, {"precision": "bf16"}, "precision is 'bf16'; it must be one of model, float32, float64"),
        (AttentionNeed, {"keys": "all"}, "keys is 'all'; it must be one of window, canvas"),
        (AttentionNeed, {"layers": [0]}, "layers is [0]"),
    ],
)
def test_a_class_takes_the_values_that_its_name_takes(kind, fields, words):
    made = object.__new__(kind)  # past the checks of signatures, which run with the tests alone
    vars(made).update(vars(kind()) | fields)
    with pytest.raises(DapdError, match=re.escape(words)):
        made.__post_init__()


def test_infinity_is_no_whole_number():
    refuses("steps", "original", steps=math.inf)


def test_describe():
    assert describe(Threshold(0.7)) == {"name": "Threshold", "threshold": 0.7, "budget": None}

    class Mine:
        def select(self, seen, memory=None, /): ...

    assert describe(Mine()) == {"name": "Mine"}
