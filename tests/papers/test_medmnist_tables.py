"""The tables of MedMNIST, which need files that a user has: on small files of the same form."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data.download import RemoteFile
from coterie.data.sets.images import MedMNIST
from papers.cell import Run
from papers.results import Results, configured
from papers.tables import table
from papers.work import carry_out, sources


@pytest.fixture(autouse=True)
def any_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small files pass for the published ones."""
    variants = {
        key: dataclasses.replace(spec, files=(RemoteFile(spec.files[0].name),))
        for key, spec in MedMNIST.variants.items()
    }
    monkeypatch.setattr(MedMNIST, "variants", variants)


def small_file(folder: Path, which: str) -> Path:
    """40 training, 10 validation and 10 test images of each class; the file has its real name."""
    rng, classes = np.random.default_rng(0), {"path": 9, "tissue": 8}[which]
    arrays: dict[str, Any] = {}
    for part, many in (("train", 40), ("val", 10), ("test", 10)):
        y = np.repeat(np.arange(classes), many)
        noise = rng.integers(0, 60, (len(y), 28, 28, 3) if which == "path" else (len(y), 28, 28))
        arrays[f"{part}_images"] = (noise + 20 * y.reshape(-1, *[1] * (noise.ndim - 1))).astype(np.uint8)
        arrays[f"{part}_labels"] = y[:, None].astype(np.uint8)
    path = folder / f"{which}mnist.npz"
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("which", ["path", "tissue"])
def test_every_row_runs_on_a_users_file(which: str, tmp_path: Path) -> None:
    data = sources([f"medmnist={small_file(tmp_path, which)}"])
    partition = {"name": "cluster-dirichlet", "clients": 4, "clusters": 2, "between": 1.0}
    for run in table(f"cam-medmnist-{which}").runs():
        config = dict(run.config) | {"rounds": 2, "local": {"steps": 1, "batch": 8, "lr": 0.01}}
        config["data"] = config["data"] | {"partition": partition}
        config["method"] = _small(config["method"])
        short = dataclasses.replace(run, config=config)
        assert configured(short, 0, data).data.name == "medmnist"  # its own reader, at the user's place
        carry_out(short, 0, Results(tmp_path / "results"), data)
        outcome = Results(tmp_path / "results").load(short, 0)
        assert outcome is not None
        assert outcome.data_from == f"{which}mnist.npz"
        cells = [cell for cell in table(f"cam-medmnist-{which}").cells if cell.run.name == run.name]
        assert cells
        assert all(0 <= value <= 100 for cell in cells for value in cell.read(outcome))


def _small(method: dict[str, object]) -> dict[str, object]:
    found = method | ({"k": 2} if "k" in method else {}) | ({"warmup": 1} if "warmup" in method else {})
    base = method.get("base")
    return found | ({"base": base | {"k": 2}} if isinstance(base, dict) else {})


def test_the_paths_of_users_are_not_in_an_outcome(tmp_path: Path) -> None:
    data = sources([f"medmnist={small_file(tmp_path, 'tissue')}"])
    run: Run = next(r for r in table("cam-medmnist-tissue").runs() if r.name.endswith("majority"))
    config = dict(run.config)
    config["data"] = config["data"] | {"partition": {"name": "iid", "clients": 3}}
    short = dataclasses.replace(run, config=config)
    saved = carry_out(short, 0, Results(tmp_path / "results"), data)
    assert str(tmp_path) not in saved.read_text()
