"""Write the pictures of docs/pictures anew: ``python -m tests.report``; needs Chromium and torchvision."""

from __future__ import annotations

import sys

import torch
import torchvision

import secateur
from secateur.report import Report, gather
from tests.documents import ROOT
from tests.report.browser import ABSENT, chromium, picture

PICTURES = ROOT / "docs" / "pictures"


def resnet() -> Report:
    """The report of a plan for ResNet-18."""
    torch.manual_seed(0)
    model = torchvision.models.resnet18().eval()
    plan = secateur.plan_shrink(model, torch.randn(1, 3, 224, 224), budget=secateur.Budget(macs=0.5))
    return gather(plan=plan, model=model, title="ResNet-18 at half the MACs")


def main() -> None:
    """Write them."""
    if chromium() is None:
        sys.exit(ABSENT)
    report = resnet()
    coupling = Report(report.title, report.sections[-1:])
    PICTURES.mkdir(exist_ok=True)
    picture(report.to_html(), PICTURES / "report-light.png", width=900, height=1000)
    picture(coupling.to_html(), PICTURES / "report-dark.png", width=900, height=960, is_dark=True)
    picture(report.to_html(), PICTURES / "report-phone.png", width=390, height=844)


if __name__ == "__main__":
    main()
