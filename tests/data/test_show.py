"""Pictures of federations: what is drawn, for whom, and the same file every time."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from conftest import raises
from coterie import Federation, federate
from coterie.data import Classes, Mixture, Rotated, SyntheticRegression
from coterie.data.federation import Domain, Ragged
from coterie.data.plots import BARS, COLOURS, EACH, SHEET, _labels, _row, _sheet, colours, counts, draw


def grid(table: list[list[int]], shape: tuple[int, ...] = (3,), **fields: Any) -> Federation:
    """A federation by its counts: client i has table[i][c] samples of label c, the last of each label to test on."""
    labels: list[int] = []
    train: list[list[int]] = []
    test: list[list[int]] = []
    for hand in table:
        train.append([])
        test.append([])
        for label, many in enumerate(hand):
            rows = list(range(len(labels), len(labels) + many))
            train[-1] += rows[:-1]
            test[-1] += rows[-1:]
            labels += [label] * many
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(len(labels), *shape))).float()
    domain = Domain(x, torch.tensor(labels))
    return Federation((domain,), Ragged.of(train), Ragged.of(test), outputs=len(table[0]), **fields)


TABLE = [[4, 2, 0], [2, 0, 5], [3, 3, 3], [0, 6, 2]]


def heights(axes: Any) -> NDArray[np.float64]:
    """(bars from left to right, parts from the foot up) of a stacked picture."""
    return np.array([[bar.get_height() for bar in part] for part in axes.containers]).T


def legend(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts]


# ---------------------------------------------------------------------------------------------------------- the files


def test_the_pictures_are_written_as_png_and_svg_where_they_are_wanted(tmp_path: Path) -> None:
    written = draw(grid(TABLE, (1, 4, 4)), tmp_path / "new" / "place", "mine")
    names = ["mine-labels.png", "mine-labels.svg", "mine-samples.png", "mine-samples.svg"]
    assert [path.name for path in written] == names
    assert sorted(path.name for path in (tmp_path / "new" / "place").iterdir()) == names
    for path in written:
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml"), path
        assert path.stat().st_size > 2_000


@pytest.mark.exhaustive
def test_the_same_federation_gives_the_same_bytes(tmp_path: Path) -> None:
    """With clusters and a mixture, so that everything there is to draw is drawn."""
    mixed = Mixture(clients=2, pattern="10:90")
    for place in ("one", "two"):
        draw(federate("digits", mixed), tmp_path / place)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name
        assert b"<dc:date>" not in path.read_bytes()
    for table, place in ((TABLE, "three"), (TABLE[::-1], "four")):
        draw(grid(table), tmp_path / place)
    other, another = (tmp_path / place / "data-labels.svg" for place in ("three", "four"))
    assert other.read_bytes() != another.read_bytes()


def test_flat_features_have_no_contact_sheet(tmp_path: Path) -> None:
    written = draw(grid(TABLE), tmp_path)
    assert [path.name for path in written] == ["data-labels.png", "data-labels.svg"]
    assert _sheet(grid(TABLE)) is None
    assert _sheet(grid(TABLE, (2, 4, 4))) is None  # two channels are no picture


def test_drawing_changes_no_setting_of_the_user(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw(grid(TABLE), tmp_path)
    assert dict(matplotlib.rcParams) == before


def test_without_matplotlib_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # importing it is an ImportError
    with raises("extra-missing", match=r"pip install 'coterie\[plot\]'"):
        draw(grid(TABLE), tmp_path / "pictures")
    assert not (tmp_path / "pictures").exists()


# --------------------------------------------------------------------------------------------------- labels per client


def test_counts_are_those_of_training_and_test_together() -> None:
    assert counts(grid(TABLE)).tolist() == TABLE


def test_classes_that_have_names_are_called_by_them() -> None:
    names = ("Iris setosa", "a name that is much longer than a legend has room for", "$_odd")
    figure = _labels(replace(grid(TABLE), class_names=names))
    assert legend(figure.axes[0]) == ["Iris setosa", "a name that is much longer th…", r"\$_odd"]


def test_a_bar_per_client_has_a_part_per_label() -> None:
    figure = _labels(grid(TABLE))
    (axes,) = figure.axes
    assert heights(axes).tolist() == TABLE
    # Parts stand on each other: client 2 has three of each, so its parts begin at 0, 3 and 6.
    assert [part[2].get_y() for part in axes.containers] == [0, 3, 6]
    assert [part[0].get_facecolor() for part in axes.containers] == [_rgba(colour) for colour in COLOURS[:3]]
    assert legend(axes) == ["0", "1", "2"]
    assert axes.get_legend().get_title().get_text() == "label"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("clients", "samples")
    assert len(axes.get_xticks()) == 0
    assert figure.get_suptitle().replace("\n", " ") == grid(TABLE).describe()
    assert not axes.lines
    assert not axes.texts


def _rgba(colour: Any) -> Any:
    from matplotlib.colors import to_rgba

    return to_rgba(colour)


def test_labels_are_counted_as_the_clients_call_them() -> None:
    """All have labels 0, 0, 1; those of the second domain call 0 what was 1 and 1 what was 0."""
    x, y = torch.zeros(3, 2), torch.tensor([0, 0, 1])
    domains = (Domain(x, y), Domain(x, y, relabel=torch.tensor([1, 0])))
    made = Federation(domains, Ragged.of([[0, 1], [3, 4]]), Ragged.of([[2], [5]]), outputs=2)
    assert heights(_labels(made).axes[0]).tolist() == [[2, 1], [1, 2]]


def test_clients_stand_cluster_by_cluster_with_a_line_between() -> None:
    """Clusters 1 0 1 0: first clients 1 and 3, then 0 and 2; the line is between places 1 and 2."""
    axes = _labels(grid(TABLE, truth=np.array([1, 0, 1, 0]))).axes[0]
    assert heights(axes).tolist() == [TABLE[1], TABLE[3], TABLE[0], TABLE[2]]
    assert [line.get_xdata()[0] for line in axes.lines] == [1.5]
    assert [(text.get_position()[0], text.get_text()) for text in axes.texts] == [(0.5, "0"), (2.5, "1")]
    assert axes.get_xlabel() == "clients; true clusters above"


def test_of_very_many_clients_some_are_drawn_evenly_and_that_is_said() -> None:
    """Of 1,000, 400 from the first to the last: two or three apart; both clusters have 200."""
    many = grid([[1 + c % 3, 2] for c in range(1000)], truth=np.repeat([0, 1], 500))
    row = _row(many, BARS)
    assert len(row.clients) == BARS == 400
    assert (row.clients[0], row.clients[-1]) == (0, 999)
    assert set(np.diff(row.clients).tolist()) == {2, 3}
    assert row.borders == [200]
    axes = _labels(many).axes[0]
    assert heights(axes)[:, 0].tolist() == [1 + c % 3 for c in row.clients.tolist()]
    assert axes.get_xlabel() == "clients; 400 of 1,000 clients drawn; true clusters above"


def test_as_many_clients_as_there_is_room_for_are_all_drawn() -> None:
    few = grid([[2, 2]] * BARS)
    assert _row(few, BARS).clients.tolist() == list(range(BARS))
    assert _labels(few).axes[0].get_xlabel() == "clients"


def test_many_labels_have_as_many_colours() -> None:
    assert colours(10) == list(COLOURS)
    assert len({tuple(colour) for colour in colours(62)}) == 62
    axes = _labels(grid([[2] * 62, [3] * 62])).axes[0]
    assert legend(axes) == [str(c) for c in range(62)]


# ---------------------------------------------------------------------------------------- mixtures and regressions


def test_the_true_mixture_is_drawn_below_the_samples() -> None:
    """Without halves (linear) clients go by how much they have of distribution 0, most first."""
    mixture = np.array([[0.2, 0.8], [0.9, 0.1], [0.5, 0.5], [0.4, 0.6]])
    figure = _labels(grid(TABLE, mixture=mixture))
    upper, lower = figure.axes
    order = [1, 2, 3, 0]
    assert heights(upper).tolist() == [TABLE[c] for c in order]
    np.testing.assert_allclose(heights(lower), mixture[order])
    assert legend(lower) == ["distribution 0", "distribution 1"]
    assert (lower.get_ylabel(), lower.get_xlabel(), upper.get_xlabel()) == ("true mixture", "clients", "")
    assert "mixtures of 2 distributions" in figure.get_suptitle().replace("\n", " ")


def test_mixtures_of_three_go_by_what_they_have_most_of() -> None:
    """Most of distribution 0: clients 2 (0.8), 0 (0.5); of 1: client 3; of 2: client 1."""
    mixture = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.8, 0.1, 0.1], [0.2, 0.6, 0.2]])
    assert _row(grid(TABLE, mixture=mixture), BARS).clients.tolist() == [2, 0, 3, 1]


def test_halves_of_a_mixture_are_parted_in_both_pictures() -> None:
    figure = _labels(federate("digits", Mixture(clients=6, pattern="30:70")))
    for axes in figure.axes:
        assert [line.get_xdata()[0] for line in axes.lines] == [2.5]
    np.testing.assert_allclose(heights(figure.axes[1])[:, 0], [0.3, 0.3, 0.3, 0.7, 0.7, 0.7])


def test_a_regression_shows_how_many_samples_there_are(tmp_path: Path) -> None:
    made = federate(SyntheticRegression(clients=5, clusters=2))
    axes = _labels(made).axes[0]
    assert heights(axes)[:, 0].tolist() == (made.train.lengths + made.test.lengths).tolist()
    assert legend(axes) == ["samples"]
    assert axes.get_legend().get_title().get_text() == ""
    assert len(draw(made, tmp_path)) == 2


# --------------------------------------------------------------------------------------------------- the contact sheet


def test_a_row_per_client_shows_its_samples_and_labels_from_first_to_last() -> None:
    """Client 1 trains on [0, 2, 2, 2, 2] (the last of each label is to test on): all five are shown, in order."""
    made = grid(TABLE, (1, 4, 4), name="four", names=("ann", "bob", "cem", "dora"))
    figure = _sheet(made)
    rows = np.array(figure.axes).reshape(4, EACH)
    assert figure.get_suptitle() == "four"
    assert [texts(line[0]) for line in rows] == [[f"client {name}"] for name in ("ann", "bob", "cem", "dora")]
    assert [axes.get_title() for axes in rows[1]] == ["0", "2", "2", "2", "2", *[""] * 5]
    assert [len(axes.images) for axes in rows[1]] == [1] * 5 + [0] * 5
    # Pixels are stretched from the sample's least to its greatest; grey has no third axis.
    x, _ = made.samples(1, "train")
    shown = rows[1][0].images[0].get_array()
    assert shown.shape == (4, 4)
    expected = (x[0, 0] - x[0].min()) / (x[0].max() - x[0].min())
    np.testing.assert_allclose(np.asarray(shown), expected.numpy(), rtol=1e-5)


def test_a_client_with_many_samples_shows_all_its_labels() -> None:
    """100 of label 0 and 20 of label 1: ten, evenly, of which the last two have label 1."""
    made = grid([[101, 21], [2, 2]], (3, 5, 5))
    rows = np.array(_sheet(made).axes).reshape(2, EACH)
    assert [axes.get_title() for axes in rows[0]] == ["0"] * 8 + ["1"] * 2
    assert rows[0][0].images[0].get_array().shape == (5, 5, 3)  # colours last


def test_a_sheet_names_clusters_and_has_a_dozen_clients_at_most() -> None:
    made = federate("digits", Rotated(clients=40, angles=(0.0, 90.0)))
    rows = np.array(_sheet(made).axes).reshape(SHEET, EACH)
    said = [texts(line[0])[0] for line in rows]
    assert said[0] == "client 0\ncluster 0"
    assert said[-1] == "client 39\ncluster 1"
    assert [line.endswith("cluster 1") for line in said] == [False] * 6 + [True] * 6


def test_clients_are_seen_as_they_see(tmp_path: Path) -> None:
    """Turned clients' digits are drawn turned."""
    made = federate("digits", Rotated(clients=2, angles=(0.0, 90.0)))
    rows = np.array(_sheet(made).axes).reshape(2, EACH)
    x, y = made.samples(1, "train")
    first = int(np.argsort(y.numpy(), kind="stable")[0])
    np.testing.assert_allclose(rows[1][0].images[0].get_array() * float(x[first].max()), x[first, 0].numpy(), atol=1e-6)


