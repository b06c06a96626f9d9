"""The name of the machine says what times depend on."""

from __future__ import annotations

import torch

from secateur._machine import machine_name


def test_machine_name_says_how_many_threads_a_cpu_uses() -> None:
    capability = torch.backends.cpu.get_cpu_capability()
    assert machine_name(torch.device("cpu"), torch.float32) == f"cpu {capability}, 1 thread, torch.float32"
    torch.set_num_threads(2)
    try:
        assert machine_name(torch.device("cpu"), torch.bfloat16) == f"cpu {capability}, 2 threads, torch.bfloat16"
    finally:
        torch.set_num_threads(1)


def test_machine_name_of_a_device_without_values_is_its_own() -> None:
    assert machine_name(torch.device("meta"), torch.float32) == "meta, torch.float32"
