"""Figures hold the run's numbers: every trace is checked against the hand-written run of runs.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs

from coterie.core.metrics import mixture_error
from coterie.tools.report import figures, ranking
from coterie.tools.report import figures_style as style
from coterie.tools.report.figures_clusters import busiest, cosines, match_components, middles, on_a_plane
from coterie.tools.report.figures_rounds import in_bytes, large_clusters, score, spans_decades
from coterie.tools.report.figures_runs import compare_curves, pool
from coterie.tools.report.figures_style import plain, thin
from coterie.tools.report.record import RunRecord, read_run


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    return read_run(runs.write(tmp_path / "run"))


def traces(figure: Any) -> dict[str, Any]:
    """By name; figures that cannot be made into JSON are of no use."""
    json.loads(figure.to_json())
    return {trace.name: trace for trace in figure.data}


def numbers(values: Any) -> list[float]:
    return [float(value) for value in values]


def test_accuracy_overall_per_cluster_and_spread(record: RunRecord) -> None:
    found = traces(figures.score(record, "accuracy"))
    assert numbers(found["all clients"].x) == [1, 3]
    assert numbers(found["all clients"].y) == [0.5, 0.75]
    np.testing.assert_allclose(found["cluster 0"].y, [0.5, 0.75])  # (0.5 + 0.25 + 0.75) / 3, (1 + 0.5) / 2
    np.testing.assert_allclose(found["cluster 1"].y, [0.5, 0.75])  # of client 3, then of client 2 alone
    np.testing.assert_allclose(found["middle 80 % of clients"].y[0], np.quantile([0.5, 0.25, 0.75, 0.5], 0.9))
    assert found["cluster 0"].line.dash != found["cluster 1"].line.dash
    assert found["cluster 0"].line.color != found["cluster 1"].line.color


def test_every_figure_is_complete(record: RunRecord) -> None:
    pictures = {picture.name: picture for picture in figures.of_run(record)}
    assert set(pictures) == {kind.name for kind in figures.KINDS} - {"mixtures", "epsilon", "epsilon-clients"}
    for name, picture in pictures.items():
        layout = picture.figure.layout
        assert layout.title.text, name
        assert len(picture.words) > 20, name
        assert layout.height, name
        if name != "moves":  # streams have no axes
            assert layout.xaxis.title.text or layout.xaxis2.title.text, name
            assert layout.yaxis.title.text, name


def test_dark_differs_from_light_in_the_template_alone(record: RunRecord) -> None:
    for light, dark in zip(figures.of_run(record, "light"), figures.of_run(record, "dark"), strict=True):
        one, other = light.figure.to_plotly_json(), dark.figure.to_plotly_json()
        assert one["layout"].pop("template") != other["layout"].pop("template")
        assert json.dumps(one, default=str) == json.dumps(other, default=str)


def test_macro_f1_and_loss(record: RunRecord) -> None:
    assert numbers(traces(figures.score(record, "macro_f1"))["all clients"].y) == [0.4, 0.7]
    loss = traces(figures.score(record, "loss"))
    assert numbers(loss["all clients"].y) == [1.0, 0.5]
    assert set(loss) == {"all clients"}


def test_sizes_are_counted_from_the_trace(record: RunRecord) -> None:
    found = traces(figures.sizes(record))
    assert numbers(found["cluster 0"].y) == [3, 2]
    assert numbers(found["cluster 1"].y) == [1, 2]
    assert found["cluster 0"].stackgroup == found["cluster 1"].stackgroup


def test_many_clusters_are_drawn_together(tmp_path: Path) -> None:
    trace: list[dict[str, Any]] = [{"ids": list(range(30))}, {"round": 1, "cluster": [min(c, 25) for c in range(30)]}]
    found = traces(figures.sizes(read_run(runs.write(tmp_path, trace=trace))))
    assert len(found) == 11
    assert "cluster 25" in found
    assert numbers(found["16 other clusters"].y) == [16]


def test_moves_are_streams_between_rounds(record: RunRecord) -> None:
    link, node = figures.moves(record).data[0].link, figures.moves(record).data[0].node
    streams = {
        (node.customdata[s], node.customdata[t]): v
        for s, t, v in zip(link.source, link.target, link.value, strict=True)
    }
    assert streams == {
        ("cluster 0, round 1", "cluster 0, round 3"): 2,
        ("cluster 0, round 1", "cluster 1, round 3"): 1,
        ("cluster 1, round 1", "cluster 1, round 3"): 1,
    }


def test_nodes_of_moves_stand_below_each_other_and_within_the_figure() -> None:
    found = middles(np.array([[30.0, 10.0, 0.0], [5.0, 5.0, 30.0]]))
    # Two gaps of 8 in 340 pixels leave 324 for 40 clients: 8.1 each.
    np.testing.assert_allclose(found[0, :2] * 340, [15 * 8.1, 30 * 8.1 + 8 + 5 * 8.1])
    np.testing.assert_allclose(found[1] * 340, [2.5 * 8.1, 7.5 * 8.1 + 8, 25 * 8.1 + 16])


def test_clients_that_were_not_there_do_not_move(tmp_path: Path) -> None:
    trace: list[dict[str, Any]] = [{"ids": [0, 1, 2, 3]}]
    trace += [{"round": 1, "cluster": [0, -1, 0, 1]}, {"round": 2, "cluster": [-1, 1, 0, 1]}]
    assert figures.moves(read_run(runs.write(tmp_path, trace=trace))) is None


def test_rounds_of_moves_are_around_the_largest_moves() -> None:
    assert busiest(np.array([1, 0, 2])).tolist() == [0, 1, 2, 3]
    moved = np.zeros(99, dtype=np.int64)
    moved[[20, 60, 80]] = 3, 5, 4
    assert busiest(moved).tolist() == [0, 60, 61, 81, 99]  # before and after the largest, after the next


def test_confusion_puts_matching_clusters_on_the_diagonal(tmp_path: Path) -> None:
    clients = [
        runs.CLIENTS[0] | {"client": c, "hidden": h, "cluster": k}
        for c, (h, k) in enumerate([(0, 5), (0, 5), (0, 2), (1, 2), (1, 2)])
    ]
    heat = figures.confusion(read_run(runs.write(tmp_path, clients=clients))).data[0]
    assert list(heat.x) == ["5", "2"]
    assert list(heat.y) == ["0", "1"]
    np.testing.assert_array_equal(heat.z, [[2, 1], [0, 2]])


def test_agreement_and_heterogeneity(record: RunRecord) -> None:
    assert numbers(traces(figures.agreement(record))["ARI"].y) == [0.2, 1.0]
    assert numbers(traces(figures.agreement(record))["NMI"].y) == [0.3, 1.0]
    found = traces(figures.heterogeneity(record))
    assert numbers(found["clusterability B"].y) == [2.0, 1.0]
    assert numbers(found["discrepancy"].y) == [0.5, 0.25]
    assert found["clusterability B"].yaxis != found["discrepancy"].yaxis


def test_cost(record: RunRecord) -> None:
    bytes_ = traces(figures.traffic(record))
    assert numbers(bytes_["to clients"].y) == [4.0, 4.0, 4.0]
    assert numbers(bytes_["from clients"].y) == [3.0, 4.0, 4.0]
    assert figures.traffic(record).layout.yaxis.title.text == "sent (kB)"
    took = traces(figures.seconds(record))
    assert numbers(took["clients' work"].y) == [1.5, 0.75, 0.75]
    assert numbers(took["server's work"].y) == [0.5, 0.25, 0.25]
    assert in_bytes(104_000) == "104 kB"
    assert in_bytes(999) == "999 bytes"


def test_missing_by_reason(tmp_path: Path) -> None:
    away = [
        {"client": 1, "reason": "<b>late</b>"},
        {"client": 2, "reason": "asleep"},
        {"client": 3, "reason": "asleep"},
    ]
    rounds = [runs.ROUNDS[0], runs.ROUNDS[1], runs.ROUNDS[2] | {"missing": away}]
    record = read_run(runs.write(tmp_path, rounds=rounds))
    found = traces(figures.missing(record))
    assert numbers(found["asleep"].y) == [1, 0, 2]
    assert numbers(found["&lt;b&gt;late&lt;/b&gt;"].y) == [0, 0, 1]
    first, second = figures.missing_reasons(record)
    assert (first.reason, first.times, first.clients, first.first_round, first.first_client) == ("asleep", 3, 2, 1, 3)
    assert (second.reason, second.times) == ("<b>late</b>", 1)


def test_missing_of_a_long_run_are_means_of_a_few_rounds(tmp_path: Path) -> None:
    away = [{"client": 1, "reason": "asleep"}]
    rounds = [runs.ROUNDS[2] | {"round": r, "missing": away * (r <= 3)} for r in range(1, 302)]
    figure = figures.missing(read_run(runs.write(tmp_path, rounds=rounds)))
    bars = traces(figure)["asleep"]
    assert numbers(bars.x) == list(range(1, 302, 3))
    assert numbers(bars.y) == [1.0] + [0.0] * 100
    assert figure.layout.yaxis.title.text == "clients, mean of 3 rounds"


def test_similarity_is_the_cosine_after_the_mean_is_taken_off(record: RunRecord) -> None:
    heat = figures.client_similarity(record).data[0]
    assert list(heat.x) == ["0", "1", "2", "3"]
    np.testing.assert_allclose(heat.z, [[1, 1, -1, -1], [1, 1, -1, -1], [-1, -1, 1, 1], [-1, -1, 1, 1]], atol=1e-6)
    np.testing.assert_allclose(figures.center_similarity(record).data[0].z, [[1, -1], [-1, 1]], atol=1e-6)
    # 3 and 1 have the mean 2; a row without direction is like none.
    np.testing.assert_allclose(cosines(np.array([[3.0, 4.0], [4.0, 3.0], [0.0, 0.0]]))[0], [1.0, 0.96, 0.0])


def test_map_shows_every_client_once_with_its_cluster_and_score(record: RunRecord) -> None:
    figure = figures.model_map(record)
    found = traces(figure)
    about = {row[0]: row for name in ("cluster 0", "cluster 1") for row in found[name].customdata}
    assert sorted(about) == [0, 1, 2, 3]
    assert about[2][2:] == [0.75, 1]
    assert "PCA" in figure.layout.xaxis.title.text
    # On a line: clients 0 and 1 on one side, 2 and 3 on the other.
    assert np.sign(found["cluster 0"].x).tolist() == (-np.sign(found["cluster 1"].x)).tolist()


def test_clients_that_were_never_evaluated_are_no_cluster(tmp_path: Path) -> None:
    """Clients 0 and 3, whose models point in opposite ways, are of no known cluster: that is not one they share."""
    clients = [row | {"cluster": -1 if row["client"] in (0, 3) else row["cluster"]} for row in runs.CLIENTS]
    trace = [runs.TRACE[0], runs.TRACE[1] | {"cluster": [-1, 0, 1, -1]}]
    record = read_run(runs.write(tmp_path, trace=trace, clients=clients))
    assert "2 clients in 2 found clusters and 2 clients of no known one" in style.words(figures.model_map(record))
    said = style.words(figures.client_similarity(record))
    assert "no two clients share a cluster and -1.00 between them" in said


def test_a_client_that_is_not_evaluated_in_the_end_is_where_it_was_last_seen(tmp_path: Path) -> None:
    clients = [row | {"cluster": -1 if row["client"] == 3 else row["cluster"]} for row in runs.CLIENTS]
    record = read_run(runs.write(tmp_path, clients=clients))
    assert "4 clients in 2 found clusters;" in style.words(figures.model_map(record))


def test_map_of_many_clients_keeps_clusters_together() -> None:
    rng = np.random.default_rng(0)
    centers = np.eye(3)[np.arange(60) % 3]
    flat, way = on_a_plane(centers + rng.normal(0, 0.05, (60, 3)))
    assert way == "t-SNE"
    near = np.linalg.norm(flat[:, None] - flat[None], axis=2) + 1e9 * np.eye(60)
    assert (near.argmin(1) % 3 == np.arange(60) % 3).all()


def test_clients_that_never_trained_are_not_on_the_map(tmp_path: Path) -> None:
    import safetensors.numpy as safetensors

    path = runs.write(tmp_path)
    arrays = safetensors.load_file(path / "sketch.safetensors")
    arrays["round"] = np.array([3, 3, 0, 1])
    safetensors.save_file(arrays, path / "sketch.safetensors")
    assert list(figures.client_similarity(read_run(path)).data[0].x) == ["0", "1", "3"]
    arrays["round"] = np.zeros(4, dtype=np.int64)
    safetensors.save_file(arrays, path / "sketch.safetensors")
    assert figures.model_map(read_run(path)) is None


def test_similarity_takes_clients_evenly(tmp_path: Path) -> None:
    record = read_run(runs.write_large(tmp_path, clients=80, rounds=3, clusters=4))
    heat = figures.client_similarity(record, most=20).data[0]
    assert len(heat.x) == 20
    assert sorted({int(name.removeprefix("clinic ")) % 4 for name in heat.x}) == [0, 1, 2, 3]


def test_mixtures_are_matched_as_the_metric_matches_them(tmp_path: Path) -> None:
    truth = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5], [0.7, 0.3]])
    found = truth[:, ::-1] + np.array([0.05, -0.05])
    pairs, error = match_components(truth, found)
    assert pairs == [(0, 1), (1, 0)]
    assert error == pytest.approx(mixture_error(truth, found))
    clients = [
        row | {"mixture": t.tolist(), "shares": f.tolist()}
        for row, t, f in zip(runs.CLIENTS, truth, found, strict=True)
    ]
    trace = traces(figures.mixtures(read_run(runs.write(tmp_path, clients=clients))))
    np.testing.assert_allclose(trace["distribution 0 as component 1"].x, truth[:, 0])
    np.testing.assert_allclose(trace["distribution 0 as component 1"].y, found[:, 1])


def test_nothing_to_show_is_none(tmp_path: Path) -> None:
    record = read_run(tmp_path)
    assert figures.of_run(record) == []
    assert figures.of_runs([record, record]) == []
    one = [runs.TRACE[0], {"round": 1, "cluster": [0] * 4}, {"round": 3, "cluster": [0] * 4}]
    alone = read_run(runs.write(tmp_path / "one", trace=one))
    assert figures.sizes(alone) is None
    assert figures.moves(alone) is None


def test_seeds_are_pooled(tmp_path: Path) -> None:
    records = [read_run(runs.score_only(tmp_path / str(s), a, s)) for s, a in enumerate((0.7, 0.8, 0.9))]
    (group,) = ranking.group(records)
    pooled = pool(group, "accuracy")
    assert pooled is not None
    np.testing.assert_allclose(pooled.mean, [0.5, 0.8])
    np.testing.assert_allclose(pooled.std, [0.0, 0.1], atol=1e-12)
    curve = traces(figures.compare_curves([group], "accuracy"))["wecfl (3 seeds)"]
    np.testing.assert_allclose(curve.y, [0.5, 0.8])
    final = traces(figures.final_scores([group], "accuracy"))
    assert numbers(final["wecfl"].x) == [0.7, 0.8, 0.9]
    assert numbers(final["mean over seeds"].x) == pytest.approx([0.8])


def test_seed_that_was_stopped_early_leaves_no_spread_behind(tmp_path: Path) -> None:
    runs.score_only(tmp_path / "0", 0.7, 0)
    runs.write(tmp_path / "1", runs.config(1), rounds=runs.ROUNDS[:1])
    pooled = pool(ranking.group([read_run(tmp_path / "0"), read_run(tmp_path / "1")])[0], "accuracy")
    assert pooled is not None
    assert pooled.round.tolist() == [1, 3]
    np.testing.assert_allclose(pooled.mean, [0.5, 0.7])
    np.testing.assert_array_equal(pooled.std, [0.0, np.nan])


def test_sizes_of_runs_side_by_side(tmp_path: Path) -> None:
    records = [
        read_run(runs.score_only(tmp_path / "a", 0.7, 0)),
        read_run(runs.score_only(tmp_path / "b", 0.7, 0, k=3)),
    ]
    found = traces(figures.compare_sizes(ranking.group(records)))
    assert numbers(found["largest"].x) == [2, 2]
    assert numbers(found["2nd largest"].x) == [2, 2]
    assert len(set(found["largest"].y)) == 2


def test_words_from_files_are_plain() -> None:
    assert plain("<script>alert(1)</script>\n x") == "&lt;script&gt;alert(1)&lt;/script&gt; x"
    assert len(plain("y" * 500)) == 80


def test_thinning_keeps_both_ends() -> None:
    assert thin(5, 10).tolist() == [0, 1, 2, 3, 4]
    some = thin(10_000, 600)
    assert (len(some), some[0], some[-1]) == (600, 0, 9999)
    assert thin(0).tolist() == []


@pytest.mark.parametrize("sign", [style.pattern, style.dash, style.symbol])
def test_clusters_that_share_a_colour_differ_in_hatching_dashes_and_signs(sign: Callable[[int], str]) -> None:
    looks = [(style.colour(k), sign(k)) for k in range(5 * len(style.COLOURS))]
    assert len(set(looks)) == len(looks)
    assert len(set(style.COLOURS)) > style.CLUSTERS  # so many are drawn one by one
    assert style.colour(style.OTHERS) not in style.COLOURS


def test_a_single_smaller_cluster_is_drawn_itself() -> None:
    kept, others = large_clusters(np.array([[0, 0, 1, 1, 2]]), most=2)
    assert (kept.tolist(), others) == ([0, 1, 2], 0)


def test_heterogeneity_is_told_as_its_curves_go(record: RunRecord) -> None:
    said = figures.words(figures.heterogeneity(record))
    assert "from 2 to 1. B tends to rise as training converges" in said
    assert "went from 0.5 to 0.25; the smaller, the more alike." in said


def test_largest_clusters_by_number() -> None:
    kept, others = large_clusters(np.array([[3, 3, 1, -1], [3, 2, 1, 7]]), most=2)
    assert (kept.tolist(), others) == ([1, 3], 2)


def test_a_loss_over_more_than_three_decades_has_a_logarithmic_axis(tmp_path: Path) -> None:
    def drawn(first: float) -> list[Any]:
        rounds = [runs.ROUNDS[0] | {"loss": first}, runs.ROUNDS[2] | {"loss": 1.0}]
        record = read_run(runs.write(tmp_path / str(first), rounds=rounds))
        groups = ranking.group([record])
        return [score(record, "loss").layout.yaxis.type, compare_curves(groups, "loss").layout.yaxis.type]

    assert drawn(999.0) == [None, None]
    assert drawn(1e26) == ["log", "log"]
    assert not spans_decades(np.array([0.0, 1e9]))  # there is no 0 on such an axis
