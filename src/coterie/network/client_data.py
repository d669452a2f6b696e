"""What a client says of its own data, as a federation of one."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.errors import CoterieError
from coterie.core.registry import ANY_CODE, DATASETS, NO_CODE
from coterie.core.text import YamlError, parse_yaml
from coterie.data.clients import split_at_random
from coterie.data.dataset import Dataset
from coterie.data.federation import Federation, Ragged
from coterie.data.partitions.dealing import latest

READERS = {".npz": "npz", ".csv": "csv", ".tsv": "csv", ".data": "csv", ".parquet": "parquet", ".pq": "parquet"}


def own_data(place: str, test: float = 0.2, seed: int = 0) -> Federation:
    """From `module:function` or a file, with parameters after commas: `a.csv,y=outcome,classes=no|yes`.

    A function gives (x, y), (x_train, y_train, x_test, y_test), or a Federation of one client. Where the data has no
    test part of its own, `test` of it is held out. Labels that are names need `classes`, all of them in one order: a
    client that numbered its own names would disagree with one that has others. Tables are not standardised unless
    `standardise=true`, which goes by this client's own figures. For the same reason the values of categories are given
    (`categories.region=north|south`), and what a missing number becomes (`missing.price=9.5`).
    """
    name, *words = place.split(",")
    params = dict(_word(word) for word in words)
    test = float(params.pop("test", test))
    if ":" in name and not Path(name).exists():
        return _from_function(name, params, test, seed)
    path = Path(name)
    kind = "image-folder" if path.is_dir() else READERS.get(path.suffix.lower())
    if kind is None:
        raise CoterieError(
            f"--data {name}: expected module:function, a folder of images, or a file ending in {', '.join(READERS)}",
            code="option-invalid",
        )
    classes = params.pop("classes", None)
    if kind in ("csv", "parquet"):
        params = _of_columns(params)
    if kind != "image-folder":
        params = {"standardise": False, "standardise_y": False} | params
    made = DATASETS.build(kind, {"path": name, **params}, NO_CODE)
    return one_client(_numbered(made(), classes), test, seed)


def _of_columns(params: dict[str, Any]) -> dict[str, Any]:
    """What is said of a table's columns. Inputs must be the same at every client, so nothing goes by this one's rows:
    text is an input only with its values given, and a missing number only with one to stand for it."""
    out = {key: value for key, value in params.items() if "." not in key}
    for key in ("x", "leave_out"):
        if isinstance(out.get(key), str):
            out[key] = tuple(out[key].split("|"))
    given: dict[str, dict[str, Any]] = {"missing": {}, "categories": {}}
    for key, value in params.items():
        about, dot, column = key.partition(".")
        if not dot:
            continue
        if about not in given:
            raise CoterieError(
                f"--data: '{key}': expected missing.COLUMN=NUMBER or categories.COLUMN=a|b", code="option-invalid"
            )
        given[about][column] = tuple(value.split("|")) if about == "categories" else value
    if out.get("missing") == "mean":
        raise CoterieError(
            "--data: missing=mean: nobody knows the mean over all clients. Write the same number at every client, for "
            "example missing.price=9.5, or missing=drop",
            code="option-invalid",
        )
    if out.get("categories", "none") != "none":
        raise CoterieError(
            f"--data: categories={out['categories']}: a client cannot know the values that others have. Write all of "
            "them at every client, in the same order: categories.region=north|south",
            code="option-invalid",
        )
    return {"missing": "refuse", "categories": "none"} | out | {key: said for key, said in given.items() if said}


def _numbered(data: Dataset, classes: object) -> Dataset:
    """With labels in the order of `classes`."""
    if data.class_names is None:
        if classes is not None:
            raise CoterieError("--data: classes is for labels that are names; these are numbers", code="data-labels")
        return data
    if classes is None:
        raise CoterieError(
            f"--data: labels are names ({', '.join(data.class_names[:5])}); say which there are at any client, "
            f"everywhere in the same order: classes={'|'.join(data.class_names[:5])}",
            code="data-labels",
        )
    order = str(classes).split("|")
    unknown = [name for name in data.class_names if name not in order]
    if unknown or len(set(order)) != len(order):
        fault = f"has no '{unknown[0]}'" if unknown else "names one twice"
        raise CoterieError(f"--data: classes={classes} {fault}", code="data-labels")
    places = data.y.new_tensor([order.index(name) for name in data.class_names])
    return replace(data, y=places[data.y], classes=len(order), class_names=tuple(order))


def one_client(data: Dataset, test: float, seed: int) -> Federation:
    """All of a data set as the data of one client."""
    if data.client is not None and len(set(data.client.tolist())) > 1:
        raise CoterieError(
            f"--data: '{data.name}' says that its samples are of several clients; a client has its own",
            code="data-owners",
        )
    if data.official is not None:
        kept, out = np.flatnonzero(~data.official), np.flatnonzero(data.official)
    elif data.time is not None:
        held = latest(np.zeros(len(data.y), dtype=np.int64), data.time, 1, test)
        kept, out = np.flatnonzero(~held), np.flatnonzero(held)
    else:
        kept, out = split_at_random(len(data.y), test, seed, 0)
    made = Federation(
        (data.domain,),
        Ragged.of([kept]),
        Ragged.of([out]),
        kind=data.kind,
        outputs=data.classes,
        name=data.name,
        features=data.features,
        class_names=data.class_names,
        remarks=data.remarks,
        time=data.time,
    )
    return made.prepared(inputs=data.standardise_x, targets=data.standardise_y, plan=data.plan)


def _from_function(name: str, params: dict[str, Any], test: float, seed: int) -> Federation:
    found = DATASETS.find(name, ANY_CODE)
    if not callable(found):
        raise CoterieError(f"--data {name}: is a {type(found).__name__}, not a function", code="component-invalid")
    try:
        inspect.signature(found).bind(**params)
    except TypeError as error:
        raise CoterieError(f"--data {name}: does not take these parameters: {error}", code="option-invalid") from None
    try:
        made = found(**params)
    except CoterieError:
        raise
    except Exception as error:  # whatever a user's function does
        raise CoterieError(
            f"--data {name}: {type(error).__name__}: {' '.join(str(error).split())}", code="component-failed"
        ) from None
    if isinstance(made, Dataset):
        return one_client(made, test, seed)
    if isinstance(made, Federation):
        return made
    if not isinstance(made, tuple | list):
        raise CoterieError(
            f"--data {name}: gave a {type(made).__name__}; expected (x, y), (x_train, y_train, x_test, y_test) "
            "or a coterie.Federation of one client",
            code="component-invalid",
        )
    made_of = Federation.from_arrays([tuple(made)], test=test, seed=seed, standardise=False, standardise_y=False)
    # A function's arrays have no names for the server, whether or not one client's happen to be a table.
    return replace(made_of, features=None)


def _word(word: str) -> tuple[str, Any]:
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise CoterieError(
            f"--data: '{word}': expected key=value after the comma, for example y=outcome", code="option-invalid"
        )
    try:
        return key, value if key.startswith("categories.") else parse_yaml(value)
    except YamlError:
        raise CoterieError(f"--data: {key[:200]}: '{value[:200]}' is not a YAML value", code="option-invalid") from None
