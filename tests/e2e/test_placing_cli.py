"""`coterie clusters`, `assign` and `predict` as their users meet them."""

from __future__ import annotations

from pathlib import Path

import commandline
import numpy as np
import pytest


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> commandline.Shell:
    return commandline.Shell(tmp_path, monkeypatch, capsys)


def table(path: Path, sites: range, labels: bool = True) -> None:
    rng = np.random.default_rng(len(sites))
    lines = ["site,a,level" if labels else "site,a"]
    for site in sites:
        for a in rng.normal(size=20):
            high = (a > 0) == (site % 2 == 0)
            lines.append(f"s{site},{a:.3f}" + (f",{'high' if high else 'low'}" if labels else ""))
    path.write_text("\n".join(lines) + "\n")


def test_from_a_table_to_predictions(shell: commandline.Shell, tmp_path: Path) -> None:
    table(tmp_path / "train.csv", range(8))
    table(tmp_path / "new.csv", range(20, 24))
    table(tmp_path / "plain.csv", range(20, 22), labels=False)
    words = (
        "data.name=csv",
        "data.path=train.csv",
        "data.client=site",
        "data.y=level",
        "method.name=wecfl",
        "method.k=2",
        "rounds=6",
    )
    assert shell("run", *words, "--out", "run").code == 0
    (tmp_path / "train.csv").unlink()

    said = shell("clusters", "run", "--csv", "clients.csv")
    assert said.code == 0
    assert "8 clients in 2 clusters (WeCFL)." in said.out
    assert "  members: s0, s2, s4, s6\n" in said.out
    head, *rows = (tmp_path / "clients.csv").read_text().splitlines()
    assert len(rows) == 8
    for row in (dict(zip(head.split(","), row.split(","), strict=True)) for row in rows):
        assert float(row["loss"]) > 0
        assert int(row["test_samples"]) > 0
        assert len(row["accuracy"]) <= len("0.666667")
    told = commandline.strictly(shell("clusters", "run", "--json").out)
    assert [row["size"] for row in told["clusters"]] == [4, 4]

    said = shell("assign", "run", "--data", "new.csv", "--csv", "places.csv")
    assert said.code == 0
    assert "4 newcomers, 2 in cluster 0, 2 in cluster 1" in said.out
    told = commandline.strictly(shell("assign", "run", "--data", "new.csv", "--json").out)
    assert [one["client"] for one in told["placements"]] == ["s20", "s21", "s22", "s23"]

    assert shell("predict", "run", "--data", "new.csv", "--out", "out.csv").code == 0
    assert (tmp_path / "out.csv").read_text().startswith("row,client,cluster,model,prediction,p_high,p_low\n0,s20,")
    assert shell("predict", "run", "--data", "plain.csv", "--out", "x.csv", "--client", "s3", "--json").json == {
        "rows": 40,
        "out": "x.csv",
    }
    assert shell("predict", "run", "--data", "plain.csv", "--out", "x.csv", "--cluster", "0", "--overwrite").code == 0

    said = shell("predict", "run", "--data", "plain.csv", "--out", "y.csv")
    assert said.code == 2
    assert "error: plain.csv: the run does not know 's20', 's21'" in said.err
    assert not (tmp_path / "y.csv").exists()
    assert (
        shell("predict", "run", "--data", "plain.csv", "--out", "y.csv", "--client", "s3", "--cluster", "0").code == 2
    )
