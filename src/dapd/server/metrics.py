"""The metrics of a server, for Prometheus. Names that begin with `dapd:diffusion_` are vLLM's apart from the prefix."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._count("requests", "Requests by path and status.", "path", "status")
        self.texts = self._count("texts", "Texts that left the engine, by how they ended.", "end")
        self.steps = self._count("diffusion_num_denoising_steps", "Passes, counted once per text.", "strategy")
        self.positions = self._count("diffusion_num_canvas_positions", "Masks that texts began with.")
        self.committed = self._count("diffusion_num_committed_tokens", "Tokens of finished texts before their ends.")
        self.needed = self._count("columns_needed", "Columns that had to be computed for the rows.")
        self.computed = self._count("columns_computed", "Columns that were computed, padding included.")
        self.waiting = Gauge("dapd:queue_depth", "Texts that wait for a place.", registry=self.registry)
        self.running = Gauge("dapd:rows", "Texts that are being decoded.", registry=self.registry)
        self.rows = self._spread("rows_per_step", "Texts that took part in a step.", COUNTS)
        self.step_seconds = self._spread("step_seconds", "Time of a step of the engine.", SECONDS)
        self.wait_seconds = self._spread("queue_seconds", "Time before a text got a place.", SECONDS)
        self.first_seconds = self._spread("time_to_first_text_seconds", "From request to first text.", SECONDS)
        self.per_pass = self._spread("tokens_per_forward", "Tokens of a text per pass.", COUNTS)

    def _count(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(f"dapd:{name}", words, labels, registry=self.registry)

    def _spread(self, name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"dapd:{name}", words, buckets=buckets, registry=self.registry)
