"""What is said of measured rounds: per cohort the best, over all the median; the table, and the machine."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy
import torch

import coterie
from coterie.core.compute import cores

Json = dict[str, Any]


def machine() -> Json:
    """Where the numbers come from."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": _processor(),
        "cores": cores(),
        "memory_gib": round(pages / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "coterie": coterie.__version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "command": " ".join(["python", "bench/" + Path(sys.argv[0]).name, *sys.argv[1:]]),
        "load_before": os.getloadavg()[0],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def summary(rounds: list[Json], about: Json, peak: Json) -> Json:
    """Of one contender on one workload. `best` is the mean over the cohorts of each cohort's best time.

    peak: of the processors; empty where clients are computed on something else.
    """
    cohorts = len(about["samples"])
    by_cohort: dict[int, list[Json]] = {}
    for r in rounds:
        by_cohort.setdefault(r["round"] % cohorts, []).append(r)
    walls = [r["wall"] for r in rounds]
    best = statistics.fmean(min(r["wall"] for r in seen) for seen in by_cohort.values())
    flops = statistics.fmean(about["samples"][c] for c in by_cohort) * about["flops_per_sample"]
    return {
        "best": best,
        "median": statistics.median(walls),
        "worst": max(walls),
        "cpu": statistics.fmean(min(r["cpu"] for r in seen) for seen in by_cohort.values()),
        "flops_per_round": flops,
        "share_of_peak": flops / best / peak["processes_2"] if peak else None,
        "loss": rounds[-1]["loss"],
        "checksum": rounds[-1]["checksum"],
    }


def table(found: Json) -> list[str]:
    """The lines of one workload."""
    base = found["contenders"].get("plain", {}).get("summary")
    head = (
        f"{'':22}{'ms per round':>24}{'':>8}{'':>11}{'vs plain':>15}{'of peak':>9}{'CPU ms':>9}{'GiB':>7}"
        f"{'loss':>9}{'drift':>8}"
    )
    below = f"{'':22}{'best':>8}{'median':>8}{'worst':>8}{'':>8}{'rounds/s':>11}{'best':>8}{'median':>7}"
    lines = [head, below]
    for name, one in found["contenders"].items():
        if "skipped" in one:
            lines.append(f"{name:22}skipped: {one['skipped']}")
            continue
        s = one["summary"]
        ratios = (base["best"] / s["best"], base["median"] / s["median"]) if base else (float("nan"), float("nan"))
        drift = f"{abs(s['checksum'] / base['checksum'] - 1):8.2%}" if base else f"{'':8}"
        share = s["share_of_peak"]
        peak = "-" if share is None else f"{share:.1%}"
        loss = f"{'-':>9}" if s["loss"] is None else f"{s['loss']:9.4f}"
        lines.append(
            f"{name:22}{s['best'] * 1e3:8.0f}{s['median'] * 1e3:8.0f}{s['worst'] * 1e3:8.0f}{'':8}{1 / s['best']:11.2f}"
            f"{ratios[0]:7.2f}x{ratios[1]:6.2f}x{peak:>9}{s['cpu'] * 1e3:9.0f}"
            f"{one['memory'] / 2**30:7.2f}{loss}{drift}"
        )
    return lines
