"""Healthy training setups of many kinds: the doctor must find nothing in any of them, at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import secateur


@dataclass
class Training:
    """A model and all that trains it; `compute` gives a loss, `finish` ends a step."""

    model: nn.Module
    optimizer: Any
    compute: Callable[[], Tensor]
    extra: dict[str, Any] = field(default_factory=dict)
    finish: Callable[[], None] = lambda: None
    between: Callable[[int], None] = lambda step: None
    set_to_none: bool = True
    scaler: Any = None
    accumulate: int = 1
    steps: int = 3
    asked: tuple[str, ...] = ("before", "cleared", "forward", "backward", "stepped", "between")

    def moments(self, steps: int) -> Iterator[tuple[str, Tensor | None]]:
        """Train, and stop at each moment at which a user may ask; with the loss where there is one."""
        return ((moment, loss) for moment, loss in self._all_moments(steps) if moment in self.asked)

    def _all_moments(self, steps: int) -> Iterator[tuple[str, Tensor | None]]:
        yield "before", None
        for step in range(steps):
            self.optimizer.zero_grad(set_to_none=self.set_to_none)
            yield "cleared", None
            for _ in range(self.accumulate):
                loss = self.compute()
                yield "forward", loss
                (self.scaler.scale(loss) if self.scaler else loss).backward()
                yield "backward", loss
            if self.scaler:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
            self.finish()
            yield "stepped", loss
            self.between(step)
            yield "between", None


def slow(made: Training) -> Training:
    """For setups about which each question goes through all live objects: ask fewer."""
    made.steps, made.asked = 1, ("before", "backward")
    return made


TRAININGS: dict[str, Callable[[], Any]] = {}


def training(build: Callable[[], Any]) -> Callable[[], Any]:
    """Put a healthy setup into the table."""
    TRAININGS[build.__name__] = build
    return build


def mlp() -> nn.Sequential:
    """Four inputs, six hidden units, three outputs."""
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def plain(model: nn.Module, *shape: int) -> Callable[[], Tensor]:
    """A loss of random inputs."""
    return lambda: model(torch.randn(shape)).pow(2).mean()


def _optimizers() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    yield "sgd_momentum", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)
    for name in ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "Adagrad", "RMSprop", "Rprop", "ASGD"):
        yield name.lower(), lambda p, name=name: getattr(torch.optim, name)(p, lr=1e-2)
    yield "amsgrad", lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True, weight_decay=0.1)
    yield "fused", lambda p: torch.optim.Adam(p, lr=1e-2, fused=True)
    yield "adafactor", lambda p: torch.optim.Adafactor(p, lr=1e-2)
    yield "tensor_lr", lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-2))


def _with(make: Callable[[Any], Any]) -> Callable[[], Training]:
    def build() -> Training:
        model = mlp()
        return Training(model, make(model.parameters()), plain(model, 8, 4))

    return build


TRAININGS.update({f"mlp_{name}": _with(make) for name, make in _optimizers()})


@training
def mlp_muon_and_adam() -> Training:
    model = mlp()
    muon = torch.optim.Muon([model[0].weight, model[2].weight], lr=1e-2)
    adam = torch.optim.Adam([model[0].bias, model[2].bias])
    return Training(model, _Together(muon, adam), plain(model, 8, 4), {"optimizer": [muon, adam]})


class _Together:
    """Two optimizers that step together."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()


@training
def one_of_two_optimizers() -> Training:
    made = mlp_muon_and_adam()
    made.extra = {"optimizer": made.extra["optimizer"][0]}
    return slow(made)


@training
def cnn_with_batch_norm() -> Training:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(16, 3)
    ).to(memory_format=torch.channels_last)
    return Training(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), plain(model, 8, 2, 6, 6))


@training
def lstm() -> Training:
    model = nn.LSTM(3, 4, num_layers=2, batch_first=True)
    compute = lambda: model(torch.randn(5, 6, 3))[0].pow(2).mean()  # noqa: E731
    return Training(model, torch.optim.Adam(model.parameters()), compute)


