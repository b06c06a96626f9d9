from __future__ import annotations

import torch
from torch import nn

from secateur import prune_
from secateur.scores import gradient_magnitude
from tests.scores.models import batches, by_differences, mean_loss, net, squared_error, weights_of


def test_gradient_magnitude_is_the_absolute_slope_of_the_mean_loss() -> None:
    model, given = net(3, 4, 2), batches(4, 6, 5)
    found = gradient_magnitude(model, squared_error, given)
    for name, weight in weights_of(model).items():
        slope = by_differences(lambda: mean_loss(model, squared_error, given), weight)
        torch.testing.assert_close(found[name], slope.abs(), rtol=1e-6, atol=1e-9)


def test_gradient_magnitude_at_masked_places_is_that_of_the_dense_gradient() -> None:
    model, given = net(3, 4, 2), batches(4)
    masks = prune_(model, sparsity=0.5)
    found = gradient_magnitude(model, squared_error, given)
    for name, weight in weights_of(model).items():
        slope = by_differences(lambda: mean_loss(model, squared_error, given), weight)
        torch.testing.assert_close(found[name][~masks[name]], slope.abs()[~masks[name]], rtol=1e-6, atol=1e-9)


def test_gradient_magnitude_reads_sparse_gradients() -> None:
    table = nn.Embedding(4, 2, sparse=True).double()
    tokens = torch.tensor([1, 3, 3])
    found = gradient_magnitude(table, lambda m, t: m(t).sum(), [tokens])
    assert found["weight"].tolist() == [[0, 0], [1, 1], [0, 0], [2, 2]]


def test_gradient_magnitude_of_complex_weights_is_real() -> None:
    weight = nn.Parameter(torch.tensor([[1 + 2j, 0j]]))
    model = nn.ParameterDict({"a": weight})
    found = gradient_magnitude(model, lambda m, x: (m["a"] * x).real.sum(), [torch.tensor([[3 + 4j, 2j]])])
    torch.testing.assert_close(found["a"], torch.tensor([[5.0, 2.0]]))


def test_weights_of_any_number_of_dims_and_biases_are_scored_when_they_are_named() -> None:
    model = nn.Linear(2, 3)
    found = gradient_magnitude(model, lambda m, x: m(x).sum(), [torch.tensor([[3.0, -4.0]])], include="*")
    assert found["bias"].tolist() == [1, 1, 1]
    assert found["weight"].tolist() == [[3, 4]] * 3
