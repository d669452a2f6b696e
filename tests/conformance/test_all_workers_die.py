"""All workers are killed at once, as by a signal to the group: no client is blamed for a worker that was dead."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
import toys

from coterie.client.contract import Moment
from coterie.core.local import Local
from coterie.core.references import All
from coterie.core.tasks import Fit
from coterie.data.federation import Samples
from coterie.engines.contract import Visit

HERE = os.getpid()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("kind", [("workers", 2), ("batched", 2)], ids=str)
def test_when_all_workers_die_nobody_misses_the_visit(kind: toys.Kind, tmp_path: Path) -> None:
    def kills_all(asked: int, split: str, taken: Samples) -> Samples:
        workers = [int(pid) for pid in Path(f"/proc/{HERE}/task/{HERE}/children").read_text().split()]
        if split != "train" or os.getpid() != max(workers, default=0) or (tmp_path / "once").exists():
            return taken
        (tmp_path / "once").touch()
        time.sleep(1)  # until the first worker has done its part and waits
        for pid in sorted(workers):  # itself last
            os.kill(pid, signal.SIGKILL)
        return taken

    visit = Visit((Fit(All(torch.zeros(10)), Local(steps=1)),), torch.tensor([0, 3]), Moment(0, 0, 0))
    with toys.engine(kind, toys.faulty(kills_all)) as engine:
        outcome = engine.visit(visit)
    with toys.engine(kind, toys.toy()) as engine:
        whole = engine.visit(visit)
    assert not outcome.missing
    toys.assert_same(outcome.replies, whole.replies)
