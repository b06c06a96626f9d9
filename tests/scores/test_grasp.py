from __future__ import annotations

import torch
from torch import Tensor, nn

from secateur.scores import grasp
from tests.scores.models import batches, by_differences, net, squared_error, weights_of


def half_squared_gradient(model: nn.Module, given: list[tuple[Tensor, Tensor]]) -> float:
    """Half the squared norm of the gradient of the mean loss by the weights, from a plain backward pass."""
    model.zero_grad()
    (sum(squared_error(model, batch) for batch in given) / len(given)).backward()
    found = sum(float(weight.grad.square().sum()) for weight in weights_of(model).values()) / 2
    model.zero_grad()
    return found


def test_grasp_is_the_weight_times_the_slope_of_half_the_squared_gradient() -> None:
    model, given = net(3, 4, 2), batches(4, 6, 5)
    found = grasp(model, squared_error, given)
    for name, weight in weights_of(model).items():
        slope = by_differences(lambda: half_squared_gradient(model, given), weight)
        torch.testing.assert_close(found[name], weight.detach() * slope, rtol=1e-5, atol=1e-9)


def test_weight_without_which_the_gradient_shrinks_is_kept() -> None:
    model, given = net(3, 4, 2), batches(6)
    with torch.no_grad():
        model[0].weight.mul_(1e-3)
    found = grasp(model, squared_error, given)["0.weight"]
    before = half_squared_gradient(model, given)
    for row in range(4):
        for column in range(3):
            value = model[0].weight.data[row, column].clone()
            model[0].weight.data[row, column] = 0.0
            shrinks_by = before - half_squared_gradient(model, given)
            model[0].weight.data[row, column] = value
            torch.testing.assert_close(found[row, column].item(), shrinks_by, rtol=5e-2, atol=1e-9)


def test_grasp_of_a_loss_without_curvature_is_zero() -> None:
    found = grasp(nn.Linear(2, 1), lambda m, x: m(x).sum(), [torch.ones(1, 2)])
    assert found["weight"].tolist() == [[0, 0]]


def test_grasp_goes_through_fused_attention() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    found = grasp(layer, lambda m, x: m(x).square().mean(), [x], include="linear1.weight")["linear1.weight"]

    def squared() -> float:
        layer.zero_grad()
        layer(x).square().mean().backward()
        return float(layer.linear1.weight.grad.square().sum()) / 2

    slope = by_differences(squared, layer.linear1.weight)
    torch.testing.assert_close(found, layer.linear1.weight.detach() * slope, rtol=1e-4, atol=1e-9)


def test_grasp_takes_its_batches_from_the_loader_once() -> None:
    taken = []

    def loader() -> list[tuple[Tensor, Tensor]]:
        for batch in batches(4, 6):
            taken.append(len(batch[0]))
            yield batch

    grasp(net(3, 4, 2), squared_error, loader())
    assert taken == [4, 6]


def test_grasp_of_complex_weights_is_that_of_their_real_and_imaginary_parts() -> None:
    class Both(nn.Module):
        def __init__(self, parts: Tensor, *, is_complex: bool) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.view_as_complex(parts) if is_complex else parts)

        def forward(self, x: Tensor) -> Tensor:
            weight = self.weight if self.weight.is_complex() else torch.view_as_complex(self.weight)
            return (x @ weight).abs().square() + (x @ weight).real.pow(3)

    parts = torch.randn(3, 2, 2, dtype=torch.float64)
    x = torch.randn(4, 3, dtype=torch.complex128)
    of_complex, of_parts = (
        grasp(Both(parts.clone(), is_complex=each), lambda m, x: m(x).mean(), [x])["weight"] for each in (True, False)
    )
    torch.testing.assert_close(of_complex, of_parts.sum(-1))


def test_grasp_of_a_sparse_gradient_is_that_of_the_dense_one() -> None:
    given = [torch.tensor([0, 2]), torch.tensor([2, 1])]

    def scored(*, sparse: bool) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(4, 3, sparse=sparse), nn.Tanh(), nn.Linear(3, 2)).double()
        return grasp(model, lambda m, x: m(x).square().mean(), given)

    found, expected = scored(sparse=True), scored(sparse=False)
    assert bool(expected["0.weight"].any())
    assert all(torch.allclose(found[name], expected[name], rtol=1e-12) for name in expected)


def test_grasp_goes_around_code_that_was_compiled() -> None:
    model, given = net(3, 4, 2), batches(4, 6)
    found = grasp(torch.compile(model, backend="aot_eager"), squared_error, given)
    assert all(torch.equal(found[name], expected) for name, expected in grasp(model, squared_error, given).items())
