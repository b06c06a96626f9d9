from __future__ import annotations

import torch
from torch import nn

from secateur.scores import fisher
from tests.scores.models import batches, by_differences, mean_loss, net, squared_error, weights_of


def test_fisher_is_half_the_squared_weight_times_the_mean_squared_slope() -> None:
    model, given = net(3, 4, 2), batches(4, 6, 5)
    found = fisher(model, squared_error, given)
    for name, weight in weights_of(model).items():
        of_batches = [by_differences(lambda b=b: mean_loss(model, squared_error, [b]), weight) for b in given]
        expected = 0.5 * weight.detach().square() * sum(slope.square() for slope in of_batches) / 3
        torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-12)


def test_fisher_of_single_examples_is_optimal_brain_damage_at_the_optimum_of_a_likelihood() -> None:
    # the negative log-likelihood of a Gaussian, with targets that leave errors of exactly ±1 at the optimum
    x = torch.randn(40, 3, dtype=torch.float64)
    model = nn.Linear(3, 1, bias=False).double()
    errors = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(20)[:, None]
    examples = [(row[None], model(row[None]).detach() + error) for row, error in zip(x, errors, strict=True)]
    found = fisher(model, lambda m, b: (m(b[0]) - b[1]).square().sum() / 2, examples)["weight"]
    hessian_diagonal = x.square().mean(0)
    torch.testing.assert_close(found[0], 0.5 * model.weight[0].detach().square() * hessian_diagonal)


def test_squares_of_small_gradients_do_not_vanish() -> None:
    model = nn.Linear(2, 1, bias=False)
    found = fisher(model, lambda m, x: m(x).sum() * 1e-25, [torch.tensor([[1.0, 2.0]])])["weight"]
    expected = 0.5 * (model.weight.detach().double() * torch.tensor([[1e-25, 2e-25]]).double()).square()
    torch.testing.assert_close(found / expected, torch.ones(1, 2, dtype=torch.float64), rtol=1e-6, atol=0)
