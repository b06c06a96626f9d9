from __future__ import annotations

import torch
from torch import nn

from secateur.scores import taylor
from tests.scores.models import batches, by_differences, mean_loss, net, squared_error, weights_of


def test_taylor_is_the_mean_over_batches_of_the_absolute_product() -> None:
    model, given = net(3, 4, 2), batches(4, 6, 5)
    found = taylor(model, squared_error, given)
    for name, weight in weights_of(model).items():
        of_batches = [by_differences(lambda b=b: mean_loss(model, squared_error, [b]), weight) for b in given]
        expected = sum((weight.detach() * slope).abs() for slope in of_batches) / 3
        torch.testing.assert_close(found[name], expected, rtol=1e-6, atol=1e-9)


def test_taylor_foretells_what_the_loss_changes_by_where_a_small_weight_goes() -> None:
    model, given = net(3, 4, 2), batches(6)
    with torch.no_grad():
        model[0].weight.mul_(1e-4)
    found = taylor(model, squared_error, given)["0.weight"]
    before = mean_loss(model, squared_error, given)
    for row in range(4):
        for column in range(3):
            value = model[0].weight.data[row, column].clone()
            model[0].weight.data[row, column] = 0.0
            change = abs(mean_loss(model, squared_error, given) - before)
            model[0].weight.data[row, column] = value
            torch.testing.assert_close(found[row, column], torch.tensor(change).double(), rtol=1e-2, atol=1e-9)


def test_taylor_of_complex_weights_is_the_change_of_a_real_loss() -> None:
    model = nn.ParameterDict({"a": nn.Parameter(torch.tensor([[1 + 2j, 3j]]))})
    x = torch.tensor([[2 + 1j, 1j]])
    # without the first weight the loss loses Re((1 + 2j)(2 + 1j)) = 0, without the second Re(3j · 1j) = -3
    found = taylor(model, lambda m, x: (m["a"] * x).real.sum(), [x])
    torch.testing.assert_close(found["a"], torch.tensor([[0.0, 3.0]]))
