"""`coterie.run`: the one call that does everything."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack, get_type_hints

from numpy.typing import ArrayLike

from coterie.core.compute import Compute, Precision
from coterie.core.errors import ArgumentError, CoterieError
from coterie.core.registry import ANY_CODE
from coterie.core.settings import explained_call, settings_from
from coterie.data.federation import Federation
from coterie.engines.choose import EngineName
from coterie.engines.contract import Engine
from coterie.layers.contract import Layer
from coterie.methods.contract import Method
from coterie.training import lineage
from coterie.training.assembly import EngineRequest, Output, assemble
from coterie.training.build import AnyModel, as_method, as_model
from coterie.training.events import Listener
from coterie.training.loop import train
from coterie.training.result import Result
from coterie.training.sampling import training_data
from coterie.training.settings import Settings, SettingsOptions
from coterie.training.trust import with_attack

Function = TypeVar("Function", bound=Callable[..., Any])


def _with_settings(function: Function) -> Function:
    """Show the settings as keyword arguments with their defaults in `help()` and `inspect.signature`."""
    signature = inspect.signature(function)
    named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    types = get_type_hints(SettingsOptions)
    settings = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=types[f.name])
        for f in dataclasses.fields(Settings)
    ]
    function.__signature__ = signature.replace(parameters=[*named, *settings])  # type: ignore[attr-defined]
    return function


@explained_call
@_with_settings
def run(
    method: str | Method[Any] = "halves",
    federation: Federation | Sequence[tuple[ArrayLike, ...]] | None = None,
    model: AnyModel = "mlp",
    *,
    engine: EngineName | Engine = "auto",
    workers: int | None = None,
    device: str = "auto",
    precision: Precision = "float32",
    compile: bool = False,
    deterministic: bool = False,
    out: str | Path | None = None,
    resume: bool = False,
    listeners: Sequence[Listener] = (),
    layers: Sequence[Layer] = (),
    **settings: Unpack[SettingsOptions],
) -> Result[Any]:
    """Train a federation with a method and evaluate every client.

    method: an object, coterie.WeCFL(k=4), or a name (`coterie list methods`) for its defaults. Without one,
        run(federation=clients), it is Halves, which needs no number of clusters.
    federation: a Federation, or a list of (x, y) per client; required.
    model: an nn.Module class, a function that builds one, an instance as a blueprint, a name
        (`coterie list models`) or, with parameters, `coterie.zoo.MLP(hidden=(64,))`. To train a part of it:
        `coterie.Tuned("mlp", train="head")`.
    rounds, seed: how many rounds (30); the same seed gives the same bits.
    participation: clients per round, a share (0.1; 1.0 is all) or a count (20; 1 is one).
    sampling: "fixed" draws as many clients as that; "poisson" draws each client by a coin of its own.
    engine, workers: "auto", one of the next three by a rule about the model and sizes; "sequential" (the reference);
    "workers", a process per core (or that many); "batched", many clients as one computation, on as many workers; or
    "ray", the cores of the Ray cluster that RAY_ADDRESS names (or that this process has joined).
    device: that computes clients: "cpu", "cuda", "cuda:1", "mps", "xpu"; "auto" is an accelerator if there is one.
    precision: "float32", or "bf16", "fp16", in which networks compute by autocast. compile: networks, by torch.compile.
    deterministic: only algorithms that give the same bits again (on accelerators; on the CPU they always do).
    evaluate_every, evaluate_last: rounds between evaluations; how many of the last rounds are all evaluated.
    evaluate_on: a share or a count of the clients evaluated.
    evaluate_whom: of "all" clients, or only of those "met" (drawn for a round) so far.
    weigh_clients: how clients count in accuracy and macro-F1: by "test" size, "train" size or "equal".
    quorum, retries: the share of asked clients that must answer, and how often a round is repeated if they do not.
    update_bound: an update whose norm is more than so many times the cohort's median is rejected (cohorts of 5 and
    more; a client that makes more local steps is allowed more); 0 accepts every update.
    dropout: simulated, the chance that a client asked does not answer.
    newcomers: the share of the clients that is not trained on and joins after training: result.newcomers.
    out, resume, checkpoint_every: a directory for the log, the assignments and the checkpoints; with resume=True and
    the same arguments the run continues from the last checkpoint there (more rounds, more clients: `coterie.go_on`).
    keep_checkpoints: how many of them are kept, or "all".
    validation: the share of each client's training samples held out for validation (those the data marks, if any);
    then rounds are scored on these, and the test samples once, at the end.
    stop_after: rounds without a lower validation loss after which the run ends.
    aggregator: a robust rule in place of every mean, "geometric-median" or {"name": "trimmed-mean", "share": 0.3} (see
    `coterie.Robust`): updates are also rejected, quarantined and clipped before the method sees them.
    server_optimizer: "momentum", or {"name": "adam", "eta": 0.1}: an optimizer at the server around every mean.
    attack: simulated, hostile clients: {"share": 0.2, "kind": "sign-flip"} (see `coterie.Attack`); then all scores are
    those of the honest clients.
    privacy: coterie.Privacy(epsilon=8): clip updates and add noise, so that the models are differentially private.
    listeners: functions that are called with every event (RunStarted, RoundDone, RunEnded).
    layers: your own, around the engine (see `coterie.Layer`).
    """
    if federation is None:
        raise ArgumentError(
            "run.federation: required, but not given; write run(federation=clients), or run(method, clients)",
            code="argument-missing",
        )
    chosen = with_attack(settings_from(Settings, **settings), ANY_CODE)
    data = training_data(Federation.of(federation), chosen)
    if resume and out is not None:
        data = lineage.applied(lineage.read(Path(out)), data, None)
    the_method: Method[Any] = as_method(method)
    the_model = as_model(model, data)
    if resume and out is None:
        raise CoterieError("resume: which run? Give its directory as out=...", code="argument-missing")
    output = None if out is None else Output(Path(out), resume)
    compute = settings_from(Compute, device=device, precision=precision, compile=compile, deterministic=deterministic)
    request = EngineRequest(engine, workers, compute=compute)
    with assemble(the_method, the_model, data, chosen, request, output, listeners=listeners, layers=layers) as ready:
        return train(ready)
