"""`caprompt serve` under load: 64 clients that send one image after another, on this machine only.

    python benchmarks/serve_load.py                  # ten minutes; prints a table, writes results/speed/serve.json
    python benchmarks/serve_load.py --minutes 1 --no-save

Every request has one JPEG image. Throughput is compared with `predict` in one process, on the same images and cores, before the
server starts; clients and server then share the cores. Afterwards a class is taught while the clients go on: until the new model
is there, the old one has to answer.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _common import SPEED, save
from PIL import Image

from caprompt import ContinualClassifier
from caprompt.client import Client
from caprompt.data.datasets.beetles import load_beetles
from caprompt.data.samples import Samples

SIDE = 224  # pixels of an image
TAUGHT, LATER = 4, 1  # classes before the load, and under it
TAUGHT_IMAGES = 10  # of each class; what is measured does not depend on them
BASELINE_SECONDS = 20.0


@dataclass
class Record:
    """Answers to the clients."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    labels: set[str] = field(default_factory=set)
    longest_gap: float = 0.0  # seconds without any answer
    last: float = field(default_factory=time.perf_counter)

    def add(self, status: int, seconds: float, body: bytes) -> None:
        """Count an answer."""
        now = time.perf_counter()
        self.longest_gap, self.last = max(self.longest_gap, now - self.last), now
        self.statuses[status] += 1
        if status == 200:
            self.seconds.append(seconds)
            self.labels.add(json.loads(body)["predictions"][0]["label"])

    def quantile(self, share: float) -> float:
        """Return a quantile of the milliseconds."""
        return 1e3 * sorted(self.seconds)[min(len(self.seconds) - 1, int(share * len(self.seconds)))]


def encode(samples: Samples) -> list[bytes]:
    """Return images as JPEG files."""
    files = []
    for image in samples.images:
        content = io.BytesIO()
        Image.fromarray(image).resize((SIDE, SIDE)).save(content, "JPEG", quality=90)  # type: ignore[arg-type]
        files.append(content.getvalue())
    return files


def measure_baseline(model: ContinualClassifier, files: Sequence[bytes]) -> float:
    """Return images a second of `predict` in this process."""
    images = list(files)
    model.predict(images)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < BASELINE_SECONDS:
        model.predict(images)
        count += len(images)
    return count / (time.perf_counter() - start)


async def run_client(address: tuple[str, int], requests: Sequence[bytes], number: int, end: float, record: Record) -> None:
    """Send one request after another until the end; a connection that the server closes is opened again."""
    reader, writer = await asyncio.open_connection(*address)
    while time.perf_counter() < end:
        start = time.perf_counter()
        writer.write(requests[number % len(requests)])
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
        body = await reader.readexactly(length)
        status = int(head[9:12])
        record.add(status, time.perf_counter() - start, body)
        number += 1
        if b"connection: close" in head:
            writer.close()
            reader, writer = await asyncio.open_connection(*address)
        if status == 503:
            await asyncio.sleep(float(re.search(rb"retry-after: (\d+)", head)[1]))  # type: ignore[index]
    writer.close()


async def run_clients(address: tuple[str, int], requests: Sequence[bytes], clients: int, seconds: float) -> Record:
    """Let all clients send requests for a while."""
    record, end = Record(), time.perf_counter() + seconds
    await asyncio.gather(*(run_client(address, requests, 37 * number, end, record) for number in range(clients)))
    return record


