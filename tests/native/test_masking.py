"""Masks of packed bits: every level against numpy, at any address, and nothing else is written to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from secateur._native.masking import BLOCK, Kernels, kernels_for
from tests.native.products import MACHINE_LEVELS, on

LEVEL = pytest.mark.parametrize("level", MACHINE_LEVELS)
DTYPES = [
    torch.int8,
    torch.float8_e4m3fn,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
FENCE = 64


@dataclass
class Case:
    """A tensor somewhere in its memory, between bytes that must stay as they are, and its mask."""

    size: int
    dtype: torch.dtype
    start: int
    density: float
    seed: int

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        self.used = self.size * self.dtype.itemsize
        self.memory = random.integers(0, 256, self.used + 2 * FENCE + self.start, dtype=np.uint8)
        self.before = self.memory.copy()
        self.mask = random.random(self.size) < self.density
        words = -(-self.size // 64)
        self._bits = np.zeros(8 * words + self.start, np.uint8)
        self._bits[self.start :][: -(-self.size // 8)] = np.packbits(self.mask, bitorder="little")

    @property
    def tensor(self) -> Tensor:
        if not self.size:
            return torch.empty(0, dtype=self.dtype)
        return torch.frombuffer(self.memory, dtype=self.dtype, offset=FENCE + self.start, count=self.size)

    @property
    def bits(self) -> Tensor:
        return torch.from_numpy(self._bits)[self.start :]

    def filled(self, value: bytes) -> np.ndarray[Any, Any]:
        """What the memory should be when masked entries have a value."""
        wanted = self.before.copy()
        inside = wanted[FENCE + self.start :][: self.used].reshape(self.size, self.dtype.itemsize)
        inside[~self.mask] = np.frombuffer(value, np.uint8)
        return wanted

    def is_clear(self, start: int, stop: int) -> bool:
        """Whether the masked ones of some entries have no bit set."""
        inside = self.memory[FENCE + self.start :][: self.used].reshape(self.size, self.dtype.itemsize)
        return not inside[start:stop][~self.mask[start:stop]].any()


cases = st.builds(
    Case,
    size=st.integers(0, 300),
    dtype=st.sampled_from(DTYPES),
    start=st.integers(0, 9),
    density=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 9999),
)


def kernels(level: str) -> Kernels:
    """The functions of a level."""
    with on(level):
        found = kernels_for(torch.zeros(1))
    assert found is not None
    return found


@LEVEL
@settings(max_examples=200)
@given(chosen=st.lists(cases, max_size=5))
def test_masked_entries_of_all_tensors_become_zero_and_no_other_byte_changes(level: str, chosen: list[Case]) -> None:
    kernels(level).clear_([(case.tensor, case.bits) for case in chosen])
    for case in chosen:
        np.testing.assert_array_equal(case.memory, case.filled(bytes(case.dtype.itemsize)))


@LEVEL
@settings(max_examples=200)
@given(case=cases.filter(lambda case: not case.dtype.is_complex), number=st.sampled_from([0.0, 1.0, 2.0, 64.0]))
def test_masked_entries_get_a_number_and_no_other_byte_changes(level: str, case: Case, number: float) -> None:
    value = torch.tensor([number], dtype=case.dtype).view(torch.uint8).numpy().tobytes()
    kernels(level).fill_(case.tensor, case.bits, number)
    np.testing.assert_array_equal(case.memory, case.filled(value))


@LEVEL
@settings(max_examples=200)
@given(
    case=cases, first=st.integers(0, 5), blocks=st.integers(0, 6), dirty=st.integers(0, 299), bit=st.integers(0, 127)
)
def test_window_is_clear_if_no_bit_of_a_masked_entry_is_set(
    level: str, case: Case, first: int, blocks: int, dirty: int, bit: int
) -> None:
    case.memory[:] = case.filled(bytes(case.dtype.itemsize))
    width = case.dtype.itemsize
    if dirty < case.size:
        case.memory[FENCE + case.start + width * dirty + bit // 8 % width] |= 1 << bit % 8
    window = (first * BLOCK, (first + blocks) * BLOCK)
    assert kernels(level).is_clear([case.tensor], case.bits, *window) == case.is_clear(*window)
    if blocks:
        within = min(window[1] - 7, case.size)  # an end inside the last block means the whole of it
        assert kernels(level).is_clear([case.tensor], case.bits, window[0], within) == case.is_clear(*window)


@LEVEL
def test_window_of_several_tensors_is_clear_if_all_are(level: str) -> None:
    one, other = torch.zeros(200), torch.zeros(200)
    bits = torch.zeros(32, dtype=torch.uint8)
    assert kernels(level).is_clear([], bits, 0, 200)
    assert kernels(level).is_clear([one, other], bits, 64, 200)
    for each in (one, other):
        each[199] = -0.0
        assert not kernels(level).is_clear([one, other], bits, 64, 200)
        assert kernels(level).is_clear([one, other], bits, 0, 128)
        each[199] = 0.0


@LEVEL
@given(case=cases)
def test_bits_are_counted(level: str, case: Case) -> None:
    assert kernels(level).count_bits(case.bits) == int(case.mask.sum())


@LEVEL
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_share_large_tensors_and_leave_nothing_out(
    level: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    sizes = [(1_000_003, torch.float32), (77, torch.bfloat16), (300_001, torch.float64), (0, torch.int8)]
    chosen = [Case(size, dtype, 3, 0.5, seed) for seed, (size, dtype) in enumerate(sizes)]
    kernels(level).clear_([(case.tensor, case.bits) for case in chosen])
    for case in chosen:
        np.testing.assert_array_equal(case.memory, case.filled(bytes(case.dtype.itemsize)))


@LEVEL
def test_versions_are_raised(level: str) -> None:
    one, other = torch.ones(70), torch.ones(5)
    bits = torch.zeros(16, dtype=torch.uint8)
    view = one[:3]
    kernels(level).clear_([(one, bits), (other, bits)])
    assert (one._version, view._version, other._version) == (1, 1, 1)
    kernels(level).fill_(other, bits, 2.0)
    assert (one._version, other._version) == (1, 2)


class Subclass(Tensor):
    """Whatever it may do with its memory."""


def without_memory() -> Tensor:
    tensor = torch.ones(30)
    tensor.untyped_storage().resize_(0)
    return tensor


UNREACHABLE = {
    "meta": lambda: torch.ones(3, device="meta"),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "subclass": lambda: torch.ones(3).as_subclass(Subclass),
    "empty": lambda: torch.ones(0),
    "no storage": without_memory,
}


@pytest.mark.parametrize("kind", UNREACHABLE)
def test_tensors_whose_memory_is_not_plain_are_out_of_reach(kind: str) -> None:
    assert kernels_for(UNREACHABLE[kind]()) is None


def test_fake_tensors_are_out_of_reach() -> None:
    with FakeTensorMode():
        fake = torch.ones(3)
        assert kernels_for(fake) is None
        assert kernels_for(nn.Parameter(fake)) is None
    assert kernels_for(fake) is None


@pytest.mark.parametrize(
    "transform", [torch.func.grad, torch.func.vmap, torch.func.functionalize], ids=["grad", "vmap", "functionalize"]
)
def test_tensors_inside_a_function_transform_are_out_of_reach(transform: Any) -> None:
    seen = []

    def function(x: Tensor) -> Tensor:
        seen.append(kernels_for(x))
        return x.sum()

    transform(function)(torch.ones(2, 3))
    assert seen == [None]


def test_compiled_code_does_without_kernels() -> None:
    def function(x: Tensor) -> Tensor:
        return x + 1 if kernels_for(x) is None else x + 2

    assert torch.equal(torch.compile(function, backend="eager", fullgraph=True)(torch.ones(2)), torch.full((2,), 2.0))
    assert torch.equal(function(torch.ones(2)), torch.full((2,), 3.0))
