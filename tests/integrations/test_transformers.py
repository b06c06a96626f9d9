"""transformers: real trainings, resumed in the middle, are those that were not interrupted, bit by bit."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

from secateur import InvalidInputError, Masks, RigL, ShapeError, load_, shrink_schedule
from secateur.integrations.files import read_state
from secateur.integrations.transformers import Pruning
from secateur.shrink import unit_scores
from tests.integrations.trainings import CASES, METHODS, X, Y, assert_same, build, everything, shrinking

pytestmark = pytest.mark.integration


class WithLoss(nn.Module):
    """A model as the trainer wants it."""

    def __init__(self, kind: str = "perceptron") -> None:
        super().__init__()
        self.net = build(kind)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.net(x)
        return (
            {"logits": logits}
            if labels is None
            else {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}
        )


class Data(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": X[index], "labels": Y[index]}


GIVEN = ("model", "model_init", "compute_metrics", "train_dataset", "eval_dataset")
"""What the trainer is given, and not its arguments."""


def trainer_of(
    folder: Path, *methods: Callable[..., Any], kind: str = "perceptron", callbacks: Any = (), **options: Any
) -> transformers.Trainer:
    arguments = {"num_train_epochs": 4, "save_strategy": "epoch", "learning_rate": 0.02} | options
    given = {name: arguments.pop(name) for name in GIVEN if name in arguments}
    return transformers.Trainer(
        given.pop("model", None) or (None if given.get("model_init") else WithLoss(kind)),
        transformers.TrainingArguments(
            str(folder), use_cpu=True, report_to="none", per_device_train_batch_size=8, disable_tqdm=True, **arguments
        ),
        callbacks=[Pruning(*methods), *callbacks],
        **{"train_dataset": Data(), "eval_dataset": Data()} | given,
    )


def pruning_of(trainer: transformers.Trainer) -> Pruning:
    return next(each for each in trainer.callback_handler.callbacks if isinstance(each, Pruning))


def result(trainer: transformers.Trainer) -> dict[str, Any]:
    return everything(trainer.model, trainer.optimizer.optimizer)


def interrupted(
    folder: Path, kind: str, *methods: Callable[..., Any], step: int = 8, **options: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a training comes to, and what it does if it is begun anew from the checkpoint in its middle."""
    whole = trainer_of(folder, *methods, kind=kind, **options)
    whole.train()
    start = str(folder / f"checkpoint-{step}")
    resumed = trainer_of(folder, *methods, kind=kind, resume_from_checkpoint=start, **options)
    resumed.train(resume_from_checkpoint=start)
    return result(whole), result(resumed)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_resumed_training_is_bit_equal(name: str, kind: str, tmp_path: Path) -> None:
    whole, resumed = interrupted(tmp_path, kind, *METHODS[name])
    assert_same(whole, resumed)


