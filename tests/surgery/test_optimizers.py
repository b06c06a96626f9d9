"""Optimizers as holders: LBFGS's flat history, and wrappers of other libraries."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur import HolderError, UnknownStateError, grow_, resize_, transaction
from secateur.surgery.optimizers import groups_of, unwrapped_optimizer


def flat(parameters: list[Tensor]) -> Tensor:
    """The reference: what LBFGS would gather from tensors of the parameters' shapes."""
    return torch.cat([torch.view_as_real(p).reshape(-1) if p.is_complex() else p.reshape(-1) for p in parameters])


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_lbfgs_history_is_indexed_like_the_parameters(dtype: torch.dtype) -> None:
    parameters = [nn.Parameter(torch.randn(*shape, dtype=dtype)) for shape in ((4, 3), (2,), (3, 5))]
    model = nn.ParameterList(parameters)
    optimizer = torch.optim.LBFGS(parameters, max_iter=3)
    vectors = [[torch.randn_like(p) for p in parameters] for _ in range(3)]
    state = optimizer.state[parameters[0]]
    ro = [torch.tensor(2.0)]
    state.update(d=flat(vectors[0]), old_dirs=[flat(vectors[1])], old_stps=[flat(vectors[2])], ro=ro, t=0.5)
    optimizer._numel_cache = 99
    with transaction(model, optimizer) as t:
        t.resize("0", dim=0, keep=[1, 3])
        t.resize("2", dim=1, keep=[0, 4])
    cut = [flat([v[0][[1, 3]], v[1], v[2][:, [0, 4]]]) for v in vectors]
    assert torch.equal(state["d"], cut[0])
    assert torch.equal(state["old_dirs"][0], cut[1])
    assert torch.equal(state["old_stps"][0], cut[2])
    assert state["ro"] is ro
    assert state["t"] == 0.5
    assert optimizer._numel_cache is None


@pytest.mark.parametrize(("name", "size"), [("mystery", 12), ("d", 99), ("old_dirs", 99)])
def test_lbfgs_vectors_of_unknown_meaning_are_refused(name: str, size: int) -> None:
    layer = nn.Linear(3, 3)
    optimizer = torch.optim.LBFGS(layer.parameters())
    vector = torch.zeros(size)
    optimizer.state[layer.weight][name] = [vector] if name == "old_dirs" else vector
    with pytest.raises(UnknownStateError, match=f"LBFGS keeps '{name}' for 'weight'"):
        resize_(layer, "weight", dim=1, keep=[0, 1], optimizer=optimizer)
    assert layer.weight.shape == (3, 3)
    assert optimizer.state[layer.weight][name] is vector or name == "old_dirs"


def test_lbfgs_that_holds_none_of_the_changed_tensors_is_left_alone() -> None:
    layer, other = nn.Linear(3, 3), nn.Linear(3, 3)
    optimizer, strange = torch.optim.SGD(layer.parameters()), torch.optim.LBFGS(other.parameters())
    strange._numel_cache = 12
    resize_(layer, "weight", dim=1, keep=[0, 1], optimizer=[optimizer, strange])
    assert strange._numel_cache == 12


def test_groups_of_maps_every_parameter_to_its_group() -> None:
    layer = nn.Linear(3, 3)
    optimizer = torch.optim.SGD([{"params": [layer.weight]}, {"params": [layer.bias], "lr": 0.5}], lr=0.1)
    assert groups_of(optimizer)[id(layer.bias)]["lr"] == 0.5
    assert groups_of(optimizer)[id(layer.weight)]["lr"] == 0.1


def test_group_options_of_the_parameter_are_used_for_new_positions() -> None:
    layer = nn.Linear(3, 3)
    optimizer = torch.optim.Rprop([{"params": [layer.weight]}, {"params": [layer.bias], "lr": 0.5}], lr=0.1)
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    with transaction(layer, optimizer) as t:
        t.grow("weight", dim=0, size=4)
        t.grow("bias", dim=0, size=4)
    assert optimizer.state[layer.weight]["step_size"][3].tolist() == pytest.approx([0.1] * 3)
    assert optimizer.state[layer.bias]["step_size"][3].item() == 0.5


# Wrappers -------------------------------------------------------------------------------------------------------------


