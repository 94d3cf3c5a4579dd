"""How the loop runs: blocks, what is computed again, when a row ends, what is recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from dapd.decoding.sampling import Sampling
from dapd.errors import DapdError, unknown
from dapd.io.fields import check_types
from dapd.strategies.base import Precision


class Reuse(StrEnum):
    """Which columns are not computed again inside a block. Everything but `none` is an approximation."""

    NONE = "none"
    PREFIX = "prefix"
    """Fast-dLLM's prefix cache: keep what lies before the block. In a single block that is the prompt."""
    DUAL = "dual"
    """Fast-dLLM's dual cache: keep what lies before and after the block."""
    SETTLED = "settled"
    """Keep what was decided `settle` passes ago or earlier; only masks and recent tokens are computed."""

    @classmethod
    def _missing_(cls, value: object) -> Reuse:
        raise unknown("reuse", str(value), [mode.value for mode in cls])


@dataclass(frozen=True)
class Options:
    """How the loop runs, whatever the strategy. The defaults are the paper's single block."""

    block_length: int | None = None
    """Columns per block; blocks are decoded from left to right. None: as `n_blocks` says."""
    n_blocks: int | None = None
    """Number of blocks of equal length, where `block_length` is not given; None: as a setting of the paper says, else
    one."""
    reuse: Reuse = Reuse.NONE
    """Keys and values that are kept: none, prefix, dual, settled (all but none are approximate)."""
    refresh: int | None = None
    """With reuse: steps from one full pass to the next; None: one at the start of each block, as in Fast-dLLM."""
    refresh_until: int | None = None
    """With refresh: the number of steps of a block after which there are no more full passes; None: no limit."""
    settle: int = 1
    """With reuse=settled: for how many passes a token is still computed after it was decided (the prompt's tokens: from
    the start)."""
    early_stop: bool = False
    """A row is done when everything before its first EOS is decided; what is left becomes EOS. In a template,
    EOS does not end the text, and this has no effect."""
    eos_run: float | None = None
    """Confidence from which the EOS tokens at the end of the canvas are committed together, whatever the strategy says
    of each; None: the strategy alone decides. After an EOS there is nothing but EOS, so the run is as certain as its
    first token. In a template, EOS does not end the text, and this has no effect."""
    sampling: Sampling = field(default_factory=Sampling)
    """How a token is drawn from a position's distribution, and which tokens are ruled out."""
    confidence_dtype: Precision | None = None
    """Precision of the softmax that decisions use: model, float32, float64; None: what the strategy asks for."""
    seed: int | tuple[int, ...] = 0
    """Seed of the draws: row i uses seed + i, or the i-th of a tuple."""
    record_edges: bool = False
    """Keep the dependency graph of every step in the step; traces also get the confidence of what stayed masked."""
    record_top: int = 0
    """How many of the likeliest tokens the step keeps at every position, with their log-probabilities."""
    graphs: bool | None = None
    """Record whole passes as CUDA graphs and replay them; None: where model, strategy and sampling allow it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reuse", Reuse(self.reuse))
        check_types(self)
        for name in ("block_length", "n_blocks", "refresh", "refresh_until"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DapdError(f"{name} is {value}; it must be at least 1")
        if self.refresh is not None and self.reuse is Reuse.NONE:
            raise DapdError("refresh is set but nothing is reused; set reuse to prefix, dual or settled")
        if self.refresh_until is not None and self.refresh is None:
            raise DapdError("refresh_until is set but refresh is not; set refresh, the steps between full passes")
        if self.eos_run is not None and not 0 <= self.eos_run <= 1:
            raise DapdError(f"eos_run is {self.eos_run}; it must lie between 0 and 1")
        if self.record_top < 0:
            raise DapdError(f"record_top is {self.record_top}; it must not be negative")
        if self.settle < 1:
            raise DapdError(f"settle is {self.settle}; it must be at least 1: a decided token is computed once more")
        if self.settle != 1 and self.reuse is not Reuse.SETTLED:
            raise DapdError("settle is set but reuse is not settled; set reuse to settled")

    def is_fresh(self, step: int) -> bool:
        """Whether that step of a block computes everything: the first one does, and then one every `refresh` steps."""
        early = self.refresh_until is None or step < self.refresh_until
        return step == 0 or (self.refresh is not None and early and step % self.refresh == 0)

    def seeds(self, n_rows: int) -> tuple[int, ...]:
        """The seed of each of `n_rows` rows."""
        seeds = self.seed if isinstance(self.seed, tuple) else tuple(self.seed + row for row in range(n_rows))
        if len(seeds) != n_rows:
            raise DapdError(f"{len(seeds)} seeds for {n_rows} rows; give one number, or one per row")
        return seeds