OPTIONS: dict[str, dict[str, Any]] = {
    "accumulation": {"gradient_accumulation_steps": 2, "step": 4},
    "bf16": {"bf16": True},
    "no clipping": {"max_grad_norm": 0.0},
    "middle of an epoch": {"save_strategy": "steps", "save_steps": 3, "step": 6},
    "early stopping": {
        "eval_strategy": "epoch",
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss",
        "callbacks": [transformers.EarlyStoppingCallback(early_stopping_patience=2, early_stopping_threshold=10.0)],
    },
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", ["masks", "RigL and shrink"])
def test_resumed_training_is_bit_equal_with(option: str, name: str, tmp_path: Path) -> None:
    whole, resumed = interrupted(tmp_path, "perceptron", *METHODS[name], **OPTIONS[option])
    assert_same(whole, resumed)


def test_weights_in_a_checkpoint_have_plain_names_zeros_and_sizes(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, *METHODS["RigL and shrink"])
    names = list(trainer.model.state_dict())
    trainer.train()
    middle, last = (load_file(tmp_path / f"checkpoint-{step}" / "model.safetensors") for step in (8, 16))
    assert sorted(middle) == sorted(names)
    assert 24 > middle["net.0.weight"].shape[0] > last["net.0.weight"].shape[0]
    assert 0.4 < float((middle["net.2.weight"] == 0).float().mean()) < 0.9


def test_accumulated_batches_are_no_steps(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, *METHODS["RigL and shrink"], gradient_accumulation_steps=2)
    trainer.train()
    training, schedule = pruning_of(trainer).parts
    assert (training.step, schedule.num_steps, len(schedule.plans)) == (8, 8, 2)


def test_scores_find_the_gradients_of_the_step_before_a_cut(tmp_path: Path) -> None:
    method = partial(shrinking, final_sparsity=0.5, score=unit_scores.taylor)
    trainer = trainer_of(tmp_path, method)
    trainer.train()
    assert trainer.model.net[0].out_features == 12


def test_sparsity_and_parameters_are_logged(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, *METHODS["Gradual"], logging_steps=4)
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert [line["step"] for line in lines] == [4, 8, 12, 16]
    assert [round(line["sparsity"], 2) for line in lines] == [0.18, 0.54, 0.9, 0.9]
    assert {line["num_parameters"] for line in lines} == {sum(p.numel() for p in trainer.model.parameters())}


def test_callbacks_after_this_one_see_what_is_logged(tmp_path: Path) -> None:
    seen = []

    class Reporter(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: object) -> None:
            seen.append(logs["sparsity"])

    trainer_of(tmp_path, *METHODS["masks"], callbacks=[Reporter()], logging_steps=8).train()
    assert seen == [pytest.approx(0.7, abs=1e-3)] * 3


def test_best_model_is_one_of_after_the_last_cut(tmp_path: Path) -> None:
    trainer = trainer_of(
        tmp_path,
        partial(shrinking, final_sparsity=0.4),
        eval_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="num_cuts",
        greater_is_better=False,
        compute_metrics=lambda _: {"num_cuts": len(pruning_of(trainer).parts[0].plans)},
    )
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-12")
    assert trainer.model.net[0].out_features == 14


@pytest.mark.parametrize("name", ["RigL", "Gradual", "SRSTE"])
def test_best_model_has_the_masks_and_weights_of_its_time(name: str, tmp_path: Path) -> None:
    trainer = trainer_of(
        tmp_path,
        *METHODS[name],
        eval_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="distance",
        greater_is_better=False,
        compute_metrics=lambda _: {"distance": abs(trainer.state.global_step - 8)},
    )
    trainer.train()
    saved = load_file(tmp_path / "checkpoint-8" / "model.safetensors")
    assert_same(dict(trainer.model.state_dict()), saved)
    assert_same(Masks(trainer.model).state_dict(), read_state(tmp_path / "checkpoint-8")["pruning"]["masks"])
    assert pruning_of(trainer).parts[0].step == 8


def test_training_that_begins_again_goes_on_with_its_masks_and_steps(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, *METHODS["RigL and shrink"], num_train_epochs=2)
    trainer.train()
    parts = pruning_of(trainer).parts
    trainer.train()
    assert pruning_of(trainer).parts[0] is parts[0]
    assert parts[0].step == pruning_of(trainer).parts[1].num_steps == 16


def test_optimizer_that_is_kept_after_the_training_does_not_keep_the_model(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, *METHODS["masks"], *METHODS["shrink"], num_train_epochs=1, save_strategy="no")
    trainer.train()
    optimizer, reference = trainer.optimizer.optimizer, weakref.ref(trainer.model)
    trainer.accelerator.free_memory()
    del trainer
    gc.collect()
    assert reference() is None
    assert optimizer.state


# ---- wrong input


def test_checkpoint_that_the_arguments_do_not_name_is_refused(tmp_path: Path) -> None:
    trainer_of(tmp_path, *METHODS["masks"], num_train_epochs=2).train()
    trainer = trainer_of(tmp_path, *METHODS["masks"])
    with pytest.raises(InvalidInputError, match=r"(?s)another checkpoint.*arguments: none.*TrainingArguments\(resume"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert not Masks(trainer.model)


def test_checkpoint_of_another_step_than_the_arguments_name_is_refused(tmp_path: Path) -> None:
    trainer_of(tmp_path, *METHODS["masks"], num_train_epochs=2).train()
    trainer = trainer_of(tmp_path, *METHODS["masks"], resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    with pytest.raises(InvalidInputError, match=r"(?s)another checkpoint.*trainer: step 8    arguments: step 4"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    with pytest.raises(InvalidInputError, match=r"(?s)another checkpoint.*trainer: step 0    arguments: step 4"):
        trainer.train()


def test_last_checkpoint_is_found(tmp_path: Path) -> None:
    trainer_of(tmp_path, *METHODS["shrink"], num_train_epochs=2).train()
    trainer = trainer_of(tmp_path, *METHODS["shrink"], resume_from_checkpoint=True)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.model.net[0].out_features == 12


def test_checkpoint_without_pruning_is_where_pruning_can_begin(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, num_train_epochs=2)
    trainer.remove_callback(Pruning)
    trainer.train()
    start = str(tmp_path / "checkpoint-8")
    trainer = trainer_of(tmp_path, *METHODS["masks"], resume_from_checkpoint=start)
    trainer.train(resume_from_checkpoint=start)
    assert Masks(trainer.model).sparsity() == pytest.approx(0.7, abs=1e-3)


def test_checkpoint_of_other_methods_is_refused_before_anything_changes(tmp_path: Path) -> None:
    trainer_of(tmp_path, *METHODS["RigL"], num_train_epochs=2).train()
    model = WithLoss()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InvalidInputError, match=r"(?s)other methods.*checkpoint: RigL    here: SET"):
        trainer_of(tmp_path, *METHODS["SET"], model=model, resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert_same(before, model.state_dict())


def test_model_that_is_made_anew_is_refused_after_a_cut(tmp_path: Path) -> None:
    trainer_of(tmp_path, *METHODS["masks"], num_train_epochs=2).train()
    start = str(tmp_path / "checkpoint-8")
    trainer = trainer_of(tmp_path, *METHODS["masks"], model_init=lambda: WithLoss(), resume_from_checkpoint=start)
    with pytest.raises(InvalidInputError, match="made its model anew"):
        trainer.train(resume_from_checkpoint=start)


# ---- a model of transformers


class Sentences(Data):
    """Words of a vocabulary of 64."""

    words = torch.randint(64, (32, 12), generator=torch.Generator().manual_seed(5))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.words[index], "labels": self.words[index]}


def llama() -> transformers.PreTrainedModel:
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


def test_resumed_training_of_a_llama_with_tied_weights_is_bit_equal(tmp_path: Path) -> None:
    shrink = partial(
        shrink_schedule, example_inputs={"input_ids": Sentences.words[:2]}, begin_step=3, end_step=12, num_cuts=3
    )
    methods = (partial(RigL, sparsity=0.5, every=3, end_step=14), partial(shrink, final_sparsity=0.4))
    options = {"train_dataset": Sentences(), "eval_dataset": None}
    whole = trainer_of(tmp_path, *methods, model=llama(), **options)
    whole.train()
    start = str(tmp_path / "checkpoint-8")
    resumed = trainer_of(tmp_path, *methods, model=llama(), resume_from_checkpoint=start, **options)
    resumed.train(resume_from_checkpoint=start)
    assert whole.model.model.layers[0].mlp.up_proj.out_features < 48
    assert whole.model.lm_head.weight is whole.model.model.embed_tokens.weight
    assert resumed.model.lm_head.weight is resumed.model.model.embed_tokens.weight
    assert_same(result(whole), result(resumed))


def test_model_of_a_checkpoint_comes_by_its_trainer_as_the_error_says(tmp_path: Path) -> None:
    shrink = partial(
        shrink_schedule, example_inputs={"input_ids": Sentences.words[:2]}, begin_step=3, end_step=6, num_cuts=2
    )
    methods = (partial(RigL, sparsity=0.5, every=3, end_step=14), partial(shrink, final_sparsity=0.4))
    options = {"train_dataset": Sentences(), "eval_dataset": None}
    whole = trainer_of(tmp_path / "out", *methods, model=llama(), **options)
    whole.train()
    folder = tmp_path / "out" / "checkpoint-16"
    with pytest.raises(ShapeError, match=r"(?s:.*)resume_from_checkpoint=(?s:.*)secateur\.load_\(trainer\.model"):
        load_(llama(), folder)
    again = trainer_of(tmp_path / "other", *methods, model=llama(), resume_from_checkpoint=str(folder), **options)
    found = load_(again.model, folder)
    words = Sentences.words[:2]
    with torch.no_grad():
        assert torch.equal(found.eval()(words).logits, whole.model.eval()(words).logits)
    assert Masks(found) == Masks(whole.model)
