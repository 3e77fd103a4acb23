"""Counters of a server in the text format of Prometheus."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

__all__ = ["Histogram", "ServerMetrics", "format_line", "read_resident_bytes"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64)
METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})  # others, which clients invent, count as one


class Histogram:
    """Counts of values up to each bound, and their sum.

    >>> histogram = Histogram((1, 2))
    >>> histogram.add(1.5)
    >>> histogram.format("x", {})
    ['x_bucket{le="1"} 0', 'x_bucket{le="2"} 1', 'x_bucket{le="+Inf"} 1', 'x_sum 1.5', 'x_count 1']
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * len(bounds)
        self.total, self.sum = 0, 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.total += 1
        self.sum += value
        for index, bound in enumerate(self.bounds):
            self.counts[index] += value <= bound

    def format(self, name: str, labels: Mapping[str, str]) -> list[str]:
        """Return the lines of this histogram."""
        buckets = [*zip(map(str, self.bounds), self.counts, strict=True), ("+Inf", self.total)]
        lines = [format_line(f"{name}_bucket", {**labels, "le": bound}, count) for bound, count in buckets]
        return [*lines, format_line(f"{name}_sum", labels, round(self.sum, 6)), format_line(f"{name}_count", labels, self.total)]


class ServerMetrics:
    """What a server has done since it was started; threads may add to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests: Counter[tuple[str, str, int]] = Counter()  # route, method, status
        self.request_seconds: dict[str, Histogram] = defaultdict(lambda: Histogram(SECONDS))  # by route
        self.batch_images = Histogram(IMAGES)
        self.batch_seconds = Histogram(SECONDS)
        self.images: Counter[tuple[str, bool]] = Counter()  # predicted, by model and whether they were unknown
        self.jobs: Counter[tuple[str, str]] = Counter()  # ended, by kind and state

    def add_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        with self._lock:
            self.requests[route, method if method in METHODS else "other", status] += 1
            self.request_seconds[route].add(seconds)

    def add_batch(self, images: int, seconds: float) -> None:
        """Count a batch that the network has predicted."""
        with self._lock:
            self.batch_images.add(images)
            self.batch_seconds.add(seconds)

    def add_predictions(self, model: str, unknown: Iterable[bool]) -> None:
        """Count predictions of a model."""
        with self._lock:
            self.images.update((model, each) for each in unknown)

    def add_job(self, kind: str, state: str) -> None:
        """Count a job that has ended."""
        with self._lock:
            self.jobs[kind, state] += 1

    def format(self, gauges: Mapping[str, float]) -> str:
        """Return everything as text, with the values of now in `gauges`."""
        with self._lock:
            lines = ["# TYPE caprompt_requests_total counter"]
            for (route, method, status), count in sorted(self.requests.items()):
                labels = {"route": route, "method": method, "status": str(status)}
                lines.append(format_line("caprompt_requests_total", labels, count))
            lines.append("# TYPE caprompt_request_seconds histogram")
            for route, histogram in sorted(self.request_seconds.items()):
                lines += histogram.format("caprompt_request_seconds", {"route": route})
            for name, histogram in (("images", self.batch_images), ("seconds", self.batch_seconds)):
                lines += [f"# TYPE caprompt_batch_{name} histogram", *histogram.format(f"caprompt_batch_{name}", {})]
            lines.append("# TYPE caprompt_images_total counter")
            for (model, unknown), count in sorted(self.images.items()):
                lines.append(format_line("caprompt_images_total", {"model": model, "unknown": str(unknown).lower()}, count))
            lines.append("# TYPE caprompt_jobs_total counter")
            for (kind, state), count in sorted(self.jobs.items()):
                lines.append(format_line("caprompt_jobs_total", {"kind": kind, "state": state}, count))
        for name, value in gauges.items():
            lines += [f"# TYPE {name} gauge", format_line(name, {}, value)]
        return "\n".join([*lines, ""])


def format_line(name: str, labels: Mapping[str, str], value: float) -> str:
    r"""Return one sample.

    >>> format_line("x", {"a": 'say "hi"'}, 3)
    'x{a="say \\"hi\\""} 3'
    """
    escaped = {key: text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for key, text in labels.items()}
    inside = ",".join(f'{key}="{text}"' for key, text in escaped.items())
    return f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"


def read_resident_bytes() -> int:
    """Return the memory that this process has in RAM, or 0 where that cannot be read."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), 0)
