"""A table of Hugging Face's, for tests of what reads such tables."""

from __future__ import annotations

from typing import Any

import pytest
from PIL import Image

datasets = pytest.importorskip("datasets", reason="the extra `huggingface` is not installed")
datasets.disable_progress_bars()


def table(n: int = 12) -> Any:
    """Rows whose number is in every column, in some way."""
    return datasets.Dataset.from_dict(
        {
            "row": list(range(n)),
            "half": [i / 2 for i in range(n)],
            "label": [i % 3 for i in range(n)],
            "who": [f"zoë {i % 4}" for i in range(n)],
            "image": [Image.new("L", (3, 2), i) for i in range(n)],
            "words": [[i, i + 1] for i in range(n)],
        }
    )
