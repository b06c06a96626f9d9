from __future__ import annotations

import pytest
import torch
from torch import nn

from secateur.scores import snip, taylor
from tests.scores.models import batches, by_differences, mean_loss, net, squared_error, weights_of


def test_snip_is_the_share_of_the_slopes_by_switches_on_the_connections() -> None:
    model, given = net(3, 4, 2), batches(4, 6, 5)
    found = snip(model, squared_error, given)
    slopes = {}
    for name, weight in weights_of(model).items():
        switches, whole = torch.ones_like(weight, requires_grad=False), weight.detach().clone()

        def loss(
            weight: torch.Tensor = weight, whole: torch.Tensor = whole, switches: torch.Tensor = switches
        ) -> float:
            weight.data.copy_(whole * switches)
            return mean_loss(model, squared_error, given)

        slopes[name] = by_differences(loss, switches).abs()
        weight.data.copy_(whole)
    total = sum(float(slope.sum()) for slope in slopes.values())
    for name, slope in slopes.items():
        torch.testing.assert_close(found[name], slope / total, rtol=1e-6, atol=1e-9)


def test_snip_adds_up_to_one_over_all_weights() -> None:
    found = snip(net(3, 4, 2), squared_error, batches(4, 6))
    assert sum(float(score.sum()) for score in found.values()) == pytest.approx(1)


def test_snip_lets_batches_cancel_where_taylor_adds_them_up() -> None:
    model = nn.Linear(1, 1, bias=False)
    opposite = [torch.ones(1, 1), -torch.ones(1, 1)]
    assert snip(model, lambda m, x: m(x).sum(), opposite)["weight"].item() == 0
    assert taylor(model, lambda m, x: m(x).sum(), opposite)["weight"].item() > 0


def test_snip_is_refused_by_name_where_the_sum_overflows() -> None:
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, 1e30)
    with pytest.raises(ValueError, match="cannot rank the scores of 'weight'"):
        snip(model, lambda m, x: (m(x) * x).sum(), [torch.full((1, 2), 1e30)])