@training
def transformer_of_copied_layers() -> Training:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return Training(model, torch.optim.AdamW(groups, lr=1e-3), plain(model, 2, 5, 8))


class LM(nn.Module):
    """A language model with tied ends."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(20, 8)
        self.mid = nn.Linear(8, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mid(self.emb(tokens))))


def lm_loss(model: nn.Module) -> Callable[[], Tensor]:
    """Next-token loss on random tokens."""
    tokens = torch.randint(0, 20, (4, 7))
    return lambda: nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


@training
def tied_language_model() -> Training:
    model = LM()
    return Training(model, torch.optim.Adam(model.parameters()), lm_loss(model))


@training
def untied_language_model_with_equal_start() -> Training:
    model = LM()
    model.head.weight = nn.Parameter(model.emb.weight.detach().clone())
    return Training(model, torch.optim.Adam(model.parameters()), lm_loss(model))


@training
def frozen_backbone() -> Training:
    model = mlp()
    model[0].requires_grad_(False)
    return Training(model, torch.optim.SGD(model[2].parameters(), lr=0.1), plain(model, 8, 4))


@training
def frozen_backbone_in_the_optimizer() -> Training:
    model = mlp()
    model[0].requires_grad_(False)
    return Training(model, torch.optim.SGD(model.parameters(), lr=0.1), plain(model, 8, 4))


@training
def frozen_target_network() -> Training:
    model = nn.ModuleDict({"online": mlp(), "target": mlp()})
    model["target"].load_state_dict(model["online"].state_dict())
    model["target"].requires_grad_(False)
    optimizer = torch.optim.Adam(model["online"].parameters())

    def compute() -> Tensor:
        x = torch.randn(8, 4)
        return (model["online"](x) - model["target"](x + 1)).pow(2).mean()

    return Training(model, optimizer, compute)


class _Turns:
    """Two optimizers that take turns, as in a GAN."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers, self.turn = optimizers, 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def step(self) -> None:
        self.optimizers[self.turn].step()
        self.turn = 1 - self.turn


@training
def gan_in_one_module() -> Training:
    model = nn.ModuleDict({"generator": mlp(), "critic": nn.Linear(3, 1)})
    pair = [torch.optim.Adam(model[name].parameters(), lr=1e-3) for name in ("generator", "critic")]
    turns = _Turns(*pair)

    def compute() -> Tensor:
        made = model["generator"](torch.randn(8, 4))
        return model["critic"](made if turns.turn == 0 else made.detach()).mean() * (1 if turns.turn else -1)

    return Training(model, turns, compute, {"optimizer": pair})


@training
def gan_generator_alone() -> Training:
    generator, critic = mlp(), nn.Linear(3, 1)
    compute = lambda: critic(generator(torch.randn(8, 4))).mean()  # noqa: E731
    return Training(generator, torch.optim.Adam(generator.parameters()), compute)


@training
def averaged_model() -> Training:
    model = mlp()
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    finish = lambda: average.update_parameters(model)  # noqa: E731
    return Training(model, optimizer, plain(model, 8, 4), {"ema": average}, finish)


@training
def averages_of_several_kinds() -> Training:
    model = mlp()
    copies = [mlp(), {name: p.detach().clone() for name, p in model.named_parameters()}]
    return Training(model, torch.optim.Adam(model.parameters()), plain(model, 8, 4), {"ema": copies})


@training
def warm_up_from_zero() -> Training:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 2))
    return Training(model, optimizer, plain(model, 8, 4), {"scheduler": scheduler}, scheduler.step)


@training
def warm_up_asked_before_the_scheduler_steps() -> Training:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 2))
    compute = plain(model, 8, 4)
    return Training(model, optimizer, compute, {"scheduler": scheduler}, between=lambda step: scheduler.step())


