"""`coterie watch`: is this still the right clustering?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.tools.cli.options import AsJson, Trust

DRIFT = 3  # the exit code


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")],
    new: Annotated[
        Path, typer.Option("--data", metavar="NEW", help="New samples: a file as the run's own data, or YAML.")
    ],
    alpha: Annotated[float, typer.Option(help="How often a watch without any drift may call one.")] = 0.01,
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Test on new samples of known clients whether the clustering still fits. Exit code 0: it does, 3: drift.

    Where no client could be tested, that is an error (exit code 2).

    Example: coterie watch runs/a --data today.csv
    """
    import dataclasses
    import json
    import sys

    from coterie.core.errors import CoterieError
    from coterie.network.server import load
    from coterie.serving.watch import FEWEST
    from coterie.serving.watch import watch as test
    from coterie.training.build import build_addition
    from coterie.training.config import RunConfig, read, read_file
    from coterie.training.going_on import data_of
    from coterie.training.trust import consent_of

    result = load(run, trust=tuple(trust or ()))
    tree = read_file(run / "config.yaml")
    config = read(None, base=tree, consent=consent_of(run, trust or ())) if "data" in tree else RunConfig()
    named = data_of(new, config)
    if new.suffix not in (".yaml", ".yml"):
        named.pop("drift", None)  # of the run's own data: its periods would leave most of the new rows out
    found = test(result, build_addition(config, named), alpha=alpha)
    if as_json:
        document = dataclasses.asdict(found) | {"answer": str(found).splitlines()}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        typer.echo(str(found))
    if not any(one.samples >= FEWEST for one in found.clients):
        why = f"clients are found by the run's names (coterie clusters {run} --csv F), and need {FEWEST} samples"
        if found.left_out:
            why = f"{found.left_out:,} of its rows the run had already (or later ones); no client has {FEWEST} others"
        raise CoterieError(f"{new}: nothing could be tested; {why}", code="data-empty")
    if found.drifts:
        raise typer.Exit(DRIFT)
