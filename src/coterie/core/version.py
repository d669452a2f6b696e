"""The version of this release, which pyproject.toml reads from here, and of what a result depends on."""

from __future__ import annotations

__version__ = "0.1.0"


def versions() -> dict[str, str]:
    """What a result depends on besides its configuration."""
    import platform
    from importlib.metadata import version

    import numpy
    import torch

    return {
        "coterie": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "scikit-learn": version("scikit-learn"),
        "platform": platform.platform(),
    }