def test_signals_are_drawn_as_curves_and_targets_as_numbers() -> None:
    made = grid([[4, 3]], (2, 16))
    rows = np.array(_sheet(made).axes).reshape(1, EACH)
    x, _ = made.samples(0, "train")
    assert [len(axes.lines) for axes in rows[0]] == [2] * 5 + [0] * 5
    np.testing.assert_allclose(rows[0][0].lines[1].get_ydata(), x[0, 1].numpy())
    domain = dataclasses.replace(made.domains[0], y=torch.linspace(0.0, 6.0, 7)[:, None])
    targets = dataclasses.replace(made, domains=(domain,), kind="regression", outputs=1)
    rows = np.array(_sheet(targets).axes).reshape(1, EACH)
    assert [axes.get_title() for axes in rows[0]] == ["0", "1", "2", "4", "5", *[""] * 5]


def test_a_picture_of_one_colour_is_no_division_by_zero(tmp_path: Path) -> None:
    made = grid([[3, 3]], (1, 4, 4))
    flat = dataclasses.replace(made, domains=(Domain(torch.zeros(6, 1, 4, 4), made.domains[0].y),))
    assert len(draw(flat, tmp_path)) == 4


def test_partitions_without_clusters_are_drawn_in_order(tmp_path: Path) -> None:
    made = federate("digits", Classes(clients=5, n=2))
    axes = _labels(made).axes[0]
    assert ((heights(axes) > 0).sum(1) <= 2).all()
    assert "true clusters" not in axes.get_xlabel()