@training
def warm_up_by_a_scheduler_that_is_not_passed() -> Training:
    model = mlp()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 2))
    return Training(model, optimizer, plain(model, 8, 4), between=lambda step: scheduler.step())


@training
def cyclic_rate_from_zero() -> Training:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CyclicLR(optimizer, base_lr=0.0, max_lr=0.1, step_size_up=1)
    compute = plain(model, 8, 4)
    return Training(model, optimizer, compute, {"scheduler": scheduler}, between=lambda step: scheduler.step())


@training
def chained_schedulers() -> Training:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lrs = torch.optim.lr_scheduler
    scheduler = lrs.SequentialLR(optimizer, [lrs.LinearLR(optimizer), lrs.CosineAnnealingLR(optimizer, 9)], [2])
    return Training(model, optimizer, plain(model, 8, 4), {"scheduler": [scheduler]}, scheduler.step)


@training
def grad_scaler_and_accumulation() -> Training:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")

    def compute() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(torch.randn(8, 4)).float().pow(2).mean()

    return Training(model, optimizer, compute, scaler=scaler, accumulate=2)


@training
def gradients_cleared_to_zeros() -> Training:
    model = mlp()
    return Training(model, torch.optim.Adam(model.parameters()), plain(model, 8, 4), set_to_none=False)


class _WithClosure(torch.optim.LBFGS):
    """LBFGS that computes the loss by itself."""

    compute: Callable[[], Tensor]

    def step(self) -> Any:  # type: ignore[override]
        def closure() -> Tensor:
            self.zero_grad()
            loss = self.compute()
            loss.backward()
            return loss

        return super().step(closure)


@training
def lbfgs() -> Training:
    model = mlp()
    inputs = torch.randn(8, 4)
    optimizer = _WithClosure(model.parameters(), lr=0.1, max_iter=3)
    optimizer.compute = lambda: model(inputs).pow(2).mean()
    return Training(model, optimizer, optimizer.compute)


@training
def pruned_by_torch_after_the_optimizer() -> Training:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    prune.l1_unstructured(model[0], "weight", 0.5)
    return Training(model, optimizer, plain(model, 8, 4))


@training
def pruned_by_torch_before_the_optimizer() -> Training:
    model = mlp()
    prune.ln_structured(model[0], "weight", 0.5, n=2, dim=0)
    optimizer = torch.optim.Adam(model.parameters())
    between = lambda step: prune.remove(model[0], "weight") if step == 1 else None  # noqa: E731
    return Training(model, optimizer, plain(model, 8, 4), between=between)


@training
def resized_in_mid_training() -> Training:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    average = AveragedModel(model)

    def between(step: int) -> None:
        if step == 1:
            with secateur.transaction(model, optimizer, average) as surgery:
                surgery.resize("0.weight", dim=0, keep=range(4))
                surgery.resize("0.bias", dim=0, keep=range(4))
                surgery.resize("2.weight", dim=1, keep=range(4))

    return Training(model, optimizer, plain(model, 8, 4), {"ema": average}, between=between)


@training
def masks_held_by_hand() -> Training:
    model = mlp()
    masks = {"0.weight": torch.rand(6, 4) > 0.5}

    def hold() -> None:
        with torch.no_grad():
            model[0].weight.masked_fill_(~masks["0.weight"], 0)

    hold()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Training(model, optimizer, plain(model, 8, 4), {"masks": masks}, hold)


@training
def masks_held_by_the_library() -> Training:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    secateur.prune_(model, optimizer, sparsity=0.8)
    return Training(model, optimizer, plain(model, 8, 4))


@training
def masks_passed_on() -> Training:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    masks = secateur.prune_(model, optimizer, sparsity=0.5, allocation=secateur.allocation.global_)
    return Training(model, optimizer, plain(model, 8, 4), {"masks": masks})


@training
def compiled() -> Training:
    model = torch.compile(mlp(), backend="aot_eager")
    return Training(model, torch.optim.Adam(model.parameters()), plain(model, 8, 4))


