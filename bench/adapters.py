"""What a part of a pretrained encoder costs against all of it: numbers, bytes of a round, checkpoint, memory, time.

Texts of two groups of clients, of which one means the opposite by the same words, with WeCFL (k=2). Every row is a
process of its own, because memory belongs to a process. Needs the extra `transformers`.

    python bench/adapters.py [--clients 8] [--rounds 2]
"""

from __future__ import annotations

import csv
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from coterie.training.config import read
from coterie.training.execute import execute

WAYS = ("all", "adapters", "head")
GOOD, BAD = ("excellent", "lovely", "superb", "a joy"), ("dreadful", "boring", "a mess", "poor")
THINGS = ("film", "book", "meal", "hotel", "concert", "trip")


def _table(file: Path, clients: int, samples: int) -> None:
    """Texts and labels; every other client means the opposite."""
    rng = np.random.default_rng(0)
    with file.open("w", newline="") as stream:
        out = csv.writer(stream)
        out.writerow(("client", "text", "label"))
        for client in range(clients):
            for good in rng.integers(0, 2, samples):
                text = f"The {rng.choice(THINGS)} was {rng.choice(GOOD if good else BAD)}."
                out.writerow((f"client-{client}", text, "pro" if good == client % 2 else "contra"))


def _measure(way: str, clients: int, rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "texts.csv"
        _table(table, clients, 40)
        words = [
            *("data.name=texts", f"data.path={table}", "data.length=16", "model.name=transformer"),
            *(f"model.train={way}", "method.name=wecfl", "method.k=2", f"rounds={rounds}", f"evaluate_every={rounds}"),
            *("local.epochs=2", "local.batch=8", "local.lr=0.05", "engine.name=sequential"),
        ]
        began = time.perf_counter()
        result = execute(read(None, words), Path(folder) / "run")
        seconds = time.perf_counter() - began
        saved = max(file.stat().st_size for file in Path(folder).rglob("round-*.safetensors"))
    last = result.history[-1]
    return {
        "numbers": result.model.size,
        "bytes_of_a_round": sum(last.layers["traffic"].values()),
        "checkpoint": saved,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "seconds": seconds,
        "accuracy": result.accuracy or 0.0,
        "found": float(list(result.assignments) in ([0, 1] * (clients // 2), [1, 0] * (clients // 2))),
    }


def main(
    clients: Annotated[int, typer.Option()] = 8,
    rounds: Annotated[int, typer.Option()] = 2,
    only: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Print the table; ratios are against training everything."""
    if only:
        print(json.dumps(_measure(only, clients, rounds)))
        return
    found: dict[str, dict[str, float]] = {}
    for way in WAYS:
        command = [sys.executable, __file__, "--only", way, "--clients", str(clients), "--rounds", str(rounds)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found[way] = json.loads(out.splitlines()[-1])
        print(way, json.dumps(found[way]), flush=True)
    for way in WAYS[1:]:
        ratios = {key: found["all"][key] / found[way][key] for key in ("numbers", "bytes_of_a_round", "checkpoint")}
        ratios["peak"] = found["all"]["peak_bytes"] / found[way]["peak_bytes"]
        print(f"{way}: " + ", ".join(f"{key} {value:.1f}x less" for key, value in ratios.items()))


if __name__ == "__main__":
    typer.run(main)
