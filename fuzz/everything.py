"""All targets by name, and the inputs that are kept for each: its seeds, and what was once a defect."""

from __future__ import annotations

from pathlib import Path

import data_files
import messages
import run_files
from target import Target

CORPUS = Path(__file__).parent / "corpus"
TARGETS: dict[str, Target] = {
    target.name: target for module in (data_files, run_files, messages) for target in module.TARGETS
}


def kept(target: Target) -> list[bytes]:
    """Inputs that were defects once, or that reach code which the seeds do not."""
    return [file.read_bytes() for file in sorted((CORPUS / target.name).glob("*")) if file.is_file()]
