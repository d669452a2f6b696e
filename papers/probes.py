"""Measurements on a trained run, for tables that are not about the clients' own test data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.metrics import by_client
from coterie.core.model import Model
from coterie.core.references import All, OneRow, Pick, vectors_of
from coterie.core.registry import DATASETS
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import ByClient
from coterie.core.tasks import Evaluate
from coterie.data.federation import Federation
from coterie.data.sets.synthetic import SyntheticRegression
from coterie.methods.fedgroup import FedGroup
from coterie.methods.fedsoft import Soft
from coterie.methods.hard_clusters import Clusters
from coterie.methods.stocfl import Stochastic
from coterie.training.config import RunConfig
from coterie.training.result import Result
from papers.cell import Probe

FRESH = 1000  # samples of each distribution that FedSoft's centers are tested on


def look(probe: Probe, result: Result[Any], config: RunConfig) -> Mapping[str, Any]:
    """The numbers of a probe, by name."""
    match probe:
        case "":
            return {}
        case "centers":
            return centers_on_distributions(result, config)
        case "clusters":
            return clusters_on_tests(result, whole=False)
        case "clusters_on_all":
            return clusters_on_tests(result, whole=True)
        case "alike":
            return alike(result)
        case "tsne":
            return tsne(result)
        case "letters":
            return centers_on_domains(result)
        case "proximity":
            return proximity(result)
        case "majority":
            return majority(result, config)


def _accuracy(model: Model, theta: Tensor, x: Tensor, y: Tensor) -> float:
    return float((model.replica().load(theta).logits(x).argmax(1) == y).double().mean())


def centers_on_distributions(result: Result[Any], config: RunConfig) -> dict[str, Any]:
    """FedSoft, Tables 1 and 3: the squared error of every center on fresh samples of every distribution."""
    made = DATASETS.build(config.data.name, config.data.params, config.consent)
    assert isinstance(made, SyntheticRegression)
    thetas = made.thetas(generator(config.seed, Purpose.PARTITION))
    centers = result.state.centers if isinstance(result.state, Soft) else _models(result)
    rng = generator(config.seed, Purpose.EVALUATION, 1)
    errors = []
    for theta in thetas:
        x = rng.normal(size=(FRESH, made.dimension))
        y = torch.from_numpy(x @ theta + rng.normal(0, made.noise, FRESH)).float()
        inputs = torch.from_numpy(x).float()
        said = [result.model.replica().load(center).logits(inputs)[:, 0] for center in centers]
        errors.append([float((out - y).square().mean()) for out in said])
    return {"mse": errors, "apart": float(np.sum((thetas[0] - thetas[-1]) ** 2))} | mixtures(result)


def centers_on_domains(result: Result[Any]) -> dict[str, Any]:
    """FedSoft, Table 2: every center on every distribution, and clients' own models on their training and test data.

    A client without a model of its own uses one center, as in the paper: of a mixture the one of the largest weight.
    """
    from coterie.core.compute import one_thread

    centers = result.state.centers if hasattr(result.state, "centers") else result.state
    tests = [result.federation.seen_through(d, "test") for d in range(len(result.federation.domains))]
    scores = [[_accuracy(result.model, center, *test) for center in centers] for test in tests]
    ask = _ask(result, result.federation.roster.ids, result.settings.rounds)
    task = dataclasses.replace(result.method.predictor(result.placed), split="train")
    if task.mixture is not None and result.clients.shares is not None:
        largest = ByClient(result.clients.ids, result.clients.shares.argmax(1))
        task = Evaluate((Pick(centers, largest),), split="train")
    with one_thread():
        own, held_out = (ask(dataclasses.replace(task, split=split)) for split in ("train", "test"))
    best = [max(row) for row in scores]
    accuracy = {"own": float(own.accuracy.mean()), "own_test": float(held_out.accuracy.nanmean())}
    return {"each": scores, "best": best} | accuracy | mixtures(result)


def mixtures(result: Result[Any]) -> dict[str, Any]:
    """The weights clients were found to have, and the true ones."""
    shares, truth = result.clients.shares, result.federation.mixture
    if shares is None or truth is None:
        return {}
    return {"found": shares.double().numpy().tolist(), "true": truth.tolist()}


def majority(result: Result[Any], config: RunConfig) -> dict[str, Any]:
    """What always answering a client's most frequent class gives, clients weighed as in the run."""
    federation = result.federation
    train, test = federation.labels(federation.train), federation.labels(federation.test)
    owners, lengths = federation.test.owners(), federation.test.lengths.numpy()
    counts = np.zeros((len(federation), federation.outputs), dtype=np.int64)
    np.add.at(counts, (federation.train.owners(), train), 1)
    accuracy, macro_f1 = by_client(test, counts.argmax(1)[owners], lengths)
    sizes = {"train": counts.sum(1), "test": lengths, "equal": np.ones(len(federation))}
    weights = sizes[config.weigh_clients] * (lengths > 0)
    means = {"accuracy": accuracy, "macro_f1": macro_f1}
    return {"majority": {name: float(np.average(np.nan_to_num(v), weights=weights)) for name, v in means.items()}}


def _models(result: Result[Any]) -> Tensor:
    refs = result.method.predictor(result.placed).models
    ref = next((r for r in refs if isinstance(r, All | OneRow)), None)
    models = None if ref is None else vectors_of(ref)
    if models is None:
        name = type(result.method).__name__
        raise CoterieError(f"{name} has no cluster models to measure: give its run no probe", code="method-invalid")
    return models


