"""Accelerate: real loops, gone on with in the middle, are those that were not interrupted, bit by bit."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import nn
from torch.optim import optimizer as optimizer_module
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from secateur import InvalidInputError, Masks, ShapeError, UnsupportedError
from secateur.integrations.accelerate import Pruning
from secateur.integrations.attachment import Attachment
from tests.integrations.trainings import CASES, METHODS, X, Y, assert_same, build, everything

pytestmark = pytest.mark.integration


class Training:
    """A loop as Accelerate's users write it."""

    def __init__(
        self,
        kind: str,
        *methods: Callable[..., Any],
        attaches: bool = True,
        accumulate: int = 1,
        precision: str = "no",
    ) -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        self.accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=accumulate)
        model = build(kind)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        loader = DataLoader(TensorDataset(X, Y), batch_size=8)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        if attaches:
            self.pruning = Pruning(*methods)
            self.pruning.attach(self.accelerator, self.model, self.optimizer)

    def epoch(self) -> None:
        for x, y in self.loader:
            with self.accelerator.accumulate(self.model):
                self.optimizer.zero_grad()
                self.accelerator.backward(nn.functional.cross_entropy(self.model(x), y))
                self.optimizer.step()

    def everything(self) -> dict[str, Any]:
        return everything(self.accelerator.unwrap_model(self.model), self.optimizer.optimizer)


def interrupted(folder: Path, kind: str, *methods: Callable[..., Any], **options: Any) -> tuple[dict[str, Any], ...]:
    """What four epochs come to, and what they do if they are begun anew from the checkpoint after two."""
    whole = Training(kind, *methods, **options)
    for number in range(4):
        if number == 2:
            whole.accelerator.save_state(str(folder))
        whole.epoch()
    found = whole.everything()
    resumed = Training(kind, *methods, **options)
    resumed.accelerator.load_state(str(folder))
    for _ in range(2):
        resumed.epoch()
    return found, resumed.everything()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_loop_gone_on_with_is_bit_equal(name: str, kind: str, tmp_path: Path) -> None:
    whole, resumed = interrupted(tmp_path, kind, *METHODS[name])
    assert_same(whole, resumed)


OPTIONS: dict[str, dict[str, Any]] = {"accumulation": {"accumulate": 2}, "bf16": {"precision": "bf16"}}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", ["masks", "RigL and shrink"])
def test_loop_gone_on_with_is_bit_equal_with(option: str, name: str, tmp_path: Path) -> None:
    whole, resumed = interrupted(tmp_path, "perceptron", *METHODS[name], **OPTIONS[option])
    assert_same(whole, resumed)


def test_same_loop_can_go_back_to_its_checkpoint(tmp_path: Path) -> None:
    training = Training("perceptron", *METHODS["RigL"])
    training.epoch()
    training.accelerator.save_state(str(tmp_path))
    training.epoch()
    once = training.everything()
    training.accelerator.load_state(str(tmp_path))
    training.epoch()
    assert_same(once, training.everything())


def test_accumulated_batches_are_no_steps() -> None:
    training = Training("perceptron", *METHODS["RigL and shrink"], accumulate=2)
    for _ in range(4):
        training.epoch()
    rigl, schedule = training.pruning.parts
    assert (rigl.step, schedule.num_steps, len(schedule.plans)) == (8, 8, 2)


