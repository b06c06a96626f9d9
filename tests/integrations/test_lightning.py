"""Lightning: real fits, resumed in the middle, are those that were not interrupted, bit by bit."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from secateur import SET, InvalidInputError, Masks, RigL, ShapeError, UnsupportedError, plan_shrink, prune_
from secateur.integrations.lightning import Pruning
from tests.integrations.trainings import CASES, METHODS, X, Y, assert_same, build, everything, shrinking

pytestmark = pytest.mark.integration


class Module(pl.LightningModule):
    def __init__(self, kind: str = "perceptron") -> None:
        super().__init__()
        self.net = build(kind)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.8)]


@contextmanager
def quiet() -> Iterator[None]:
    """Lightning warns of what a test has on purpose: no workers, a folder that is not empty, few batches."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def trainer_of(*callbacks: pl.Callback, epochs: int = 4, **options: Any) -> pl.Trainer:
    options = {
        "logger": False,
        "enable_checkpointing": any(isinstance(c, ModelCheckpoint) for c in callbacks),
    } | options
    return pl.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


class Recorder(Logger):
    """A logger that keeps what it is given."""

    name, version = "recorder", 0

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.written.append((step or 0, metrics))

    def log_hyperparams(self, *_: object, **__: object) -> None:
        pass


def fit(module: pl.LightningModule, *callbacks: pl.Callback, start: Path | None = None, **options: Any) -> pl.Trainer:
    loader = DataLoader(TensorDataset(X, Y), batch_size=options.pop("batch_size", 8))
    trainer = trainer_of(*callbacks, **options)
    with quiet():
        trainer.fit(module, loader, loader, ckpt_path=start)
    return trainer


def saver(folder: Path) -> ModelCheckpoint:
    return ModelCheckpoint(folder, "{epoch}", save_top_k=-1, save_on_train_epoch_end=True)


