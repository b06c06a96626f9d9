"""What users ran into with several processes: case 71, as far as masks go that keep the sizes of parameters.

Each process chooses its masks itself, so what it chooses by must be the same everywhere: scores of the weights, random
ones of a seed, or scores of data that are averaged first.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROCESS = """
import sys

import torch
import torch.distributed as dist
from torch import nn

from secateur import SET, Masks, prune_, scores

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)


def same(value):
    found = [None, None]
    dist.all_gather_object(found, value)
    return found[0] == found[1]


def local(weights):
    return {name: weight.detach().abs() * x.abs().mean(0) for name, weight in weights.items()}


def averaged(weights):
    found = local(weights)
    for each in found.values():
        dist.all_reduce(each)
    return found


chosen = {"sparsity": 0.5, "include": ["0.weight"]}
methods = {
    "local": lambda: prune_(net, optimizer, score=local, **chosen),
    "averaged": lambda: prune_(net, optimizer, score=averaged, **chosen),
    "random": lambda: prune_(net, optimizer, score=scores.random, **chosen),
    "SET": lambda: SET(net, optimizer, every=2, end_step=20, **chosen),
}
for name, method in methods.items():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    torch.manual_seed(100 + rank)
    x, y = torch.randn(64, 32), torch.randn(64, 4)
    made = method()
    masks_agree = []
    for step in range(10):
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
        masks_agree.append(same([mask.tolist() for mask in Masks(net).state_dict().values()]))
    weights_agree = same([parameter.tolist() for parameter in net.parameters()])
    print(name, all(masks_agree), weights_agree, int((net[0].weight == 0).sum()) >= 256)
dist.barrier()
dist.destroy_process_group()
"""

SHOWN = """local False False True
averaged True True True
random True True True
SET True True True
"""


@pytest.mark.integration
def test_case_71_processes_that_choose_by_the_same_numbers_keep_the_same_masks(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    assert [process.communicate(timeout=120)[0] for process in processes] == [SHOWN, SHOWN]