@training
def data_parallel_wrapper() -> Training:
    model = nn.DataParallel(mlp())
    return Training(model, torch.optim.Adam(model.parameters()), plain(model, 8, 4))


def in_ddp(model: nn.Module) -> nn.Module:
    """The model in DDP, in a group of this process alone (which conftest.py ends)."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return nn.parallel.DistributedDataParallel(model)


@training
def distributed_data_parallel() -> Training:
    model = in_ddp(mlp())
    return slow(Training(model, torch.optim.Adam(model.parameters()), plain(model, 8, 4)))


class _LoRA(nn.Module):
    """A frozen layer with a low-rank correction that starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 5).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, 6))
        self.up = nn.Parameter(torch.zeros(5, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + x @ self.down.T @ self.up.T


@training
def low_rank_adapter_sgd() -> Training:
    model = _LoRA()
    optimizer = torch.optim.SGD([model.down, model.up], lr=0.1, momentum=0.9)
    return Training(model, optimizer, plain(model, 8, 6))


@training
def low_rank_adapter_adam() -> Training:
    model = _LoRA()
    return Training(model, torch.optim.AdamW(model.parameters()), plain(model, 8, 6))


def _adapter_warmed_up(make: Callable[[Any], Any]) -> Callable[[], Training]:
    def build() -> Training:
        model = _LoRA()
        optimizer = make([model.down, model.up])
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 4))
        extra, between = {"scheduler": scheduler}, lambda step: scheduler.step()
        return Training(model, optimizer, plain(model, 8, 6), extra, between=between, steps=5)

    return build


class _Signs(torch.optim.Optimizer):
    """Moves every weight by the learning rate, as Lion does, and counts no steps."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    average = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
                    parameter.sub_(group["lr"] * (0.9 * average + 0.1 * parameter.grad).sign())
                    average.lerp_(parameter.grad, 0.01)


TRAININGS.update(
    {
        "adapter_warm_up_adam": _adapter_warmed_up(lambda p: torch.optim.AdamW(p, lr=0.01)),
        "adapter_warm_up_rmsprop": _adapter_warmed_up(lambda p: torch.optim.RMSprop(p, lr=0.01)),
        "adapter_warm_up_momentum": _adapter_warmed_up(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        "adapter_warm_up_nesterov": _adapter_warmed_up(
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)
        ),
        "adapter_warm_up_dampened": _adapter_warmed_up(
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5)
        ),
    }
)


class _ReZero(nn.Module):
    """A residual branch whose gain, one number, starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.0))
        self.branch, self.head = mlp(), nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([x, self.gain * self.branch(x)], dim=1))


def _gain_from_zero(make: Callable[[Any], Any]) -> Callable[[], Training]:
    def build() -> Training:
        model = _ReZero()
        return Training(model, make(model.parameters()), plain(model, 8, 4))

    return build


TRAININGS["gain_from_zero_signs"] = _gain_from_zero(_Signs)
TRAININGS["gain_from_zero_sgd"] = _gain_from_zero(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))


@training
def low_rank_adapter_signs() -> Training:
    model = _LoRA()
    return Training(model, _Signs([model.down, model.up]), plain(model, 8, 6))


@training
def empty_parameter() -> Training:
    model = mlp()
    model.register_parameter("unused_classes", nn.Parameter(torch.zeros(0, 3)))
    compute = lambda: model(torch.randn(8, 4)).pow(2).mean() + model.unused_classes.sum()  # noqa: E731
    return Training(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), compute)


@training
def frozen_part_in_evaluation_mode() -> Training:
    backbone = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.1)).requires_grad_(False)
    model = nn.Sequential(backbone, nn.Linear(6, 3)).eval()
    return Training(model, torch.optim.Adam(model[1].parameters()), plain(model, 8, 4))


