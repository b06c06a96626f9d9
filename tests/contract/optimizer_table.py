"""The table of optimizers that tests run over: every class of torch.optim, in every form and with every option.

A new member of ``torch.optim`` joins by itself: its rows are read off its constructor. `CASES` also has transformers'
Adafactor and the optimizers of `secateur.optim`. A case makes an optimizer, makes a small model that it can train
(`OptimizerCase.problem`), and takes one step in the way that its class needs: with a closure for LBFGS, on sparse
gradients for SparseAdam.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers.optimization import Adafactor as TransformersAdafactor

from secateur import _compat
from secateur.optim import SparseAdamW, SparseSGD

__all__ = ["BY_NAME", "CASES", "Dense", "OptimizerCase", "Problem", "Table", "cases"]

LEARNING_RATES = {"SGD": 0.05, "SparseSGD": 0.05, "Adadelta": 1.0, "LBFGS": 0.3, "Muon": 0.02, "NAdam": 0.005}
"""Where 0.01 would hardly move a small model, or make it diverge."""

OPTIONS: dict[str, dict[str, object]] = {
    "momentum": {"momentum": 0.9},
    "dampening": {"momentum": 0.9, "dampening": 0.3},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "centered": {"centered": True, "momentum": 0.9},
    "amsgrad": {"amsgrad": True},
    "weight_decay": {"weight_decay": 0.1},
    "decoupled_weight_decay": {"weight_decay": 0.1, "decoupled_weight_decay": True},
    "maximize": {"maximize": True},
    "lr_decay": {"lr_decay": 0.1},
    "initial_accumulator_value": {"initial_accumulator_value": 0.1},
    "t0": {"t0": 2.0},
    "line_search_fn": {"line_search_fn": "strong_wolfe"},
    "adjust_lr_fn": {"adjust_lr_fn": "match_rms_adamw"},
    "scale_parameter": {"scale_parameter": False, "relative_step": False, "lr": 0.01},
    "beta1": {"beta1": 0.9},
    "warmup_init": {"warmup_init": True},
}
"""Argument of a constructor -> what a row with that option passes.

