"""`coterie api` beside a plain FastAPI endpoint around the same network: latency and requests per second.

Both are processes with one uvicorn worker. Blocks of requests alternate between them, so that whatever else the machine
does falls on both. Usage: python bench/api.py RUN [--seconds 3] [--blocks 5]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import coterie

CONNECTIONS = (1, 8, 64)
ROWS = (1, 100)
PLAIN = """
import sys, torch, uvicorn, coterie
from fastapi import FastAPI
from pydantic import BaseModel
from coterie.serving.address import listen

torch.set_num_threads(1)
network = coterie.load(sys.argv[1]).network(client=0)
app = FastAPI()

class Rows(BaseModel):
    rows: list

class Predicted(BaseModel):
    predictions: list[int]

@app.post("/predict")
async def predict(asked: Rows) -> Predicted:
    with torch.inference_mode():
        return Predicted(predictions=network(torch.tensor(asked.rows, dtype=torch.float32)).argmax(1).tolist())

sock = listen("127.0.0.1", 0)  # uvicorn's bind_socket would leave out TCP_NODELAY, and each answer wait 40 ms
print(f"http://127.0.0.1:{sock.getsockname()[1]}/", file=sys.stderr, flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[sock])
"""


@dataclass(frozen=True)
class Block:
    """Requests of one block: seconds each, and seconds in all."""

    latencies: tuple[float, ...]
    seconds: float
    cpu: float = float("nan")  # seconds that the service computed; what else the machine does hardly changes it

    def percentile(self, share: float) -> float:
        """In milliseconds."""
        return 1000 * float(np.quantile(self.latencies, share))


@dataclass(frozen=True)
class Service:
    """A process that answers at a port."""

    port: int
    pid: int

    def cpu(self) -> float:
        """Seconds that it has computed so far; Linux only."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def process(words: Sequence[str]) -> Iterator[Service]:
    """A service."""
    started = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert started.stderr is not None
    port = None
    while port is None:
        line = started.stderr.readline()
        assert line, "the service has ended"
        found = re.search(r"http://[^:]+:(\d+)/", line)
        port = None if found is None else int(found[1])
    try:
        yield Service(port, started.pid)
    finally:
        started.send_signal(signal.SIGINT)
        started.communicate(timeout=60)


async def connection(port: int, request: bytes, until: float, found: list[float]) -> None:
    """One request after another, each sent when the one before is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < until:
        began = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        found.append(time.perf_counter() - began)
    writer.close()


async def block(service: Service, body: bytes, connections: int, seconds: float) -> Block:
    """So many connections at once, for this long."""
    head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
    request, found = head + str(len(body)).encode() + b"\r\n\r\n" + body, list[float]()
    began, computed = time.perf_counter(), service.cpu()
    await asyncio.gather(*(connection(service.port, request, began + seconds, found) for _ in range(connections)))
    return Block(tuple(found), time.perf_counter() - began, service.cpu() - computed)


def main() -> None:
    """A line for each number of rows and of connections."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("run", type=Path)
    words.add_argument("--seconds", type=float, default=2.0)
    words.add_argument("--blocks", type=int, default=5)
    asked = words.parse_args()
    shape = coterie.load(asked.run).known.input_shape  # type: ignore[attr-defined]
    print(
        "| rows | connections | p50 ms (ours, plain, ratio) | p99 ms | requests per second | CPU ms per request |\n"
        "|---|---|---|---|---|---|"
    )
    ours_words = ["-m", "coterie.tools.cli.main", "api", str(asked.run), "--port", "0"]
    with process(ours_words) as ours, process(["-c", PLAIN, str(asked.run)]) as plain:
        for rows in ROWS:
            x = np.random.default_rng(0).integers(0, 16, size=(rows, *shape)).astype(float).tolist()
            bodies = {ours: json.dumps({"client": 0, "rows": x}).encode(), plain: json.dumps({"rows": x}).encode()}
            for connections in CONNECTIONS:
                found: dict[Service, list[Block]] = {ours: [], plain: []}
                for port in (ours, plain):
                    asyncio.run(block(port, bodies[port], connections, 0.5))  # to warm up
                for _ in range(asked.blocks):
                    for port in (ours, plain):
                        found[port].append(asyncio.run(block(port, bodies[port], connections, asked.seconds)))
                print(_line(rows, connections, found[ours], found[plain]), flush=True)


def _line(rows: int, connections: int, ours: Sequence[Block], plain: Sequence[Block]) -> str:
    """Medians over blocks."""

    def compared(numbers: Sequence[tuple[float, ...]], how: str) -> str:
        mine, theirs = (statistics.median(column) for column in zip(*numbers, strict=True))
        ratio = statistics.median(a / b for a, b in numbers)
        return f"{mine:{how}}, {theirs:{how}}, {ratio:.2f}"

    pairs = list(zip(ours, plain, strict=True))
    p50, p99 = ([(a.percentile(q), b.percentile(q)) for a, b in pairs] for q in (0.5, 0.99))
    cpu = [tuple(1000 * one.cpu / len(one.latencies) for one in pair) for pair in pairs]
    rate = [(len(a.latencies) / a.seconds, len(b.latencies) / b.seconds) for a, b in pairs]
    return (
        f"| {rows} | {connections} | {compared(p50, '.2f')} | {compared(p99, '.2f')} | {compared(rate, '.0f')} "
        f"| {compared(cpu, '.2f')} |"
    )


if __name__ == "__main__":
    main()
