"""Code that a run directory names (`module:Name`) is imported only if the user allows it: directories are shared.

The author of config.yaml chooses which function of which installed module is called, with which parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError

CODE = ("method", "model", "data", "model.loss", "attack.kind")  # keys besides `name` that may name code


def check_trust(tree: Mapping[str, Any], trusted: Sequence[str], run_dir: Path, how: str = "--trust {name}") -> None:
    """Raise unless every `module:Name` of a run's configuration is trusted. how: what to write instead."""
    for key, name in named_code(tree):
        if name not in trusted:
            raise CoterieError(
                f"{run_dir / 'config.yaml'}: {key}: '{name}' is code beyond this library, which would be imported and "
                f"run. If you know it, say so: {how.format(name=name)}",
                code="trust-needed",
            )


def trust_words(tree: Mapping[str, Any]) -> str:
    """What to add to the command that resumes a run of this configuration."""
    return "".join(f" --trust {name}" for name in dict.fromkeys(name for _, name in named_code(tree)))


def named_code(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Every `module:Name` of a configuration, with its key."""
    for key, value in tree.items():
        where = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from named_code(value, f"{where}.")
        elif isinstance(value, str) and ":" in value and (key == "name" or where in CODE):
            yield where, value
