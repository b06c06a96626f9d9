"""What users ran into with pruning callbacks of trainers: cases 77 and 79, with the library's own callbacks.

Each is mended for its whole kind: other methods, and both trainers.
"""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from secateur import Masks, RigL, dst, prune_, schedules, shrink_schedule
from secateur.integrations.lightning import Pruning
from tests.integrations.test_lightning import Module, fit, quiet, result, saver, trainer_of
from tests.integrations.test_transformers import pruning_of
from tests.integrations.test_transformers import trainer_of as transformers_trainer_of
from tests.integrations.trainings import X, Y, assert_same

pytestmark = pytest.mark.integration


# ---- case 77: a checkpoint each epoch, while half of what is left is pruned each epoch


class Halving(Module):
    """Prunes half of what is left before each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(10, 10)

    def on_train_epoch_start(self) -> None:
        prune_(self, self.optimizers().optimizer, sparsity=1 - 0.5 ** (self.current_epoch + 1))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        return (self(batch[0][:, :10]) - 1.0).pow(2).mean()

    validation_step = None


def test_case_77_each_file_has_its_epoch_s_zeros_and_resuming_from_one_is_bit_equal(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = Halving()
    trainer = fit(whole, saver(tmp_path), Pruning(), epochs=3)
    states = [torch.load(tmp_path / f"epoch={n}.ckpt", weights_only=True)["state_dict"] for n in range(3)]
    assert [list(state) for state in states] == [["net.weight", "net.bias"]] * 3
    assert [int((state["net.weight"] == 0).sum()) for state in states] == [50, 75, 88]
    assert Masks(whole).num_zeros() == 88
    resumed = Halving()
    again = fit(resumed, Pruning(), epochs=3, start=tmp_path / "epoch=1.ckpt")
    assert_same(result(whole, trainer), result(resumed, again))


# ---- case 79: one callback for three fits

shrinking = partial(
    shrink_schedule, example_inputs=X[:4], begin_step=3, end_step=18, num_cuts=4, curve=schedules.linear
)
METHODS = {
    "masks": partial(prune_, sparsity=0.5),
    "RigL": partial(RigL, sparsity=0.8, every=2, end_step=20),
    "Gradual": partial(dst.Gradual, sparsity=0.9, every=2, end_step=20),
    "shrink": partial(shrinking, final_sparsity=0.5),
}
EXPECTED = {
    "masks": [(0.5, 24)] * 3,
    "RigL": [(0.8, 24)] * 3,
    "Gradual": [(0.9 * (1 - (1 - step / 20) ** 3), 24) for step in (8, 16, 20)],
    "shrink": [(0.0, 18), (0.0, 15), (0.0, 12)],
}
"""Sparsity and width after 8, 16 and 24 steps; cuts come after 3, 8, 13 and 18."""


class Uncopied(DataLoader[Any]):
    """Must not be copied, as a trainer must not."""

    def __deepcopy__(self, _: object) -> None:
        raise AssertionError("the loader was copied")


def held() -> int:
    """Bytes of all tensors that are alive."""
    gc.collect()
    dense = [t for t in alive_tensors() if t.layout == torch.strided]  # other tests may have left sparse ones
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in dense}
    return sum(storages.values())


def alive_tensors() -> list[Tensor]:
    """All tensors that the collector knows."""
    return [each for each in gc.get_objects() if type(each) in (Tensor, nn.Parameter)]


@pytest.mark.parametrize("name", METHODS)
def test_case_79_one_callback_serves_three_fits(name: str) -> None:
    module, pruning, loader = Module(), Pruning(METHODS[name]), Uncopied(TensorDataset(X, Y), batch_size=8)
    found, bytes_held = [], []
    for _ in range(3):
        trainer = trainer_of(pruning, epochs=2)
        with quiet():
            trainer.fit(module, loader)
        del trainer
        found.append((Masks(module).sparsity(), module.net[0].out_features))
        bytes_held.append(held())
    assert found == [pytest.approx(each, abs=1e-3) for each in EXPECTED[name]]
    assert bytes_held[2] <= bytes_held[1] <= bytes_held[0]


@pytest.mark.parametrize("name", METHODS)
def test_case_79_one_callback_serves_three_trainings_of_transformers(name: str, tmp_path: Path) -> None:
    trainer = transformers_trainer_of(tmp_path, METHODS[name], num_train_epochs=2, save_strategy="no")
    found = []
    for _ in range(3):
        trainer.train()
        found.append((Masks(trainer.model).sparsity(), trainer.model.net[0].out_features))
    assert found == [pytest.approx(each, abs=1e-3) for each in EXPECTED[name]]
    assert len(pruning_of(trainer).parts) == 1


def test_case_79_another_module_begins_anew() -> None:
    pruning = Pruning(METHODS["RigL"])
    first, second = Module(), Module()
    fit(first, pruning, epochs=1)
    fit(second, pruning, epochs=1)
    assert pruning.parts[0].model is second
    assert pruning.parts[0].step == 4