Left out are ``capturable``, which needs a GPU, and ``differentiable``, which refuses leaves that require a gradient.
"""

ALWAYS: dict[str, dict[str, object]] = {"LBFGS": {"max_iter": 3, "history_size": 4}, "Muon": {"nesterov": False}}
"""Arguments that every row of a class passes, unless its option says otherwise."""

FORMS: dict[str, dict[str, object]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
"""The three ways in which torch carries out the same step."""


@dataclass(frozen=True)
class Problem:
    """A small model and what it is trained on; both are the same for every case of equal needs.

    Args:
        model: A `Dense` (6 inputs, 8 hidden units), or a `Table` (10 rows of 6) for sparse gradients.
        inputs: What the model is called with, one a step, over and over.
        targets: What it should answer.
    """

    model: nn.Module
    inputs: list[Tensor]
    targets: list[Tensor]

    def loss(self, model: nn.Module, step: int) -> Tensor:
        """The mean squared error of `model` (this one, or a copy of it) on the batch of one step."""
        at = step % len(self.inputs)
        return nn.functional.mse_loss(model(self.inputs[at]), self.targets[at])


class Dense(nn.Module):
    """One hidden layer, three outputs."""

    def __init__(self, inputs: int = 6, hidden: int = 8, *, bias: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden, bias=bias)
        self.act = nn.Tanh()
        self.last = nn.Linear(hidden, 3, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(x)))


class Table(nn.Module):
    """A vocabulary whose gradient is sparse, read out by three fixed directions."""

    readout: Tensor

    def __init__(self, rows: int = 10, features: int = 6) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, features, sparse=True)
        self.register_buffer("readout", torch.randn(features, 3))

    def forward(self, index: Tensor) -> Tensor:
        return self.table(index) @ self.readout


@dataclass(frozen=True)
class OptimizerCase:
    """One row: an optimizer class with one option, in one form.

    Args:
        kind: The class.
        option: Name of the option that the row is about, "" for the defaults.
        form: "loop", "foreach", "fused", or "" where the class has one form only.
        arguments: What the constructor gets.
    """

    kind: type[Optimizer]
    option: str = ""
    form: str = ""
    arguments: Mapping[str, object] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        """A short unique name, such as ``AdamW-amsgrad-fused``."""
        library = "transformers" if self.kind.__module__.startswith("transformers") else ""
        return "-".join(part for part in (library, self.kind.__name__, self.option, self.form) if part)

    @property
    def needs_closure(self) -> bool:
        """Whether a step evaluates the loss itself, several times."""
        return self.kind.__name__ == "LBFGS"

    @property
    def needs_sparse(self) -> bool:
        """Whether only sparse gradients are accepted."""
        return self.kind.__name__ == "SparseAdam"

    @property
    def needs_matrices(self) -> bool:
        """Whether only 2-D parameters are accepted."""
        return self.kind.__name__ == "Muon"

    @property
    def is_shape_dependent(self) -> bool:
        """Whether the step of one weight depends by definition on how many others its tensor has."""
        return self.kind.__name__ in ("Muon", "Adafactor")

    @property
    def maximizes(self) -> bool:
        """Whether the step goes up, so that a loss has to be negated."""
        return bool(self.arguments.get("maximize"))

    def make(self, parameters: Iterable[Tensor] | Iterable[dict[str, Any]], **overrides: object) -> Optimizer:
        """Make the optimizer; `overrides` replace arguments of the row."""
        arguments: dict[str, Any] = copy.deepcopy({**self.arguments, **overrides})
        return self.kind(parameters, **arguments)

    def problem(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> Problem:
        """A model of `dtype` that this optimizer can train, with its batches; equal calls give equal values.

        There are three batches, but one only for LBFGS, whose history means nothing across different losses.
        """
        batches = range(1 if self.needs_closure else 3)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = Table() if self.needs_sparse else Dense(bias=not self.needs_matrices)
            inputs = [torch.randint(10, (8,)) if self.needs_sparse else torch.randn(8, 6).to(dtype) for _ in batches]
            return Problem(model.to(dtype), inputs, [torch.randn(8, 3).to(dtype) for _ in batches])

    def step(self, optimizer: Optimizer, loss: Callable[[], Tensor]) -> None:
        """Take one step on the loss that `loss` computes; the gradients stay in place afterwards."""

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = loss()
            (-value if self.maximizes else value).backward()
            return value

        if self.needs_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()

    def train(self, model: nn.Module, optimizer: Optimizer, problem: Problem, steps: Iterable[int]) -> None:
        """Take several steps of `problem`, with a copy of its model or the model itself."""
        for step in steps:
            self.step(optimizer, partial(problem.loss, model, step))


def _options(kind: type[Optimizer]) -> Iterator[tuple[str, dict[str, object]]]:
    """The defaults, then each option of the table that the constructor has."""
    known = inspect.signature(kind.__init__).parameters
    yield "", {}
    for name, arguments in OPTIONS.items():
        if arguments.keys() <= known.keys():
            yield name, arguments


def _forms(kind: type[Optimizer]) -> dict[str, dict[str, object]]:
    """Those of the three forms that the constructor can be asked for."""
    known = inspect.signature(kind.__init__).parameters
    return {form: asked for form, asked in FORMS.items() if asked.keys() <= known.keys()} or {"": {}}


def cases(kind: type[Optimizer]) -> Iterator[OptimizerCase]:
    """All rows of one class of torch.optim."""
    name = kind.__name__
    always = {"lr": LEARNING_RATES.get(name, 0.01), **ALWAYS.get(name, {})}
    for form, asked in _forms(kind).items():
        for option, arguments in _options(kind):
            yield OptimizerCase(kind, option, form, {**always, **arguments, **asked})
        if form != "foreach":  # refused by torch for most classes unless capturable
            yield OptimizerCase(kind, "tensor_lr", form, {**always, **asked, "lr": torch.tensor(always["lr"])})


def _transformers_cases() -> Iterator[OptimizerCase]:
    """Rows of transformers' Adafactor, which chooses its own learning rate by default."""
    for option, arguments in _options(TransformersAdafactor):
        yield OptimizerCase(TransformersAdafactor, option, "", arguments)


def _sparse_cases(kind: type[Optimizer]) -> Iterator[OptimizerCase]:
    """Rows of an optimizer of our own, which has one form."""
    always: dict[str, object] = {"lr": LEARNING_RATES.get(kind.__name__, 0.01)}
    for option, arguments in _options(kind):
        yield OptimizerCase(kind, option, "", {**always, **arguments})
    yield OptimizerCase(kind, "tensor_lr", "", {"lr": torch.tensor(always["lr"])})


CASES: tuple[OptimizerCase, ...] = (
    *(case for kind in _compat.optimizer_classes().values() for case in cases(kind)),
    *_transformers_cases(),
    *(case for kind in (SparseAdamW, SparseSGD) for case in _sparse_cases(kind)),
)
"""Every row; parametrize with ``CASES, ids=lambda case: case.name``."""

BY_NAME: dict[str, OptimizerCase] = {case.name: case for case in CASES}
"""The same by name, for tests that need a few of them."""
