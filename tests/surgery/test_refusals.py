"""What cannot be resized in place, each refused with the reason before anything has changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.two_tensor import TwoTensor

from secateur import InvalidInputError, SecateurError, UnsupportedError, resize_, transaction
from secateur._wrappers import refuse_model
from secateur.surgery.refusals import refuse_call, refuse_tensor


def test_inference_mode_is_refused() -> None:
    layer = nn.Linear(3, 4)
    with torch.inference_mode(), pytest.raises(InvalidInputError, match=r"called inside torch\.inference_mode\(\)"):
        resize_(layer, "weight", dim=1, keep=[0])
    assert layer.weight.shape == (4, 3)


def test_inference_mode_is_refused_at_the_end_of_a_transaction_too() -> None:
    layer = nn.Linear(3, 4)
    surgery = transaction(layer)
    surgery.resize("weight", dim=1, keep=[0])
    with torch.inference_mode(), pytest.raises(InvalidInputError, match="inference_mode"):
        surgery.commit()
    assert layer.weight.shape == (4, 3)


def test_no_grad_is_fine() -> None:
    layer = nn.Linear(3, 4)
    loss = layer(torch.ones(1, 3)).sum()
    with torch.no_grad():
        refuse_call()
        resize_(layer, "weight", dim=1, keep=[0])
    assert layer.weight.requires_grad
    layer(torch.ones(1, 1)).sum().backward()
    assert layer.weight.grad is not None
    with pytest.raises(SecateurError, match="built before"):
        loss.backward()


@pytest.mark.parametrize("model", [nn.Linear(2, 2).weight, "model", None], ids=["parameter", "word", "none"])
def test_other_things_than_modules_are_refused(model: Any) -> None:
    with pytest.raises(InvalidInputError, match="a module is needed") as caught:
        resize_(model, "weight", dim=1, keep=[0])
    assert "layer, not layer.weight" in str(caught.value)


def test_ddp_is_refused_at_any_depth() -> None:
    wrapper = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(wrapper)
    wrapper.module = nn.Linear(2, 2)
    for model in (wrapper, nn.Sequential(wrapper)):
        with pytest.raises(UnsupportedError, match="inside DistributedDataParallel: its reducer keeps"):
            refuse_model(model)


def test_fsdp1_is_refused() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    wrapper = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    nn.Module.__init__(wrapper)
    with pytest.raises(UnsupportedError, match="FSDP1 keeps parameters in flat shards"):
        refuse_model(wrapper)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_scripted_models_are_refused() -> None:
    scripted = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(UnsupportedError, match="its code is compiled"):
        resize_(scripted, "weight", dim=1, keep=[0])
    assert scripted.weight.shape == (2, 2)


def inference_parameter() -> Tensor:
    with torch.inference_mode():
        return torch.ones(3, 3)


def owned_by_a_backward_optimizer() -> Tensor:
    weight = nn.Parameter(torch.ones(3, 3))
    weight._in_backward_optimizers = []
    return weight


def quantized() -> Tensor:
    return torch.quantize_per_tensor(torch.ones(3, 3), 0.1, 0, torch.qint8)


TENSORS = {
    "lazy": (nn.parameter.UninitializedParameter, "lazy parameter that has no shape yet"),
    "lazy buffer": (nn.parameter.UninitializedBuffer, "lazy parameter that has no shape yet"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "its layout is torch.sparse_coo"),
    "wrapper": (lambda: TwoTensor(torch.ones(3, 3), torch.ones(3, 3)), "its class keeps the data in other tensors"),
    "inference": (inference_parameter, r"made inside torch\.inference_mode\(\)"),
    "computed": (lambda: torch.ones(3, 3, requires_grad=True) * 2, "computed from other tensors"),
    "steps in backward": (owned_by_a_backward_optimizer, "its optimizer steps inside backward"),
    "shared": (lambda: torch.ones(3, 3).share_memory_(), "shared with other processes"),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_that_cannot_follow_are_refused(kind: str) -> None:
    make, message = TENSORS[kind]
    with pytest.raises(UnsupportedError, match=f"cannot change 'weight': .*{message}") as caught:
        refuse_tensor("weight", make())
    assert "fix:" in str(caught.value)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_quantized_tensors_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="it is quantized"):
        refuse_tensor("weight", quantized())


@pytest.mark.parametrize("kind", ["lazy", "sparse", "shared"])
def test_resize_refuses_before_anything_changes(kind: str) -> None:
    module = nn.Module()
    module.weight = nn.Parameter(torch.ones(3, 3))
    module.register_buffer("other", torch.ones(3))
    refused = TENSORS[kind][0]()
    module.register_buffer("bad", refused)
    with pytest.raises(UnsupportedError, match="cannot change 'bad'"):
        _both(module)
    assert module.weight.shape == (3, 3)
    assert module.bad is refused


def _both(module: nn.Module) -> None:
    with transaction(module) as t:
        t.resize("weight", dim=0, keep=[0])
        t.resize("bad", dim=0, keep=[0])


def test_lazy_layer_can_be_cut_after_its_first_forward() -> None:
    layer = nn.LazyLinear(4)
    with pytest.raises(UnsupportedError, match="run one forward pass first"):
        resize_(layer, "weight", dim=0, keep=[0])
    layer(torch.ones(1, 3))
    resize_(layer, "weight", dim=1, keep=[0])
    assert layer.in_features == 1


def test_views_of_one_memory_are_refused() -> None:
    flat = torch.arange(12.0)
    model = nn.ParameterDict({"a": nn.Parameter(flat[:6].view(2, 3)), "b": nn.Parameter(flat[6:])})
    with pytest.raises(UnsupportedError, match="cannot resize 'a': 'b' uses the same memory") as caught:
        resize_(model, "a", dim=0, keep=[0])
    assert "fix:   give each its own: parameter.data = parameter.data.clone()" in str(caught.value)
    assert model["a"].shape == (2, 3)
    model["a"].data = model["a"].data.clone()
    resize_(model, "a", dim=0, keep=[0])
    assert model["a"].tolist() == [[0.0, 1.0, 2.0]]


def test_view_that_nothing_else_uses_is_given_its_own_memory() -> None:
    layer = nn.Linear(8, 8)
    layer.weight.data = layer.weight.data[:4]
    resize_(layer, "weight", dim=0, keep=[0, 1])
    assert layer.weight.untyped_storage().nbytes() == 2 * 8 * 4


def test_simple_subclasses_are_served() -> None:
    class Tagged(Tensor):
        pass

    module = nn.Module()
    module.register_buffer("scale", torch.ones(4).as_subclass(Tagged))
    resize_(module, "scale", dim=0, keep=[0, 2])
    assert type(module.scale) is Tagged
    assert module.scale.shape == (2,)
