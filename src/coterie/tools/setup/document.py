"""A configuration as a YAML document in which every line is explained."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from coterie.tools.setup.facts import File
from coterie.tools.setup.guesses import Guesses

Line = tuple[str, object, str]  # key, value, explanation
WIDTH = 34  # of keys and values, where they are shorter


def document(file: File, found: Guesses, name: str) -> str:
    """The text of the file `name`."""
    top: Sequence[Line] = (
        ("model", model_of(file, found), "see coterie list models; or yours: mine:Net"),
        ("method", "halves", "finds the clusters and their number by itself; see coterie list methods"),
    )
    local: Sequence[Line] = (
        ("epochs", 5, "passes over its own rows that a client makes in a round"),
        ("batch", 32, "rows per step"),
        ("lr", "auto", "the learning rate; auto tries some on a few clients before the first round"),
    )
    rest: Sequence[Line] = (
        ("rounds", 30, "how often clients train and the server averages their models"),
        ("participation", 1.0, "the share of clients that take part in a round; 20 would be twenty clients"),
        ("seed", 0, "the same seed gives the same result"),
    )
    return "\n".join(
        [
            f"# Written by: coterie init {file.path}. Lines may be changed; docs/configuration.md has all keys.",
            f"# Look before you train: coterie inspect {name}",
            f"# Train:                 coterie run {name}",
            "",
            "data:  # the file, and what its columns are for",
            *_lines(data_lines(file, found), "  "),
            *(["  # look at these before you train:"] if found.doubts else []),
            *(f"  #   {one.column}: {one.why}" for one in found.doubts),
            *_lines(top),
            "local:  # how a client trains",
            *_lines(local, "  "),
            *_lines(rest),
            "",
        ]
    )


def data_lines(file: File, found: Guesses) -> list[Line]:
    """What is said of the data."""
    array = file.format == "npz"
    what = "array" if array else "column"
    lines: list[Line] = [
        ("name", file.format, "the format of the file"),
        ("path", file.path, "seen from the directory in which coterie is called"),
        *([("x", found.inputs[0], "the array of the inputs")] if array else []),
        ("client", found.client.column, f"the {what} that says whose row it is: {found.client.why}"),
        ("y", found.target.column, f"the {what} to predict: {found.target.why}"),
        ("task", found.task, f"{found.task_why}; or {_other(found.task)}"),
    ]
    if found.time is not None:
        lines.append(("time", found.time.column, found.time.why))
    if found.text:
        lines.append(("text", list(found.text), "text of several words, which are hashed; without this it is left out"))
    if found.left_out:
        names = [one.column for one in found.left_out]
        why = "; ".join(f"{one.column}: {one.why}" for one in found.left_out)
        lines.append(("leave_out", names, f"no inputs. {why}"))
    if not array:
        lines.append(("missing", "mean", "what empty cells of inputs become; or drop, to leave such rows out"))
    return lines


def model_of(file: File, found: Guesses) -> str:
    """A network that fits the inputs."""
    shape = dict(file.inputs).get(found.inputs[0] if found.inputs else "", ())
    return "cnn" if len(shape) == 3 and min(shape[1:]) >= 8 else "mlp"


def _other(task: str) -> str:
    return "regression, if they are amounts" if task == "classification" else "classification, if they are classes"


def _lines(lines: Sequence[Line], indent: str = "") -> list[str]:
    return [f"{indent}{key}: {_value(value)}".ljust(WIDTH) + f"  # {said}" for key, value, said in lines]


def _value(value: object) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
    return text.removesuffix("...\n").strip()
