"""Text in a table: its words are hashed at reading, beside numbers, and again where new rows are predicted."""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

import coterie
from conftest import raises
from coterie.core.errors import CoterieWarning
from coterie.core.local import Local
from coterie.data import CSV, from_frame
from coterie.data.cells import hashed
from coterie.data.columns import TableScale
from coterie.data.federation import Federation
from coterie.serving.export.export import export
from coterie.tools.cli.main import app

WORDS = {
    "sport": "match goal team striker league coach season player",
    "money": "market shares bank profit inflation bond trade fund",
}
LOCAL = Local(epochs=3, batch=8, lr=0.5)


def headline(topic: str, rng: random.Random) -> str:
    words = [*rng.sample(WORDS[topic].split(), 4), *rng.choices(["the", "a", "of", "in", "on"], k=3)]
    rng.shuffle(words)
    return " ".join(words).capitalize()


def rows(client: str, many: int, seed: int) -> list[list[str]]:
    rng = random.Random(seed)
    topics = [rng.choice(list(WORDS)) for _ in range(many)]
    return [[client, headline(topic, rng), str(rng.randrange(100)), topic] for topic in topics]


HEADER = ["paper", "headline", "length", "topic"]


def written(place: Path, table: Sequence[Sequence[str]], header: Sequence[str] = HEADER) -> str:
    with place.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *table])
    return str(place)


def news(tmp_path: Path, numbers: bool = True) -> str:
    table = [row for client in range(4) for row in rows(f"p{client}", 30, client)]
    if numbers:
        return written(tmp_path / "news.csv", table)
    return written(tmp_path / "news.csv", [[c, h, t] for c, h, _, t in table], ["paper", "headline", "topic"])


def inputs_of(federation: Federation) -> torch.Tensor:
    return federation.samples(0, "train")[0]


def right(result: Any) -> float:
    """The accuracy of the last round."""
    return float(result.history[-1].summary.accuracy)


