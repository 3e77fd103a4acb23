from __future__ import annotations

from caprompt.serve.metrics import ServerMetrics


def test_methods_that_clients_invent_count_as_one() -> None:
    metrics = ServerMetrics()
    for number in range(50):
        metrics.add_request("other", f"BREW{number}", 405, 0.1)
    metrics.add_request("other", "GET", 404, 0.1)
    assert dict(metrics.requests) == {("other", "other", 405): 50, ("other", "GET", 404): 1}
