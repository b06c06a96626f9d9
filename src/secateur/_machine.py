"""The machine that things are measured on: its name, and waiting for what runs ahead of the clock."""

from __future__ import annotations

import torch

__all__ = ["machine_name", "wait_for"]


def machine_name(device: torch.device, dtype: torch.dtype) -> str:
    """What times depend on."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {dtype}"
    if device.type != "cpu":
        return f"{device.type}, {dtype}"
    threads = torch.get_num_threads()
    several = "thread" if threads == 1 else "threads"
    return f"cpu {torch.backends.cpu.get_cpu_capability()}, {threads} {several}, {dtype}"


def wait_for(device: torch.device) -> None:
    """Wait for a device that runs ahead."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