def test_words_beside_numbers(tmp_path: Path) -> None:
    """The number is standardised, the words are as `hashed` has them: vectors of length 1."""
    read = CSV(news(tmp_path), y="topic", client="paper", text=("headline",), size=32)
    federation = coterie.federate(read, seed=0)
    assert federation.features is not None
    assert federation.features[:2] == ("headline words 0", "headline words 1")
    assert len(federation.features) == 33
    assert federation.input_shape == (33,)
    assert "text: headline (its words, hashed to 32 numbers)" in federation.remarks
    x = torch.cat([federation.samples(client, "train")[0] for client in range(4)])
    torch.testing.assert_close(x[:, :32].norm(dim=1), torch.ones(len(x)), atol=1e-3, rtol=0)
    assert float(x[:, 32].mean()) == pytest.approx(0, abs=1e-5)
    assert float(x[:, 32].std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_a_table_of_nothing_but_prose_needs_no_option(tmp_path: Path) -> None:
    federation = coterie.federate(CSV(news(tmp_path, numbers=False), y="topic", client="paper"), seed=0)
    assert federation.input_shape == (512,)
    result = coterie.run(coterie.FedAvg(local=LOCAL), federation, "linear", rounds=3)
    assert right(result) > 0.9


def test_where_there_are_numbers_prose_is_left_out_and_the_option_named(tmp_path: Path) -> None:
    federation = coterie.federate(CSV(news(tmp_path), y="topic", client="paper"), seed=0)
    assert federation.input_shape == (1,)
    assert federation.remarks[0] == "left out: headline (text; data.text=headline uses its words)"


def test_names_are_no_prose(tmp_path: Path) -> None:
    """Text of one word, different in every row: an identifier says nothing of new rows."""
    table = [[f"p{i % 2}", f"code{i}", str(i % 2)] for i in range(30)]
    place = written(tmp_path / "codes.csv", table, ["paper", "code", "y"])
    with raises("data-column-unknown", "no feature columns"):
        coterie.federate(CSV(place, y="y", client="paper"))


def test_new_rows_are_hashed_alike_and_predicted(tmp_path: Path) -> None:
    place = news(tmp_path)
    federation = coterie.federate(CSV(place, y="topic", client="paper", text=("headline",), size=64), seed=0)
    coterie.run(coterie.FedAvg(local=LOCAL), federation, "linear", rounds=4, out=tmp_path / "run")
    result = coterie.load(tmp_path / "run")
    scale = result.scale
    assert isinstance(scale, TableScale)
    assert (scale.names, scale.texts) == (("headline", "length"), ("headline",))
    new: Any = {
        "length": [50.0, 50.0, 50.0],
        "headline": ["The coach of a team in the league", "Bank profit and inflation", None],
    }
    seen = scale(new)
    assert torch.equal(seen[:2, :64], hashed([str(text) for text in new["headline"][:2]], 64).float())
    assert not seen[2, :64].any()  # a missing text has no words
    said = result.predict("p0", new)
    assert result.class_names is not None
    assert [result.class_names[label] for label in said[:2]] == ["sport", "money"]


def test_predict_and_assign_on_the_command_line(tmp_path: Path) -> None:
    place, run = news(tmp_path, numbers=False), tmp_path / "run"
    words = ["run", "data.name=csv", f"data.path={place}", "data.y=topic", "data.client=paper", "model.name=linear"]
    words += ["method.name=fedavg", "rounds=4", "local.lr=0.5", "local.epochs=3", "--out", str(run)]
    assert CliRunner().invoke(app, words).exit_code == 0
    unseen = rows("stranger", 20, 99)
    new = written(tmp_path / "new.csv", [[c, h, t] for c, h, _, t in unseen], ["paper", "headline", "topic"])
    out = tmp_path / "out.csv"
    found = CliRunner().invoke(app, ["predict", str(run), "--data", new, "--client", "p1", "--out", str(out)])
    assert found.exit_code == 0, found.output
    said = [row["prediction"] for row in csv.DictReader(out.read_text().splitlines())]
    assert np.mean([a == row[3] for a, row in zip(said, unseen, strict=True)]) >= 0.9
    placed = CliRunner().invoke(app, ["assign", str(run), "--data", new])
    assert placed.exit_code == 0, placed.output
    assert "stranger" in placed.output


def test_newcomers_whose_text_was_hashed_by_themselves(tmp_path: Path) -> None:
    read = CSV(news(tmp_path), y="topic", client="paper", text=("headline",), size=64)
    result = coterie.run(coterie.FedAvg(local=LOCAL), coterie.federate(read, seed=0), "linear", rounds=3)
    place = written(tmp_path / "late.csv", rows("late", 25, 7))
    late = CSV(place, y="topic", client="paper", text=("headline",), size=64)
    theirs = coterie.federate(late, seed=0)
    placed = result.admit(theirs)
    assert (placed.accuracy or 0) > 0.8
    other = coterie.federate(CSV(place, y="topic", client="paper", text=("headline",), size=32), seed=0)
    with raises("data-column-invalid", "text=headline and size=64"):
        result.admit(other)
    none = coterie.federate(CSV(place, y="topic", client="paper"), seed=0)
    with raises("data-column-unknown", "read it with text="):
        result.admit(none)


def test_an_exported_model_cannot_hash_and_says_so(tmp_path: Path) -> None:
    read = CSV(news(tmp_path, numbers=False), y="topic", client="paper")
    result = coterie.run(coterie.FedAvg(local=LOCAL), coterie.federate(read, seed=0), "linear", rounds=1)
    with raises("export-unsupported", "column 'headline' is text.*coterie predict or coterie api"):
        export(result, tmp_path / "model.onnx", cluster=0)


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    place = news(tmp_path)
    with raises("data-column-unknown", "data.text: .* has no 'heading'"):
        CSV(place, y="topic", client="paper", text=("heading",))()
    with raises("data-column-invalid", "is not an input"):
        CSV(place, y="topic", client="paper", text=("topic",))()
    with raises("data-column-invalid", "its words are hashed"):
        CSV(place, y="topic", client="paper", text=("headline",), categories=("headline",))()


def test_a_table_in_memory() -> None:
    table = [row for client in range(3) for row in rows(f"p{client}", 20, client)]
    frame = dict(zip(HEADER, map(list, zip(*table, strict=True)), strict=True))
    beside = from_frame(
        frame | {"length": [float(v) for v in frame["length"]]}, "topic", client="paper", text=["headline"]
    )
    assert beside.x.shape == (60, 513)
    alone = from_frame({k: v for k, v in frame.items() if k != "length"}, "topic", client="paper", size=16)
    assert alone.x.shape == (60, 16)


def test_holes_beside_text(tmp_path: Path) -> None:
    """The column after 64 stored numbers of text is the one that has the holes."""
    table = rows("p0", 20, 0) + rows("p1", 20, 1)
    table[0][2] = table[25][2] = ""
    read = CSV(written(tmp_path / "news.csv", table), y="topic", client="paper", text=("headline",), size=64)
    with pytest.warns(CoterieWarning, match="values are missing in 2 of 40 rows: length"):
        federation = coterie.federate(read, seed=0)
    assert federation.features is not None
    assert federation.features[64:] == ("length", "length missing")
    assert inputs_of(federation).isfinite().all()


def test_init_writes_the_option(tmp_path: Path) -> None:
    place, out = news(tmp_path), tmp_path / "news.yaml"
    found = CliRunner().invoke(app, ["init", place, "--client", "paper", "--target", "topic", "--out", str(out)])
    assert found.exit_code == 0, found.output
    assert yaml.safe_load(out.read_text())["data"]["text"] == ["headline"]
    assert "text      headline" in found.output
