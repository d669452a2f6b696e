"""A run beside the one in which every client trains alone: which run that is, and what is said of the two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie.tools.report.page import overview, standings
from coterie.tools.report.ranking import alone, beside, beside_directory, group, rank
from coterie.tools.report.record import RunRecord, read_run


def write(path: Path, method: str, accuracy: list[float | None], seed: int = 0, **changed: Any) -> RunRecord:
    """A finished run as its directory has it."""
    path.mkdir(parents=True)
    config = {"method": {"name": method}, "data": {"name": "digits"}, "rounds": 1, "seed": seed}
    config |= {"engine": {"name": "batched", "workers": len(method)}} | changed
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    found = [a for a in accuracy if a is not None]
    mean = sum(found) / len(found) if found else None
    line = {"format": 2, "round": 1, "asked": 2, "answered": 2, "attempts": 1, "seconds": 1.0, "missing": []}
    line |= {"unscored": [], "loss": 0.5, "accuracy": mean, "clusters": 1, "sizes": [len(accuracy)]}
    (path / "rounds.jsonl").write_text(json.dumps(line) + "\n")
    rows = [
        {"client": c, "cluster": 0, "scored_on": "test", "samples": 5, "loss": 1.0 + c, "accuracy": a}
        for c, a in enumerate(accuracy)
    ]
    (path / "clients.json").write_text(json.dumps(rows))
    return read_run(path)


def test_its_partner_has_the_same_seed_data_and_budget(tmp_path: Path) -> None:
    mine = write(tmp_path / "wecfl", "wecfl", [0.5, 0.9])
    records = [
        mine,
        write(tmp_path / "seed", "local", [0.1, 0.1], seed=1),
        write(tmp_path / "rounds", "local", [0.1, 0.1], rounds=2),
        write(tmp_path / "data", "local", [0.1, 0.1], data={"name": "mnist"}),
    ]
    assert beside(mine, alone(records)) is None
    partner = write(tmp_path / "same", "local", [0.6, 0.7])
    found = beside(mine, alone([*records, partner]))
    assert found is not None
    assert (found.gain, found.worse, found.clients) == pytest.approx((0.05, 0.5, 2))
    assert beside(partner, alone([partner])) is None
    assert beside_directory(tmp_path / "wecfl", tmp_path / "same") == found
    assert beside_directory(tmp_path / "wecfl", tmp_path / "nowhere") is None


def test_the_ranking_has_the_worst_clients_and_gains_by_seed(tmp_path: Path) -> None:
    records = [
        write(tmp_path / f"{method}-{seed}", method, [a + 0.1 * seed for a in scores], seed)
        for seed in (0, 1)
        for method, scores in (("wecfl", [0.4, 0.8]), ("local", [0.5, 0.5]))
    ]
    wecfl, local = rank(group(records))
    assert wecfl.worst_decile is not None
    assert wecfl.worst_decile.mean == pytest.approx(0.45)  # 0.4 and 0.5: runs of before say it in clients.json alone
    assert wecfl.gain is not None
    assert wecfl.gain.mean == pytest.approx(0.1)
    assert wecfl.worse is not None
    assert (wecfl.worse.mean, wecfl.worse.count) == (0.5, 2)
    assert (local.gain, local.worse) == (None, None)
    page = str(standings([wecfl, local]))
    for text in ("worst 10 %", "45.0 ± 7.1", "gain over local", "10.0 ± 0.0", "worse than local", "50.0 ± 0.0"):
        assert text in page
    assert "worst 10 %" in overview(records).columns


def test_of_regressions_the_worst_have_the_largest_loss(tmp_path: Path) -> None:
    mine = write(tmp_path / "fedavg", "fedavg", [None, None, None])
    assert mine.regression
    assert mine.worst_decile == 3.0
    partner = write(tmp_path / "local", "local", [None, None, None])
    found = beside(mine, alone([mine, partner]))
    assert found is not None
    assert (found.gain, found.worse) == (0.0, 0.0)  # equal is not worse
