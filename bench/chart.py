"""Bar charts of a comparison: speed against the plain loop, a panel per workload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import matplotlib
import typer

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

# Okabe and Ito's colours, told apart by everyone.
OURS, PEERS, PLAIN = "#0072B2", "#E69F00", "#999999"


def colour(name: str) -> str:
    """By kind of contender."""
    if name.startswith("coterie"):
        return OURS
    return PLAIN if name.startswith("plain") else PEERS


def draw(result: dict[str, Any], path: Path) -> None:
    """path.png and path.svg."""
    works = result["workloads"]
    if not works:
        return
    columns = min(len(works), 2)
    rows = -(-len(works) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(6.4 * columns, 3.6 * rows), squeeze=False)
    for axis in axes.flat[len(works) :]:
        axis.set_visible(False)
    for axis, (key, found) in zip(axes.flat, works.items(), strict=False):
        ran = {name: one["summary"] for name, one in found["contenders"].items() if "summary" in one}
        base = ran.get("plain", next(iter(ran.values())))["best"]
        names = sorted(ran, key=lambda name: base / ran[name]["best"])
        speeds = [base / ran[name]["best"] for name in names]
        bars = axis.barh(names, speeds, color=[colour(name) for name in names])
        labels = [f"{speed:.2f}x  {ran[name]['best'] * 1e3:,.0f} ms" for name, speed in zip(names, speeds, strict=True)]
        axis.bar_label(bars, labels, padding=3, fontsize=8)
        axis.axvline(1, color="black", linewidth=0.6, linestyle=":")
        axis.set_xlim(0, max(speeds) * 1.3)
        axis.set_title(f"{key}  {found['about']['title']}", fontsize=10)
        axis.set_xlabel("speed against the plain DataLoader loop (1 thread)", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    kinds = [Rectangle((0, 0), 1, 1, color=c) for c in (OURS, PEERS, PLAIN)]
    figure.legend(kinds, ["coterie", "peers", "plain PyTorch"], loc="lower center", ncols=3, fontsize=8, frameon=False)
    where = result["machine"]
    figure.suptitle(
        f"FedAvg, one round: {where['processor']}, {where['cores']} cores, torch {where['torch']}", fontsize=10
    )
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    for kind in ("png", "svg"):
        figure.savefig(path.with_suffix(f".{kind}"), dpi=150)
    plt.close(figure)


def main(
    source: Annotated[Path, typer.Argument(help="a JSON file of compare.py")],
    to: Annotated[Path | None, typer.Option(help="where to, without ending")] = None,
) -> None:
    """Draw again what was measured before."""
    draw(json.loads(source.read_text()), to or source.with_suffix(""))


if __name__ == "__main__":
    typer.run(main)
