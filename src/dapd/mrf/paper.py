"""The paper's own numbers, for the tables (section 3.2 and the appendix on toy experiments)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """AUC, ratio of edge to non-edge scores, OVR; `spread` are the deviations over sampling paths where given."""

    auc: float
    ratio: float
    ovr: float
    spread: tuple[float, float, float] | None = None


OVERALL = Published(0.928, 2.204, 0.04)
STEPS = (
    Published(0.923, 2.19, 0.00, (0.00, 0.00, 0.00)),
    Published(0.923, 2.21, 0.04, (0.02, 0.12, 0.01)),
    Published(0.919, 2.18, 0.05, (0.04, 0.23, 0.01)),
    Published(0.916, 2.17, 0.08, (0.04, 0.21, 0.02)),
    Published(0.937, 2.23, 0.05, (0.05, 0.24, 0.01)),
    Published(0.937, 2.17, 0.04, (0.10, 0.37, 0.02)),
    Published(0.944, 2.28, 0.02, (0.12, 0.45, 0.04)),
)
LAYERS = {
    "last 2": Published(0.93, 2.20, 0.04),
    "last 1": Published(0.92, 2.16, 0.06),
    "last 4": Published(0.90, 2.06, 0.08),
    "all": Published(0.87, 1.95, 0.15),
    "first 4": Published(0.81, 1.81, 0.22),
    "first 2": Published(0.78, 1.72, 0.29),
    "first 1": Published(0.73, 1.62, 0.37),
}
