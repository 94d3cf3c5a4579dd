"""The targets: values and ratios that the fast path must keep, and the measurements for them, made in one run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from dapd.bench.cases import Bench, Case, Record, guarded
from dapd.bench.floor import matmul_rate
from dapd.bench.timing import Timing

PAPER_STEPS = 45
"""Steps that the paper needs for 256 tokens; independent sets are therefore timed with `gen / 45` positions."""

Value = Literal["ms", "floor_ms", "rested_floor_ms", "peak_gb", "reserved_gb", "grown_gb"]
IN_ROUNDS = {"ms": "run_ms", "floor_ms": "run_floor_ms"}
"""Values that are measured in every round -> where a record has them round by round."""


@dataclass(frozen=True)
class Target:
    """A bound on one value, or on the ratio of two."""

    name: str
    bound: Literal["at most", "at least"]
    limit: float
    case: Case
    value: Value = "ms"
    over: Case | None = None
    """The case whose value is the divisor; None: the value itself is bounded, not a ratio."""
    over_value: Value = "ms"

    def met(self, measured: float) -> bool:
        return measured <= self.limit if self.bound == "at most" else measured >= self.limit

    def divided(self, by: int) -> Target:
        """The same target at shorter lengths, to try a run where the true lengths would take hours."""
        return replace(self, case=_divided(self.case, by), over=None if self.over is None else _divided(self.over, by))


def _divided(case: Case, by: int) -> Case:
    gen = max(16, case.gen // by)
    refresh = None if case.refresh is None else max(1, case.refresh // by)
    return replace(case, prompt=case.prompt // by, gen=gen, refresh=refresh, taken=case.taken and _set_size(gen))


def _set_size(gen: int) -> int:
    return max(1, round(gen / PAPER_STEPS))


def plain(prompt: int, gen: int, batch: int = 1) -> Case:
    return Case("original", prompt, gen, batch)


def dapd(prompt: int, gen: int, batch: int = 1) -> Case:
    return Case("dapd-staged", prompt, gen, batch, taken=_set_size(gen))


def naive(prompt: int, gen: int, scan: str) -> Case:
    return replace(dapd(prompt, gen), strategy=scan)


LONG = dapd(1024, 256)
FRESH_EVERY_8 = replace(LONG, reuse="prefix", refresh=8)

SHAPES = {"B 1, L 512, G 256": (256, 256, 1), "B 1, L 1280, G 1024": (256, 1024, 1), "B 8, L 512, G 256": (256, 256, 8)}

FLOORS: dict[str, Value] = {"floor": "floor_ms", "floor of a rested GPU": "rested_floor_ms"}
"""The floors by name: from a matrix product in steady work, as steps are timed, and on a GPU that was idle before."""

MODEL_TARGETS: tuple[Target, ...] = (
    *(
        Target(
            f"plain step / {name}: {shape}", "at most", limit, plain(*SHAPES[shape]), "ms", plain(*SHAPES[shape]), value
        )
        for name, value in FLOORS.items()
        for shape, limit in (("B 1, L 512, G 256", 1.25), ("B 8, L 512, G 256", 1.2))
    ),
    *(
        Target(f"DAPD step / plain step: {name}", "at most", limit, dapd(*shape), "ms", plain(*shape))
        for (name, shape), limit in zip(SHAPES.items(), (1.03, 1.05, 1.05), strict=True)
    ),
    *(
        Target(f"DAPD peak memory / plain: {name}", "at most", 1.02, dapd(*shape), "peak_gb", plain(*shape), "peak_gb")
        for name, shape in SHAPES.items()
    ),
    Target("naive step (all pairs) / DAPD step", "at least", 6, naive(256, 256, "naive-pairs"), "ms", dapd(256, 256)),
    Target("naive step (taken alone) / DAPD step", "at least", 6, naive(256, 256, "naive"), "ms", dapd(256, 256)),
    Target("no reuse / prefix reuse, refresh 8: prompt 1024, G 256", "at least", 3, LONG, "ms", FRESH_EVERY_8),
    Target("GB taken: 4,096 columns, B 1, G 3840", "at most", 80, dapd(256, 3840), "reserved_gb"),
    Target("GB taken: 32 rows of 512, G 256", "at most", 80, dapd(256, 256, 32), "reserved_gb"),
    Target("GB more after the timed steps than before", "at most", 0.001, dapd(256, 256), "grown_gb"),
)
"""The targets of every model on a GPU."""

CPU_TARGETS: tuple[Target, ...] = (
    Target("DAPD step / plain step on a CPU: L 224, G 128", "at most", 1.10, dapd(96, 128), "ms", plain(96, 128)),
)
"""The targets of the lab model, which is measured on a CPU."""


def groups(targets: Sequence[Target]) -> list[list[Case]]:
    """Cases of one shape together: they are measured in turn, so that a drift of the clock affects them alike."""
    cases = dict.fromkeys(case for t in targets for case in (t.over, t.case) if case is not None)
    shapes = dict.fromkeys((case.prompt, case.gen, case.batch) for case in cases)
    return [[case for case in cases if (case.prompt, case.gen, case.batch) == shape] for shape in shapes]


def measure(bench: Bench, targets: Sequence[Target], *, rounds: int) -> Iterator[Record]:
    """The records: first the measurements, case by case, then the parts of a step, then the targets."""
    records: dict[Case, Record] = {}
    timed = {case for t in targets if t.value == "ms" for case in (t.case, t.over) if case is not None}
    precise = {case for case in timed if not case.strategy.startswith("naive")}
    for group in groups(targets):
        for case, record in _group(bench, group, precise, rounds):
            records[case] = record
            yield record
    for target in targets:
        if target.value == target.over_value == "ms" and target.over and target.over.strategy == "original":
            yield _parts(bench, target.case, target.over)
    for target in targets:
        yield judged(bench, target, records)


def _group(bench: Bench, cases: list[Case], precise: set[Case], rounds: int) -> Iterator[tuple[Case, Record]]:
    """Measure cases in turn. Those outside `precise` need not be known to one percent: they get one short round."""
    few = replace(bench, warmup=min(2, bench.warmup), repeats=min(3, bench.repeats))
    timings: dict[Case, Timing] = {}
    products: dict[Case, list[float]] = {}
    failed: dict[Case, Record] = {}
    seconds = dict.fromkeys(cases, 0.0)
    for number in range(rounds):
        for case in cases:
            if case in failed or (number > 0 and case not in precise):
                continue

            def run(case: Case = case) -> Record:
                timing = (bench if case in precise else few).time_step(case)
                timings[case] = timings[case].with_more(timing) if case in timings else timing
                if case in precise:
                    product = matmul_rate(bench.device, bench.model.dtype, size=bench.rate.size, rested=False)
                    products.setdefault(case, []).append(product.ms)
                return {}

            record = guarded(run, {"kind": "step", "model": bench.name, **dataclasses.asdict(case)}, bench.device)
            seconds[case] += record["seconds"]
            if "error" in record:
                failed[case] = record
    for case in cases:
        record = failed.get(case) or _with_floors(bench.step_record(case, timings[case]), bench, products.get(case, []))
        yield case, {**record, "seconds": round(seconds[case], 2)}


def _with_floors(record: Record, bench: Bench, products: list[float]) -> Record:
    """A record whose floor is that of the rounds: products are timed right after the steps, at the clock of that time.

    A GPU under load slows down by several percent within minutes; the product of the bench was timed before that.
    """
    if record["floor_ms"] is None or not products:
        return record
    floors = [record["floor_ms"] * ms / bench.rate.ms for ms in products]
    floor = median(floors)
    return {**record, "run_floor_ms": floors, "floor_ms": floor, "floor_ratio": record["ms"] / floor}


def _parts(bench: Bench, case: Case, bare: Case) -> Record:
    """Where a DAPD step's time goes, by difference: forward pass, capture, everything else."""
    start: Record = {"kind": "parts", "model": bench.name, "device": bench.device.type}
    start |= {"prompt": case.prompt, "gen": case.gen, "batch": case.batch}
    graph = bench.device.type == "cuda"  # as a graph, only the pass is timed, whatever keeps the host busy

    def run() -> Record:
        plain_step = bench.time_step(bare).ms
        forward = bench.time_forward(case, "none", graph=graph).ms
        capture = bench.time_forward(case, "auto", graph=graph).ms - forward
        step = bench.time_step(case).ms
        return {
            **start,
            "plain_step_ms": plain_step,
            "forward_ms": forward,
            "capture_ms": capture,
            "step_ms": step,
            "rest_ms": step - forward - capture,
            "plain_rest_ms": plain_step - forward,
        }

    return guarded(run, start, bench.device)