def test_masks_hold_in_an_average_and_its_sizes_follow(tmp_path: Path) -> None:
    def begun() -> tuple[Training, AveragedModel]:
        training = Training("perceptron", attaches=False)
        average = AveragedModel(training.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        training.accelerator.register_for_checkpointing(average)
        training.pruning = Pruning(*METHODS["RigL and shrink"])
        training.pruning.attach(training.accelerator, training.model, training.optimizer, ema=average)
        return training, average

    def go_on(training: Training, average: AveragedModel) -> None:
        training.epoch()
        average.update_parameters(training.model)

    whole, average = begun()
    for number in range(4):
        if number == 2:
            whole.accelerator.save_state(str(tmp_path))
        go_on(whole, average)
    found = whole.everything()
    masks = Masks(whole.model)
    for name, parameter in average.module.named_parameters():
        assert parameter.shape == whole.model.get_parameter(name).shape
        if name in masks:
            assert not parameter.detach()[~masks[name]].any()
    resumed, other = begun()
    resumed.accelerator.load_state(str(tmp_path))
    for _ in range(2):
        go_on(resumed, other)
    assert_same(found, resumed.everything())
    assert_same(average.state_dict(), other.state_dict())


def test_two_models_of_one_accelerator_have_a_file_each(tmp_path: Path) -> None:
    training = Training("perceptron", *METHODS["masks"])
    second = build("convolution")
    second, optimizer = training.accelerator.prepare(second, torch.optim.SGD(second.parameters(), lr=0.1))
    pruning = Pruning(*METHODS["RigL"])
    pruning.attach(training.accelerator, second, optimizer)
    training.accelerator.save_state(str(tmp_path))
    assert {path.name for path in tmp_path.glob("pruning*")} == {"pruning.safetensors", "pruning_1.safetensors"}
    before = dict(Masks(second))
    Masks(second).update_({name: ~mask for name, mask in before.items()})
    training.accelerator.load_state(str(tmp_path))
    assert all(torch.equal(Masks(second)[name], mask) for name, mask in before.items())


def test_scalars_are_those_of_the_moment() -> None:
    training = Training("perceptron", *METHODS["RigL and shrink"])
    before = training.pruning.scalars()
    for _ in range(4):
        training.epoch()
    after = training.pruning.scalars()
    assert before["sparsity"] == pytest.approx(0.6, abs=1e-3)
    assert after["num_parameters"] == sum(p.numel() for p in training.model.parameters()) < before["num_parameters"]


def test_loop_that_is_over_is_let_go() -> None:
    training = Training("perceptron", *METHODS["masks"], *METHODS["shrink"])
    training.epoch()
    model = weakref.ref(training.model)
    del training
    AcceleratorState._reset_state(reset_partial_state=True)
    gc.collect()
    assert model() is None


def test_attaching_often_leaves_one_hook_behind() -> None:
    kept = [Training("perceptron", *METHODS["masks"]) for _ in range(2)]
    before = len(optimizer_module._global_optimizer_post_hooks)
    kept += [Training("perceptron", *METHODS["masks"]) for _ in range(2)]
    assert len(optimizer_module._global_optimizer_post_hooks) == before


# ---- wrong input


def test_missing_optimizer_is_refused() -> None:
    training = Training("perceptron", attaches=False)
    with pytest.raises(InvalidInputError, match="no optimizer trains Sequential"):
        Pruning(*METHODS["masks"]).attach(training.accelerator, training.model, None)
    assert not Masks(training.model)


def test_optimizer_of_another_model_is_refused() -> None:
    training = Training("perceptron", attaches=False)
    with pytest.raises(InvalidInputError, match="no optimizer trains Sequential"):
        Pruning(*METHODS["masks"]).attach(training.accelerator, build(), training.optimizer)


def test_attaching_twice_is_refused() -> None:
    training = Training("perceptron", *METHODS["masks"])
    with pytest.raises(InvalidInputError, match="attached to a model already"):
        training.pruning.attach(training.accelerator, training.model, training.optimizer)


def test_scalars_of_nothing_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="attached to no model"):
        Pruning().scalars()


def test_folder_without_a_file_is_refused_before_anything_changes(tmp_path: Path) -> None:
    training = Training("perceptron", *METHODS["masks"])
    training.accelerator.save_state(str(tmp_path))
    (tmp_path / "pruning.safetensors").unlink()
    training.epoch()
    before = training.everything()
    with pytest.raises(InvalidInputError, match=r"there is no pruning\.safetensors"):
        training.accelerator.load_state(str(tmp_path))
    assert_same(before, training.everything())


@pytest.mark.parametrize("name", ["SET", "masks", "RigL and shrink"])
def test_checkpoint_of_other_methods_is_refused_before_anything_changes(name: str, tmp_path: Path) -> None:
    Training("perceptron", *METHODS["RigL"]).accelerator.save_state(str(tmp_path))
    training = Training("perceptron", *METHODS[name])
    training.epoch()
    before = training.everything()
    with pytest.raises(InvalidInputError, match="other methods"):
        training.accelerator.load_state(str(tmp_path))
    assert_same(before, training.everything())


def test_checkpoint_of_before_a_cut_is_refused_after_it(tmp_path: Path) -> None:
    training = Training("perceptron", *METHODS["shrink"])
    training.accelerator.save_state(str(tmp_path))
    training.epoch()
    before = training.everything()
    with pytest.raises(ShapeError, match="larger one"):
        training.accelerator.load_state(str(tmp_path))
    assert_same(before, training.everything())


def test_several_processes_are_refused_for_all_but_masks() -> None:
    attachment = Attachment(build(), METHODS["RigL"])
    optimizer = torch.optim.SGD(attachment.model.parameters())
    with pytest.raises(UnsupportedError, match="RigL has not been tried"):
        attachment.begin([optimizer], num_processes=2)
    attachment = Attachment(build(), METHODS["masks"])
    attachment.begin([torch.optim.SGD(attachment.model.parameters())], num_processes=2)
