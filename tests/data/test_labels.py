"""Labels or amounts: what is read how, what is warned of, and what is refused with what to write instead."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from conftest import raises
from coterie import Federation
from coterie.core.errors import CoterieWarning
from coterie.data.npz import NPZ
from coterie.data.table import CSV

SCORES = np.arange(40) * 2 + 10  # 40 different exam scores
X = np.arange(80, dtype=np.float32).reshape(40, 2)
LABELS = np.arange(40) % 3


def test_whole_numbers_that_look_like_amounts_are_warned_of_with_both_readings() -> None:
    with pytest.warns(CoterieWarning, match=r"40 different whole numbers from 10 to 88 .* classes .*task='regression'"):
        federation = Federation.from_arrays([(X, SCORES)])
    assert federation.kind == "classification"


def test_a_task_says_what_they_are_and_silences_the_warning() -> None:
    amounts = Federation.from_arrays([(X, SCORES)], task="regression")
    assert (amounts.kind, amounts.outputs, amounts.domains[0].y.dtype) == ("regression", 1, torch.float32)
    assert Federation.from_arrays([(X, SCORES)], task="classification").outputs == 89
    whole = Federation.from_arrays([(X, LABELS.astype(np.float64))], task="classification")
    assert (whole.kind, whole.outputs) == ("classification", 3)
    assert Federation.from_arrays([(X, SCORES)], outputs=100).outputs == 100
    with raises("data-labels", match=r"client 0: 0\.5 is not a class; .* task='regression'"):
        Federation.from_arrays([(X, LABELS + 0.5)], task="classification")
    with raises("argument-invalid", match="task is 'classification' or 'regression', not 'ordinal'"):
        Federation.from_arrays([(X, LABELS)], task="ordinal")  # type: ignore[arg-type]


@pytest.mark.parametrize("classes", [2, 10, 26])
def test_ordinary_labels_are_taken_without_a_word(classes: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        many = np.arange(classes * 60) % classes
        Federation.from_arrays([(np.zeros((len(many), 2), dtype=np.float32), many)])


def test_a_table_and_an_npz_file_of_scores_warn_too(tmp_path: Path) -> None:
    rows = [f"{a},{b},{score}" for (a, b), score in zip(X, SCORES, strict=True)]
    (tmp_path / "exam.csv").write_text("\n".join(["a,b,score", *rows]))
    with pytest.warns(CoterieWarning, match=r"column 'score'.*task: regression"):
        CSV(path=str(tmp_path / "exam.csv"), y="score")()
    assert CSV(path=str(tmp_path / "exam.csv"), y="score", task="regression")().kind == "regression"
    np.savez(tmp_path / "exam.npz", x=X, y=SCORES)
    with pytest.warns(CoterieWarning, match="array 'y'"):
        NPZ(path=str(tmp_path / "exam.npz"))()
    assert NPZ(path=str(tmp_path / "exam.npz"), task="regression")().kind == "regression"


def test_one_hot_labels_and_probabilities_are_named_as_such(tmp_path: Path) -> None:
    hot = np.eye(3)[LABELS]
    soft = np.full((40, 4), 0.25)
    for y, what in ((hot, "one-hot labels"), (hot.astype(int), "one-hot labels"), (soft, "outputs of a softmax")):
        with raises("data-labels", match=rf"client 0: these are .*{what}.*; give .*y\.argmax"):
            Federation.from_arrays([(X, y)])
        np.savez(tmp_path / "hot.npz", x=X, y=y)
        with raises("data-labels", match=what):
            NPZ(path=str(tmp_path / "hot.npz"))()
    assert Federation.from_arrays([(X, soft)], task="regression").outputs == 4
    assert Federation.from_arrays([(X, soft * 2)]).outputs == 4


def test_labels_from_one_are_asked_about() -> None:
    with raises("data-labels", match=r"outside 0\.\.2; .*Do yours start at 1\?"):
        Federation.from_arrays([(X, LABELS + 1)], outputs=3).check()
    with (
        pytest.warns(CoterieWarning, match="class 0 has no samples"),
        raises("model-shape", match=r"only 3 outputs \(0\.\.2\)\. Do your labels start at 1\?"),
    ):
        coterie.run("fedavg", [(X, LABELS + 1)], lambda: nn.Linear(2, 3), rounds=1)
    with raises("data-labels") as caught:
        Federation.from_arrays([(X, LABELS + 7)], outputs=3).check()
    assert "start at 1" not in str(caught.value)


def test_labels_from_one_are_asked_about_where_nothing_says_how_many_classes_there_are(tmp_path: Path) -> None:
    asked = "from 1 to 3 and are taken for 4 classes, .* Do yours start at 1"
    with pytest.warns(CoterieWarning, match=asked):
        assert Federation.from_arrays([(X, LABELS + 1)]).outputs == 4
    np.savez(tmp_path / "one.npz", x=X, y=LABELS + 1)
    with pytest.warns(CoterieWarning, match=asked):
        NPZ(path=str(tmp_path / "one.npz"))()
    assert Federation.from_arrays([(X, LABELS + 1)], task="classification").outputs == 4  # no warning
    assert Federation.from_arrays([(X, LABELS * 2)]).outputs == 5


def test_a_network_that_ends_in_a_softmax_is_told() -> None:
    def softmaxed() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 3), nn.Softmax(1))

    with pytest.warns(CoterieWarning, match="outputs are probabilities that sum to 1"):
        coterie.run("fedavg", [(X, LABELS)], softmaxed, rounds=1)


def test_names_and_standardise() -> None:
    clients: list[Any] = [(X, LABELS, X[:4] + 100, LABELS[:4]), (X + 40, LABELS, X[:4], LABELS[:4])]
    federation = Federation.from_arrays(clients, names=["a", "b"], standardise=True)
    assert federation.names == ("a", "b")
    seen = torch.cat([federation.samples(client, "train")[0] for client in (0, 1)]).double()
    assert torch.allclose(seen.mean(0), torch.zeros(2).double(), atol=1e-5)
    assert torch.allclose(seen.std(0, correction=0), torch.ones(2).double(), atol=1e-5)
    constant = Federation.from_arrays([(np.ones((4, 2), dtype=np.float32), np.array([0, 1, 0, 1]))], standardise=True)
    assert not constant.samples(0, "train")[0].any()
    for names, said in ((["a"], "1 names for 2 clients"), (["a", "a"], "two clients are called 'a'")):
        with raises("client-names", match=said):
            Federation.from_arrays(clients, names=names)