def judged(bench: Bench, target: Target, records: dict[Case, Record]) -> Record:
    """The record of a target: its limit, the measured value, and whether the target is met."""
    record: Record = {
        "kind": "target",
        "model": bench.name,
        "device": bench.device.type,
        "target": target.name,
        "bound": target.bound,
        "limit": target.limit,
        "measured": None,
        "met": None,
    }
    sources = [records.get(case) for case in (target.case, target.over) if case is not None]
    errors = [source["error"] for source in sources if source and "error" in source]
    if errors:
        return {**record, "error": errors[0]}
    top = records[target.case][target.value]
    bottom = 1.0 if target.over is None else records[target.over][target.over_value]
    if top is None or not bottom:
        missing = target.value if top is None else target.over_value
        return {**record, "error": f"{missing} is not measured on {bench.device.type}"}
    measured = top / bottom
    if target.over is not None and target.value in IN_ROUNDS and target.over_value in IN_ROUNDS:
        tops = records[target.case][IN_ROUNDS[target.value]]
        measured = ratio_of_runs(tops, records[target.over].get(IN_ROUNDS[target.over_value], [])) or measured
    return {**record, "measured": measured, "met": target.met(measured)}


def ratio_of_runs(tops: list[float], bottoms: list[float]) -> float | None:
    """The median ratio of runs that were made right after each other; None where they do not pair up.

    A clock that changes between rounds, or a machine that others use, moves both runs of a pair.
    """
    if len(tops) != len(bottoms):
        return None
    return median(top / bottom for top, bottom in zip(tops, bottoms, strict=True))