class PropertyWrapper(torch.optim.Optimizer):
    """As Accelerate's: an Optimizer whose state and groups are those of the one inside."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def state(self) -> Any:
        return self.optimizer.state

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups


def adopted(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """As Lightning's: an object of a subclass of the optimizer's class, with a copy of its ``__dict__``."""
    kind = type("Adopted", (type(optimizer),), {"optimizer": property(lambda self: self._optimizer)})
    wrapper = kind.__new__(kind)
    vars(wrapper).update(vars(optimizer), _optimizer=optimizer)
    return wrapper


@pytest.mark.parametrize("wrap", [PropertyWrapper, adopted, lambda o: PropertyWrapper(adopted(o))])
def test_wrapped_optimizer_follows_as_what_is_inside(
    wrap: Callable[[torch.optim.Optimizer], torch.optim.Optimizer],
) -> None:
    layer = nn.Linear(3, 4)
    raw = torch.optim.Adagrad(layer.parameters(), initial_accumulator_value=0.5)
    wrapped = wrap(raw)
    assert unwrapped_optimizer(wrapped) is raw
    grow_(layer, "weight", dim=1, size=4, optimizer=wrapped)
    assert raw.state[layer.weight]["sum"][:, 3].tolist() == [0.5] * 4
    resize_(layer, "weight", dim=1, keep=[0, 1], optimizer=raw)  # the raw one will do as well
    assert raw.state[layer.weight]["sum"].shape == (4, 2)
    resize_(layer, "weight", dim=1, keep=[0], optimizer=[wrapped, raw])  # and both are one


def test_wrapped_lbfgs_forgets_its_size_inside_the_wrapper() -> None:
    layer = nn.Linear(3, 4)
    raw = torch.optim.LBFGS(layer.parameters())
    raw._numel_cache = 16
    resize_(layer, "weight", dim=1, keep=[0, 1], optimizer=adopted(raw))
    assert raw._numel_cache is None


@pytest.mark.integration
def test_optimizer_of_accelerate_follows() -> None:
    accelerate = importlib.import_module("accelerate")
    layer = nn.Linear(3, 4)
    raw = torch.optim.SGD(layer.parameters(), momentum=0.9)
    wrapped = accelerate.Accelerator(cpu=True).prepare_optimizer(raw)
    layer(torch.ones(1, 3)).sum().backward()
    wrapped.step()
    resize_(layer, "weight", dim=1, keep=[0, 1], optimizer=wrapped)
    assert unwrapped_optimizer(wrapped) is raw
    assert raw.state[layer.weight]["momentum_buffer"].shape == (4, 2)


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["lightning.fabric.wrappers._FabricOptimizer", "LightningOptimizer"])
def test_optimizers_of_lightning_follow(kind: str) -> None:
    fabric = importlib.import_module("lightning.fabric.wrappers")
    pytorch = importlib.import_module("lightning.pytorch.core.optimizer")
    layer = nn.Linear(3, 4)
    raw = torch.optim.SGD(layer.parameters(), momentum=0.9)
    layer(torch.ones(1, 3)).sum().backward()
    raw.step()
    strategy = importlib.import_module("lightning.fabric.strategies").SingleDeviceStrategy()
    is_fabric = kind.endswith("_FabricOptimizer")
    wrapped = fabric._FabricOptimizer(raw, strategy) if is_fabric else pytorch.LightningOptimizer(raw)
    resize_(layer, "weight", dim=1, keep=[0, 1], optimizer=wrapped)
    assert unwrapped_optimizer(wrapped) is raw
    assert raw.state[layer.weight]["momentum_buffer"].shape == (4, 2)


def test_optimizer_that_keeps_another_inside_is_not_taken_for_a_wrapper() -> None:
    class SAM(torch.optim.Optimizer):
        def __init__(self, params: list[nn.Parameter]) -> None:
            super().__init__(params, {})
            self.optimizer = torch.optim.SGD(params)

    sam = SAM([nn.Parameter(torch.zeros(2))])
    assert unwrapped_optimizer(sam) is sam


@pytest.mark.parametrize("obj", [nn.Linear(2, 2), "adam", 3, {}], ids=["module", "word", "number", "dict"])
def test_other_objects_are_no_optimizers(obj: object) -> None:
    layer = nn.Linear(3, 4)
    with pytest.raises(HolderError, match="is not an optimizer"):
        resize_(layer, "weight", dim=1, keep=[0], optimizer=obj)
    assert layer.weight.shape == (4, 3)