def interrupted(
    folder: Path, kind: str, *methods: Callable[..., Any], more: Callable[[], list[pl.Callback]] = list, **options: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a training comes to, and what it does if it is begun anew from the checkpoint in its middle."""
    whole, resumed = Module(kind), Module(kind)
    trainer = fit(whole, saver(folder), *more(), Pruning(*methods), **options)
    again = fit(resumed, Pruning(*methods), *more(), start=folder / "epoch=1.ckpt", **options)
    return result(whole, trainer), result(resumed, again)


def result(module: pl.LightningModule, trainer: pl.Trainer) -> dict[str, Any]:
    """All numbers of a fit, those of averages included."""
    found = everything(module, trainer.optimizers[0])
    for callback in trainer.callbacks:
        average = getattr(callback, "_average_model", None)
        if average is not None:
            found |= {f"average of {name}": each.clone() for name, each in average.state_dict().items()}
    return found


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_resumed_fit_is_bit_equal(name: str, kind: str, tmp_path: Path) -> None:
    whole, resumed = interrupted(tmp_path, kind, *METHODS[name])
    assert_same(whole, resumed)


OPTIONS: dict[str, dict[str, Any]] = {
    "accumulation": {"accumulate_grad_batches": 2, "batch_size": 4},
    "bf16-mixed": {"precision": "bf16-mixed"},
    "clipping": {"gradient_clip_val": 0.5},
    "average": {"more": lambda: [EMAWeightAveraging(decay=0.9)]},
    "early stopping": {"more": lambda: [EarlyStopping("val_loss", patience=2, min_delta=10.0)]},
    "validation": {"val_check_interval": 2},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", ["masks", "RigL and shrink"])
def test_resumed_fit_is_bit_equal_with(option: str, name: str, tmp_path: Path) -> None:
    whole, resumed = interrupted(tmp_path, "perceptron", *METHODS[name], **OPTIONS[option])
    assert_same(whole, resumed)


def test_checkpoint_lies_between_cuts_and_holds_plain_data_and_names(tmp_path: Path) -> None:
    module, fresh = Module(), Module()
    fit(module, saver(tmp_path), Pruning(*METHODS["RigL and shrink"]))
    middle, last = (torch.load(tmp_path / f"epoch={n}.ckpt", weights_only=True)["state_dict"] for n in (1, 3))
    widths = [state["net.0.weight"].shape[0] for state in (fresh.state_dict(), middle, last)]
    assert widths[0] > widths[1] > widths[2]
    assert list(middle) == list(fresh.state_dict())
    assert 0.4 < float((middle["net.2.weight"] == 0).float().mean()) < 0.9


def test_accumulated_batches_are_no_steps() -> None:
    pruning = Pruning(*METHODS["RigL and shrink"])
    fit(Module(), pruning, accumulate_grad_batches=2)
    training, schedule = pruning.parts
    assert (training.step, schedule.num_steps) == (8, 8)
    assert len(schedule.plans) == 2  # at 3 and 7; 11 is not reached


def test_steps_of_manual_optimization_count() -> None:
    class Manual(Module):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: list[Tensor], number: int) -> None:
            optimizer = self.optimizers()
            for _ in range(2):
                optimizer.zero_grad()
                self.manual_backward(super().training_step(batch, number))
                optimizer.step()

    module, pruning = Manual(), Pruning(*METHODS["RigL and shrink"])
    fit(module, pruning, epochs=2)
    training, schedule = pruning.parts
    assert (training.step, schedule.num_steps, len(schedule.plans)) == (16, 16, 3)


def test_masks_hold_in_the_average_and_its_sizes_follow() -> None:
    seen = []

    class Look(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
            average = trainer.callbacks[0]._average_model.module
            masks = Masks(pl_module)
            for name, parameter in average.named_parameters():
                assert parameter.shape == pl_module.get_parameter(name).shape
                if name in masks:
                    assert not parameter.detach()[~masks[name]].any()
            seen.append((masks.num_zeros(), average.net[0].out_features))
            assert average.net[0].out_features == pl_module.net[0].out_features

    fit(Module(), EMAWeightAveraging(decay=0.9), Pruning(*METHODS["RigL and shrink"]), Look())
    assert min(zeros for zeros, _ in seen) > 0
    assert {width for _, width in seen} == {24, 17, 15, 14}


def test_stochastic_weight_averaging_follows_cuts() -> None:
    module = Module()
    fit(module, StochasticWeightAveraging(0.01, swa_epoch_start=1), Pruning(*METHODS["shrink"]))
    assert module.net[0].out_features == module.net[2].in_features == 12


def test_sparsity_and_parameters_are_logged_and_can_be_monitored(tmp_path: Path) -> None:
    module, recorder = Module(), Recorder()
    best = ModelCheckpoint(tmp_path, monitor="sparsity", mode="max")
    trainer = fit(module, Pruning(*METHODS["Gradual"]), best, logger=recorder, log_every_n_steps=4)
    by_step = {step: line["sparsity"] for step, line in recorder.written if "sparsity" in line}
    assert [round(by_step[step], 2) for step in (3, 7, 11, 15)] == [0.18, 0.54, 0.9, 0.9]
    assert float(trainer.callback_metrics["sparsity"]) == pytest.approx(0.9, abs=1e-3)
    assert float(trainer.callback_metrics["num_parameters"]) == sum(p.numel() for p in module.parameters())
    assert best.best_model_score == trainer.callback_metrics["sparsity"]


def test_barebones_fit_is_pruned_and_not_logged() -> None:
    module, pruning = Module(), Pruning(*METHODS["RigL and shrink"])
    trainer = fit(module, pruning, barebones=True, logger=None, enable_checkpointing=None)
    assert "sparsity" not in trainer.callback_metrics
    assert module.net[0].out_features == 14


def test_fit_stops_early_and_nothing_is_cut_after() -> None:
    pruning = Pruning(*METHODS["shrink"])
    trainer = fit(Module(), pruning, EarlyStopping("val_loss", patience=1, min_delta=10.0))
    assert trainer.global_step == pruning.parts[0].num_steps == 8
    assert len(pruning.parts[0].plans) == 2


class Own(Module):
    """Prunes and cuts in its own hooks."""

    def on_train_epoch_start(self) -> None:
        optimizer = self.optimizers()
        if self.current_epoch == 0:
            prune_(self, optimizer.optimizer, sparsity=0.5)
        if self.current_epoch == 1:
            plan_shrink(self, X[:4], sparsity=0.5).apply_(self, optimizer=optimizer)


def test_masks_and_cuts_of_own_hooks_are_carried_over(tmp_path: Path) -> None:
    whole, resumed = Own(), Own()
    trainer = fit(whole, saver(tmp_path), Pruning())
    again = fit(resumed, Pruning(), start=tmp_path / "epoch=1.ckpt")
    assert resumed.net[0].out_features == 12
    assert Masks(resumed)
    assert_same(result(whole, trainer), result(resumed, again))


def test_fresh_module_is_tested_with_a_smaller_checkpoint(tmp_path: Path) -> None:
    module, fresh = Module("attention"), Module("attention")
    loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    fit(module, saver(tmp_path), Pruning(*METHODS["masks"], *METHODS["shrink"]))
    with quiet():
        trainer_of(Pruning()).validate(fresh, loader, ckpt_path=tmp_path / "epoch=3.ckpt", verbose=False)
    assert torch.equal(fresh(X), module(X))
    assert (fresh.net.heads, fresh.net.size) == (module.net.heads, module.net.size) != (4, 4)
    assert Masks(fresh) == Masks(module)


def test_smaller_module_is_not_tested_with_a_larger_checkpoint(tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    fit(Module(), saver(tmp_path), Pruning(), epochs=1)
    module = Module()
    plan_shrink(module, X[:4], sparsity=0.5).apply_(module)
    with quiet(), pytest.raises(ShapeError, match="larger one"):
        trainer_of(Pruning()).validate(module, loader, ckpt_path=tmp_path / "epoch=0.ckpt", verbose=False)


def test_optimizer_that_is_kept_after_the_fit_does_not_keep_the_module() -> None:
    module = Module()
    optimizer = fit(module, Pruning(*METHODS["masks"], *METHODS["shrink"])).optimizers[0]
    reference = weakref.ref(module)
    del module
    gc.collect()
    assert reference() is None
    assert optimizer.state


def test_module_s_own_hook_is_left_alone(tmp_path: Path) -> None:
    loaded = []

    class Hooked(Module):
        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            loaded.append(checkpoint["global_step"])

        def on_train_start(self) -> None:
            assert "on_load_checkpoint" not in vars(self)

    fit(Hooked(), saver(tmp_path), Pruning(*METHODS["shrink"]))
    fit(Hooked(), Pruning(*METHODS["shrink"]), start=tmp_path / "epoch=1.ckpt")
    assert loaded == [8]
    module = Module()
    module.on_load_checkpoint = own = lambda checkpoint: loaded.append(0)
    fit(module, Pruning(*METHODS["shrink"]), start=tmp_path / "epoch=1.ckpt")
    assert loaded == [8, 0]
    assert module.on_load_checkpoint is own


@pytest.mark.parametrize("name", ["masks", "RigL", "Gradual", "SRSTE"])
def test_module_is_tested_with_the_masks_of_an_earlier_checkpoint(name: str, tmp_path: Path) -> None:
    module, pruning = Module(), Pruning(*METHODS[name])
    trainer = fit(module, saver(tmp_path), pruning)
    with quiet():
        trainer.validate(module, DataLoader(TensorDataset(X, Y), batch_size=8), ckpt_path=tmp_path / "epoch=1.ckpt")
    saved = torch.load(tmp_path / "epoch=1.ckpt", weights_only=True)
    assert_same(dict(module.state_dict()), dict(saved["state_dict"]))
    assert_same(Masks(module).state_dict(), saved["callbacks"]["Pruning"]["masks"])
    assert getattr(pruning.parts[0], "step", 8) == 8


def test_checkpoint_without_pruning_is_where_pruning_can_begin(tmp_path: Path) -> None:
    fit(Module(), saver(tmp_path), epochs=2)
    pruning = Pruning(*METHODS["masks"])
    trainer = fit(Module(), pruning, start=tmp_path / "epoch=1.ckpt")
    assert trainer.global_step == 16
    assert pruning.parts[0].sparsity() == pytest.approx(0.7, abs=1e-3)


# ---- wrong input


def test_masks_that_are_there_already_are_no_method() -> None:
    with pytest.raises(InvalidInputError, match="not a Masks"):
        Pruning(prune_(nn.Linear(4, 4), sparsity=0.5))


def test_module_without_optimizer_is_refused() -> None:
    class Without(Module):
        def configure_optimizers(self) -> None:
            return None

    module = Without()
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(InvalidInputError, match="no optimizer trains Without"):
        fit(module, Pruning(*METHODS["masks"]))
    assert_same(before, module.state_dict())


def test_module_with_a_wrapper_inside_is_refused(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        module = Module()
        module.net = nn.parallel.DistributedDataParallel(module.net)
        with pytest.raises(UnsupportedError, match="DistributedDataParallel"):
            fit(module, Pruning(*METHODS["masks"]))
        assert not Masks(module)
    finally:
        torch.distributed.destroy_process_group()


def test_schedule_that_cannot_be_resumed_is_refused() -> None:
    def method(model: nn.Module, optimizer: Any) -> Any:
        return shrinking(model, final_sparsity=0.5, optimizer=optimizer)

    with pytest.raises(InvalidInputError, match="takes its state"):
        fit(Module(), Pruning(method))


@pytest.mark.parametrize(
    "methods",
    [(partial(SET, sparsity=0.8, every=3, end_step=14),), (), METHODS["RigL and shrink"], METHODS["SRSTE"]],
    ids=["SET", "none", "two", "SRSTE"],
)
def test_checkpoint_of_other_methods_is_refused_before_anything_changes(methods: Any, tmp_path: Path) -> None:
    fit(Module(), saver(tmp_path), Pruning(partial(RigL, sparsity=0.8, every=3, end_step=14)), epochs=2)
    module = Module()
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(InvalidInputError, match="other methods"):
        fit(module, Pruning(*methods), start=tmp_path / "epoch=1.ckpt")
    assert_same(before, module.state_dict())
    assert not Masks(module)


def test_checkpoint_of_a_larger_model_is_refused_before_anything_changes(tmp_path: Path) -> None:
    large = Module()
    fit(large, saver(tmp_path), Pruning(*METHODS["masks"]), epochs=2)
    module = Module()
    plan_shrink(module, X[:4], sparsity=0.5).apply_(module)
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(ShapeError, match=r"larger one: 'net\.0\.weight'"):
        fit(module, Pruning(*METHODS["masks"]), start=tmp_path / "epoch=1.ckpt")
    assert_same(before, module.state_dict())
    assert "on_load_checkpoint" not in vars(module)


def test_checkpoint_of_other_units_to_remove_is_refused(tmp_path: Path) -> None:
    fit(Module(), saver(tmp_path), Pruning(partial(shrinking, final_sparsity=0.5, ignore=["net.4"])), epochs=2)
    with pytest.raises(InvalidInputError, match="other groups or another budget"):
        fit(Module(), Pruning(*METHODS["shrink"]), start=tmp_path / "epoch=1.ckpt")
