"""Requests made up from the server's own description, right and wrong: no answer is a fault of the server's."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from server.helpers_server import Served

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")

EXAMPLES = 100


@pytest.fixture(scope="module")
def small(lm):
    with Served(lm, new_tokens=16, seconds=5) as served:
        yield served


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/infill"])
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_made_up_requests_are_answered(small, path, mode):
    operation = schemathesis.openapi.from_url(f"{small.base}/openapi.json")[path]["POST"]
    seen = []

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    def check(case):
        answer = case.call(base_url=small.base)
        seen.append(answer.status_code)
        assert answer.status_code < 500, (case.body, answer.text)

    check()
    assert len(seen) >= EXAMPLES // 2
