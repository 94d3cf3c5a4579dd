"""A trace as the page embeds it: its records, with edges packed into bits and the confidences of positions that stayed
masked into bytes."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from dapd.trace import Record, Trace

ALL_EDGES = 200_000
"""Size in bytes up to which a trace keeps its whole graphs; beyond it, only edges to committed positions are kept."""
NOT_SEEN = 255
LIKELIEST = 6
"""Tokens that the page keeps for a committed position, the committed one among them."""


def compact(trace: Trace, all_edges: int = ALL_EDGES) -> dict[str, Any]:
    """`head` and `records`, packed: a graph of n nodes takes at most n * n bits, a confidence one byte."""
    steps = list(_with_nodes(trace))
    whole = sum(len(nodes) ** 2 for record, nodes in steps if record.edges is not None) / 8 <= all_edges
    return {"head": head(trace), "records": [_record(record, nodes, whole) for record, nodes in steps]}


def head(trace: Trace) -> dict[str, Any]:
    """All fields of a trace except its records."""
    return {key: value for key, value in vars(trace).items() if key != "steps" and value is not None}


def _with_nodes(trace: Trace) -> Iterator[tuple[Record, list[int]]]:
    """Each record with the positions that were masked before it."""
    left = list(trace.slots)
    for record in trace.steps:
        yield record, left
        decided = {*record.positions, *record.tail}
        left = [position for position in left if position not in decided]


def live(record: Record, nodes: list[int], edges: str | None = None) -> dict[str, Any]:
    """A record as it is sent while the decoding goes on, with its packed graph beside it. `nodes` are the positions
    that were masked before it."""
    graph = {} if edges is None else {"edges": {"all": edges}}
    return {**_record(record, nodes, whole=True), **graph, "seconds": record.seconds}


def packed_graph(edges: Bool[Tensor, "n n"], masked: Bool[Tensor, " length"], window: slice) -> str:
    """The graph of a pass over a window, packed as those of records are, between the positions that were masked.

    A record holds a list of edges, which takes a hundred bytes per edge: with 500 masks up to 25 MB in every pass.
    """
    inside = masked[window]
    own = slice(int(masked[: window.start].sum()), int(masked[: window.stop].sum()))
    n_nodes = int(masked.sum())
    graph = torch.zeros(n_nodes, n_nodes, dtype=torch.uint8)
    graph[own, own] = edges[inside][:, inside].to(torch.uint8)
    octets = torch.nn.functional.pad(graph.flatten(), (0, -(n_nodes**2) % 8)).view(-1, 8)
    worth = torch.tensor([1 << place for place in range(8)], dtype=torch.uint8)
    return base64.b64encode(bytes((octets * worth).sum(1, dtype=torch.uint8).tolist())).decode()


def _record(record: Record, nodes: list[int], whole: bool) -> dict[str, Any]:
    out = {key: value for key, value in vars(record).items() if value is not None and value != []}
    out |= {"positions": record.positions, "confidences": [round(c, 3) for c in record.confidences]}
    out.pop("seconds")
    if record.edges is not None:
        out["edges"] = {"all": _all(record, nodes)} if whole else {"chosen": _chosen(record, nodes)}
    if record.held is not None:
        out["held"] = _held(record, nodes)
    if record.top is not None:
        out["top"] = [[one for one in row[:LIKELIEST] if math.isfinite(one[1])] for row in record.top]
    return out


def _all(record: Record, nodes: list[int]) -> str:
    """All edges, packed: bit i * n + j is set where committing node j keeps node i out; nodes are numbered in order."""
    place = {position: i for i, position in enumerate(nodes)}
    return _pack(
        (place[i] * len(nodes) + place[j] for i, j in record.edges or [] if i in place and j in place),
        len(nodes) ** 2,
    )


def _chosen(record: Record, nodes: list[int]) -> str:
    """Edges to committed positions, packed: bit c * n + i is set where the c-th committed position keeps node i out."""
    place = {position: i for i, position in enumerate(nodes)}
    column = {position: c for c, position in enumerate(record.positions)}
    size = len(nodes)
    bits = (column[j] * size + place[i] for i, j in record.edges or [] if j in column and i in place)
    return _pack(bits, len(column) * size)


def _pack(bits: Iterator[int], count: int) -> str:
    packed = bytearray(-(-count // 8))
    for index in bits:
        packed[index >> 3] |= 1 << (index & 7)
    return base64.b64encode(packed).decode()


def _held(record: Record, nodes: list[int]) -> str:
    """A byte for each position that stays masked, in order: its confidence in 254ths, or `NOT_SEEN`."""
    decided = {*record.positions, *record.tail}
    told = {int(position): confidence for position, confidence in record.held or []}
    left = [position for position in nodes if position not in decided]
    packed = bytes(round(min(1.0, max(0.0, told[p])) * 254) if p in told else NOT_SEEN for p in left)
    return base64.b64encode(packed).decode()