@training
def zero_initialised_head() -> Training:
    model = mlp()
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    compute = lambda: (model(torch.randn(8, 4)) - 1).pow(2).mean()  # noqa: E731
    return Training(model, torch.optim.SGD(model.parameters(), lr=0.1), compute)


class _Tokens(nn.Module):
    """A class token that starts at zero, and a head that does, as vision transformers have."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 6))
        self.mix = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(6, 3)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(torch.cat([self.token.expand(len(x), 1, 6), x], dim=1))[:, 0])


@training
def token_and_head_that_start_at_zero() -> Training:
    model = _Tokens()
    compute = lambda: (model(torch.randn(8, 4, 6)) - 1).pow(2).mean()  # noqa: E731
    return Training(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), compute)


@training
def blocks_left_out_at_random() -> Training:
    class StochasticDepth(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 0.0 if self.training else x

    model = nn.Sequential(nn.Linear(4, 3), StochasticDepth(), nn.Linear(3, 2))
    return Training(model, torch.optim.SGD(model.parameters(), lr=0.1), plain(model, 8, 4))


@training
def loss_with_weights_of_its_own() -> Training:
    model, criterion = mlp(), nn.Linear(3, 1)
    optimizer = torch.optim.Adam([*model.parameters(), *criterion.parameters()])
    return Training(model, optimizer, lambda: criterion(model(torch.randn(8, 4))).pow(2).mean())


@training
def parameter_outside_of_any_module() -> Training:
    model, log_sigma = mlp(), nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.Adam([*model.parameters(), log_sigma])
    compute = lambda: model(torch.randn(8, 4)).pow(2).mean() * (-log_sigma).exp() + log_sigma  # noqa: E731
    return Training(model, optimizer, compute)


@training
def optimizer_of_the_inputs() -> Training:
    model, image = mlp().requires_grad_(False), nn.Parameter(torch.randn(1, 4))
    return Training(model, torch.optim.SGD([image], lr=0.1), lambda: model(image).sum())


@training
def weight_norm() -> Training:
    model = mlp()
    parametrizations.weight_norm(model[0])
    return Training(model, torch.optim.Adam(model.parameters()), plain(model, 8, 4))


@training
def spectral_norm_after_the_optimizer() -> Training:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    parametrizations.spectral_norm(model[0])
    return Training(model, optimizer, plain(model, 8, 4))


@training
def sparse_embedding() -> Training:
    model = nn.Embedding(20, 4, sparse=True)
    compute = lambda: model(torch.randint(0, 20, (5,))).pow(2).mean()  # noqa: E731
    return Training(model, torch.optim.SparseAdam(model.parameters()), compute)


@training
def named_parameters() -> Training:
    model = mlp()
    return Training(model, torch.optim.Adam(model.named_parameters()), plain(model, 8, 4))


@training
def reentrant_checkpoint() -> Training:
    model = mlp()

    def compute() -> Tensor:
        inputs = torch.randn(8, 4, requires_grad=True)
        return model[2](checkpoint(lambda x: model[1](model[0](x)), inputs, use_reentrant=True)).pow(2).mean()

    return Training(model, torch.optim.Adam(model.parameters()), compute)


@training
def lazy_layers() -> Training:
    model = nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.Linear(6, 3))
    return Training(model, torch.optim.Adam(model.parameters()), plain(model, 8, 4))


@training
def attention_mask_of_infinities() -> Training:
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    model.register_buffer("causal", torch.full((5, 5), -torch.inf).triu(1))

    def compute() -> Tensor:
        x = torch.randn(2, 5, 8)
        return model(x, x, x, attn_mask=model.causal, need_weights=False)[0].pow(2).mean()

    return Training(model, torch.optim.Adam(model.parameters()), compute)


@training
def double_precision_and_complex() -> Training:
    model = nn.Linear(4, 3, dtype=torch.complex128)
    compute = lambda: model(torch.randn(8, 4, dtype=torch.complex128)).abs().pow(2).mean()  # noqa: E731
    return Training(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), compute)