def read_memory(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


def make_requests(address: tuple[str, int], files: Sequence[bytes]) -> list[bytes]:
    """Return complete requests."""
    head = f"POST /api/v1/models/beetles/predict?top=3 HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nContent-Type: image/jpeg\r\n"
    return [f"{head}Content-Length: {len(file)}\r\n\r\n".encode() + file for file in files]


def measure_load(address: tuple[str, int], pid: int, requests: Sequence[bytes]) -> dict[str, Any]:
    """Return figures of the main phase."""
    memory: dict[str, float] = {}
    timer = threading.Timer(min(60.0, 60 * args.minutes / 2), lambda: memory.update(first=read_memory(pid)))
    timer.start()
    seconds = 60 * args.minutes
    record = asyncio.run(run_clients(address, requests, args.clients, seconds))
    timer.join()
    last = read_memory(pid)
    return {
        "images_per_second": len(record.seconds) / seconds,
        "p50_ms": record.quantile(0.5),
        "p99_ms": record.quantile(0.99),
        "mean_ms": 1e3 * statistics.mean(record.seconds),
        "statuses": {str(status): count for status, count in sorted(record.statuses.items())},
        "memory_after_first_minute_mb": memory["first"],
        "memory_at_end_mb": last,
        "memory_growth_percent": 100 * (last / memory["first"] - 1),
    }


def measure_teaching(
    url: str, address: tuple[str, int], requests: Sequence[bytes], lesson: dict[str, list[bytes]]
) -> dict[str, Any]:
    """Return figures of the phase in which a class is taught."""
    done: dict[str, float] = {}

    def teach() -> None:
        with Client(url) as client:
            start = time.perf_counter()
            client.teach("beetles", lesson, hold_out=0)
            done["seconds"] = time.perf_counter() - start

    thread = threading.Thread(target=teach)
    thread.start()
    phases: list[Record] = []
    while thread.is_alive():
        phases.append(asyncio.run(run_clients(address, requests, args.clients, 5)))
    thread.join()
    seconds = [each for record in phases for each in record.seconds]
    statuses = sum((record.statuses for record in phases), Counter[int]())
    after = asyncio.run(run_clients(address, requests, args.clients, 5))
    return {
        "lesson_seconds": done["seconds"],
        "images_per_second": len(seconds) / (5 * len(phases)),
        "p50_ms": 1e3 * statistics.median(seconds),
        "p99_ms": 1e3 * sorted(seconds)[int(0.99 * len(seconds))],
        "longest_pause_ms": 1e3 * max(record.longest_gap for record in phases),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "new_class_predicted_after": bool(after.labels & set(lesson)),
    }


def main() -> None:
    """Measure, print and save."""
    train, test = load_beetles()
    train = train.select_per_class(TAUGHT_IMAGES)
    names = train.classes
    with tempfile.TemporaryDirectory() as folder:
        model = ContinualClassifier()
        model.learn(train.select_classes(names[:TAUGHT]))
        model.save(Path(folder) / "beetles")
        files = encode(test.select_classes(names[: TAUGHT + LATER]))
        result: dict[str, Any] = {"clients": args.clients, "minutes": args.minutes, "image_pixels": SIDE}
        result["predict_images_per_second"] = measure_baseline(model, files)
        later = train.select_classes(names[TAUGHT : TAUGHT + LATER])
        lesson = {names[TAUGHT]: encode(later)}
        words = [sys.executable, "-m", "caprompt", "serve", f"{folder}/beetles", "--port", "0", "--no-open"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                found = re.search(r"http://([\d.]+):(\d+)/", server.stdout.readline())
                assert found
                address = (found[1], int(found[2]))
                requests = make_requests(address, files)
                result["load"] = measure_load(address, server.pid, requests)
                result["load"]["share_of_predict"] = result["load"]["images_per_second"] / result["predict_images_per_second"]
                print(f"under load: {json.dumps(result['load'])}", file=sys.stderr, flush=True)
                if args.teach:
                    result["teaching"] = measure_teaching(found[0], address, requests, lesson)
            finally:
                server.terminate()
                server.wait()
    print_result(result)
    if args.save:
        save("serve", result, SPEED)


def print_result(result: dict[str, Any]) -> None:
    """Print a table."""
    load, teaching = result["load"], result.get("teaching")
    print("| | images/s | p50 ms | p99 ms | statuses |")
    print("|---|---|---|---|---|")
    print(f"| `predict` in one process | {result['predict_images_per_second']:.0f} | | | |")
    rows = [(f"{result['clients']} clients, {result['minutes']:g} min", load)]
    if teaching:
        rows.append((f"the same while a class is taught ({teaching['lesson_seconds']:.0f} s)", teaching))
    for name, row in rows:
        print(f"| {name} | {row['images_per_second']:.0f} | {row['p50_ms']:.0f} | {row['p99_ms']:.0f} | {row['statuses']} |")
    print(f"\nShare of predict: {100 * load['share_of_predict']:.0f} %.")
    print(
        f"Resident memory: {load['memory_after_first_minute_mb']:.0f} MB after the first minute, "
        f"{load['memory_at_end_mb']:.0f} MB at the end ({load['memory_growth_percent']:+.1f} %)."
    )
    if teaching:
        print(f"Longest pause between answers while teaching: {teaching['longest_pause_ms']:.0f} ms.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--no-save", dest="save", action="store_false")
    parser.add_argument("--no-teach", dest="teach", action="store_false")
    args = parser.parse_args()
    main()
