"""Two processes that train one model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROCESS = """
import sys
from functools import partial

import torch.distributed
from torch import nn

from secateur import UnsupportedError, prune_, scores
from secateur.integrations.attachment import Attachment

rank, store = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
for seed in (0, rank):
    model = nn.Linear(16, 16)
    attachment = Attachment(model, [partial(prune_, sparsity=0.5, score=partial(scores.random, seed=seed))])
    try:
        attachment.begin([torch.optim.SGD(model.parameters())], num_processes=2)
        print("begun")
    except UnsupportedError as error:
        print(str(error).splitlines()[0])
torch.distributed.destroy_process_group()
"""

SHOWN = """begun
the processes that train Linear have chosen different masks, each by data of its own.
"""


@pytest.mark.integration
def test_processes_begin_with_the_same_masks_or_not_at_all(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    assert [process.communicate(timeout=120)[0] for process in processes] == [SHOWN, SHOWN]
