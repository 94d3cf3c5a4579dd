"""What a server counts, for Prometheus. The names for diffusion are those of vLLM, with our prefix."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        at = {"registry": self.registry}
        self.requests = Counter("dapd:requests", "Requests by path and status.", ["path", "status"], **at)
        self.texts = Counter("dapd:texts", "Texts that left the engine, by how.", ["end"], **at)
        self.steps = Counter(
            "dapd:diffusion_num_denoising_steps", "Passes, counted once for every text.", ["strategy"], **at
        )
        self.positions = Counter("dapd:diffusion_num_canvas_positions", "Positions that texts were given.", **at)
        self.committed = Counter(
            "dapd:diffusion_num_committed_tokens", "Tokens of finished texts before the end.", **at
        )
        self.needed = Counter("dapd:columns_needed", "Columns that the rows needed computed.", **at)
        self.computed = Counter("dapd:columns_computed", "Columns that were computed, padding included.", **at)
        self.waiting = Gauge("dapd:queue_depth", "Texts that wait for a place.", **at)
        self.running = Gauge("dapd:rows", "Texts that are being decoded.", **at)
        self.rows = Histogram("dapd:rows_per_step", "Texts that one step brought further.", buckets=COUNTS, **at)
        self.step_seconds = Histogram("dapd:step_seconds", "Time of a step of the engine.", buckets=SECONDS, **at)
        self.wait_seconds = Histogram("dapd:queue_seconds", "Time before a text got a place.", buckets=SECONDS, **at)
        self.first_seconds = Histogram(
            "dapd:time_to_first_text_seconds", "From the request to the first finished text.", buckets=SECONDS, **at
        )
        self.per_pass = Histogram("dapd:tokens_per_forward", "Tokens of a text per pass.", buckets=COUNTS, **at)
