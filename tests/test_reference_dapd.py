"""DAPD against the slow one: Staged and Direct, blocks, caches, and every reading of the ambiguity table."""

import pytest

from dapd import AttentionNeed, Dapd, Options
from reference import Sequence, dapd
from reference.models import PROMPTS, build, sizes
from reference.ours import one

N = 16
WIDE = {"tau_min": 0.02, "tau_max": 0.6}


def fields(rule: dapd.Rule) -> dict[str, object]:
    known = {name: value for name, value in vars(rule).items() if name != "layers"}
    return known if rule.layers is None else {**known, "layers": rule.layers}


def compare(rule, *, family="llada", block_length=N, reuse="none", sharpness=7.0):
    """Decode by both, on three models and prompts; what the engine made of it."""
    results = []
    for seed, prompt in enumerate(PROMPTS):
        model = build(family, seed, sharpness=sharpness)
        theirs = dapd.decode(Sequence(model), prompt, N, rule, block_length=block_length, reuse=reuse)
        ours = one(model, prompt, N, Dapd(**fields(rule)), Options(block_length=block_length, reuse=reuse))
        assert ours.steps == theirs.steps
        assert ours.tokens == theirs.tokens
        results.append(ours)
    return results


def steps(results):
    return [result.steps for result in results]


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize(("block_length", "tau"), [(4, (0.02, 0.6)), (8, (0.01, 0.15)), (16, (0.02, 0.6))])
@pytest.mark.parametrize("shortcut", ["staged", "direct", "none"])
def test_shortcuts_and_blocks(family, block_length, shortcut, tau):
    results = compare(dapd.Rule(*tau, shortcut=shortcut), family=family, block_length=block_length)
    assert 1 in sizes(*results)
    assert block_length < 16 or max(sizes(*results)) >= 3


def test_the_shortcuts_differ():
    staged, direct, none = (steps(compare(dapd.Rule(shortcut=s))) for s in ("staged", "direct", "none"))
    assert staged != none
    assert direct != none
    assert staged != direct


@pytest.mark.parametrize("reuse", ["prefix", "dual"])
@pytest.mark.parametrize("shortcut", ["staged", "direct"])
def test_with_a_cache(reuse, shortcut):
    rule = dapd.Rule(**WIDE, shortcut=shortcut)
    assert steps(compare(rule, block_length=8, reuse=reuse)) != steps(compare(rule, block_length=8))


@pytest.mark.parametrize("direction", ["candidate_row", "either", "both"])
@pytest.mark.parametrize(
    ("edge_norm", "tau"),
    [("row_max", (0.02, 0.6)), ("none", (0.001, 0.1)), ("row_sum", (0.005, 0.3)), ("global_max", (0.01, 0.4))],
)
def test_edge_norms_and_directions(edge_norm, tau, direction):
    rule = dapd.Rule(*tau, edge_norm=edge_norm, direction=direction, shortcut="none")
    results = compare(rule, block_length=16)
    assert max(sizes(*results)) >= 2
    assert 1 in sizes(*results)


def test_each_norm_and_each_direction_says_something_else():
    by_norm = [
        str(steps(compare(dapd.Rule(0.05, 0.3, edge_norm=norm, shortcut="none"))))
        for norm in ("row_max", "none", "row_sum", "global_max")
    ]
    assert len(set(by_norm)) == 4
    by_direction = [
        str(steps(compare(dapd.Rule(0.2, 0.6, direction=way, shortcut="none"), sharpness=3.0)))
        for way in ("candidate_row", "either", "both")
    ]
    assert len(set(by_direction)) == 3


@pytest.mark.parametrize(("block_length", "confident"), [(8, 0.6), (16, 0.9)])
@pytest.mark.parametrize("late_rule", ["union", "switch", "filter"])
def test_late_rules(late_rule, confident, block_length):
    rule = dapd.Rule(**WIDE, late_rule=late_rule, confident=confident)
    results = compare(rule, block_length=block_length)
    assert max(sizes(*results)) >= 2


def test_each_late_rule_says_something_else():
    said = [
        str([steps(compare(dapd.Rule(0.01, 0.3, late_rule=rule, confident=c))) for c in (0.6, 0.8)])
        for rule in ("union", "switch", "filter")
    ]
    assert len(set(said)) == 3


@pytest.mark.parametrize("certain", [0.7, 0.998, 1.0])
def test_direct_with_other_certainties(certain):
    compare(dapd.Rule(**WIDE, shortcut="direct", certain=certain))


def test_direct_takes_what_is_certain_and_leaves_the_rest_to_the_graph():
    results = compare(dapd.Rule(0.0, 0.0, shortcut="direct", certain=0.9))
    assert max(sizes(*results)) >= 3
    assert 1 in sizes(*results)


@pytest.mark.parametrize("layers", [(0,), (1,), (0, 1, 2)])
def test_explicit_layers(layers):
    rule = dapd.Rule(**WIDE, layers=layers)
    assert steps(compare(rule)) != steps(compare(dapd.Rule(**WIDE)))


def test_the_last_layers():
    for n, wanted in {32: 10, 28: 9, 8: 3, 4: 2, 10: 3, 20: 6, 30: 9, 1: 1, 2: 1, 3: 1}.items():
        assert len(dapd.last_layers(n)) == wanted
        assert AttentionNeed(0.3).resolve(n) == frozenset(dapd.last_layers(n)), n


@pytest.mark.parametrize("block_length", [4, 16])
def test_dreams_rows(block_length):
    position, predictor = (
        steps(compare(dapd.Rule(**WIDE, rows=rows), family="dream", block_length=block_length))
        for rows in ("position", "predictor")
    )
    assert position != predictor


def test_predictor_rows_of_an_empty_prompt_repeat_the_first():
    model = build("dream", 2)
    rule = dapd.Rule(**WIDE, rows="predictor")
    theirs = dapd.decode(Sequence(model), [], N, rule, block_length=N)
    assert one(model, [], N, Dapd(**fields(rule))).steps == theirs.steps


def test_llada_has_no_predictor_rows():
    """The option is Dream's: where a row predicts its own column, both readings are one."""
    model = build("llada", 0)
    position, predictor = (
        one(model, PROMPTS[0], N, Dapd(**WIDE, rows=rows)).steps for rows in ("position", "predictor")
    )
    assert position == predictor


def test_tau_and_the_switch_follow_the_whole_generation_also_in_blocks():
    """Two blocks of 8: half is unmasked when the first is full, so confidence counts in the second alone."""
    in_first, in_second = [], []
    for seed, prompt in enumerate(PROMPTS):
        model = build("llada", seed)
        graph_only = one(model, prompt, N, Dapd(0.0, 0.0, shortcut="none"), Options(block_length=8))
        assert [len(step) for step in graph_only.steps] == [1] * N
        staged = one(model, prompt, N, Dapd(0.0, 0.0, confident=0.7), Options(block_length=8))
        in_first += [len(step) for step in staged.steps if max(step) < len(prompt) + 8]
        in_second += [len(step) for step in staged.steps if min(step) >= len(prompt) + 8]
    assert in_first == [1] * 8 * len(PROMPTS)
    assert max(in_second) > 1