def _pooled(federation: Federation, clients: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor]:
    parts = [federation.samples(int(c), "test") for c in clients]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def clusters_on_tests(result: Result[Any], whole: bool) -> dict[str, Any]:
    """StoCFL, Tables 1 and 5: each cluster's model on the whole test set as its kind of client sees it.

    whole: on everyone's test samples, which no cluster of few classes can do well on (Table 5, Pathological).
    The mean is over found clusters, not over clients; the global model is tested on all kinds.
    """
    federation, found = result.federation, result.assignments
    truth = federation.truth if federation.truth is not None else np.zeros(len(federation), dtype=np.int64)
    kinds = range(1) if whole else range(int(truth.max()) + 1)
    tests = [_pooled(federation, np.flatnonzero(whole | (truth == kind))) for kind in kinds]
    models, scores = _models(result), {}
    for cluster in np.unique(found[found >= 0]):
        kind = 0 if whole else int(np.bincount(truth[found == cluster]).argmax())
        scores[int(cluster)] = _accuracy(result.model, models[cluster], *tests[kind])
    out: dict[str, Any] = {"clusters": float(np.mean(list(scores.values()))), "each": list(scores.values())}
    if isinstance(result.state, Stochastic):
        out["global"] = float(np.mean([_accuracy(result.model, result.state.omega, *test) for test in tests]))
    return out


def _ask(result: Result[Any], ids: Tensor, round_: int) -> Any:
    """An `ask` for measurements: clients keep nothing."""
    from coterie.engines.sequential import Sequential
    from coterie.training.ask import RoundAsk

    engine = Sequential(result.model, result.federation)
    engine.memory = result.memory
    return RoundAsk(engine, ids, result.settings.seed, round_, kind="probe")


def _visited(result: Result[Any]) -> tuple[np.ndarray[Any, Any], Tensor]:
    """Clients that have a cluster, and what the method compares of their models after one more visit."""
    from coterie.core.compute import one_thread
    from coterie.core.tasks import Fit
    from coterie.engines.choose import local_of

    state = result.placed
    assert isinstance(state, Clusters)
    ids = torch.from_numpy(np.flatnonzero(result.assignments >= 0))
    with one_thread():
        reply = _ask(result, ids, result.settings.rounds)(Fit(state.start(ids), local=local_of(result.method)))
    return reply.ids.numpy(), state.represent(reply.theta)


def tsne(result: Result[Any]) -> dict[str, Any]:
    """WeCFL, Figures 5, 7 and 8: clients' models after one more visit in two dimensions, and their clusters."""
    from sklearn.manifold import TSNE

    ids, points = _visited(result)
    perplexity = min(30.0, (len(ids) - 1) / 3)
    placed = TSNE(perplexity=perplexity, random_state=0).fit_transform(points.double().numpy())
    truth = result.federation.truth
    return {
        "x": [round(float(v), 2) for v in placed[:, 0]],
        "y": [round(float(v), 2) for v in placed[:, 1]],
        "labels": result.assignments[ids].tolist(),
        "truth": None if truth is None else truth[ids].tolist(),
    }


def alike(result: Result[Any]) -> dict[str, Any]:
    """WeCFL, Figure 4: cosines of the clusters' models, and of clients' models after one more visit, by cluster."""
    from coterie.clustering.similarity import cosines

    state = result.placed
    ids, points = _visited(result)
    labels = result.assignments[ids]
    order = np.argsort(labels, kind="stable")
    labels = labels[order]
    matrix = cosines(points[torch.from_numpy(order)])
    same = torch.from_numpy(labels[:, None] == labels[None, :])
    apart = ~torch.eye(len(labels), dtype=torch.bool)
    return {
        "labels": labels.tolist(),
        "clients": [[round(v, 4) for v in row] for row in matrix.tolist()],
        "centers": cosines(state.represent(state.centers)).tolist(),
        "within": float(matrix[same & apart].mean()) if bool((same & apart).any()) else None,
        "between": float(matrix[~same].mean()) if bool((~same).any()) else None,
    }


def proximity(result: Result[Any]) -> dict[str, Any]:
    """FedGroup, Figure 5: MADC against EDC for every pair of the clients that formed the groups."""
    from coterie.clustering.similarity import edc_features, madc

    state, method = result.state, result.method
    assert isinstance(method, FedGroup)
    ids = state.clustered
    updates = _pretrained(result, method, ids)
    features = edc_features(updates, len(state.centers)).double()
    rows, columns = np.triu_indices(len(ids), 1)
    edc = torch.cdist(features, features)[rows, columns]
    apart = madc(updates)[rows, columns].double()
    kept = np.random.default_rng(0).permutation(len(rows))[:1000]
    return {
        "edc": edc[kept].tolist(),
        "madc": apart[kept].tolist(),
        "correlation": float(np.corrcoef(edc.numpy(), apart.numpy())[0, 1]),
    }


def _pretrained(result: Result[Any], method: FedGroup, ids: Tensor) -> Tensor:
    from coterie.core.compute import one_thread

    with one_thread():
        reply = _ask(result, ids, 0)(method.probe(result.state, ids))
    return torch.as_tensor((reply.theta - result.state.w0)[:, result.state.features])
