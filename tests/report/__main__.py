"""Write the pictures of docs/pictures anew: ``python -m tests.report``; needs Chromium and torchvision."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torchvision

import secateur
from secateur.report import Report, gather
from tests.documents import ROOT, run
from tests.report.browser import ABSENT, chromium, picture
from tests.test_guides import GUIDES, python_of

PICTURES = ROOT / "docs" / "pictures"


def resnet() -> Report:
    """The report of a plan for ResNet-18."""
    torch.manual_seed(0)
    model = torchvision.models.resnet18().eval()
    plan = secateur.plan_shrink(model, torch.randn(1, 3, 224, 224), budget=secateur.Budget(macs=0.5))
    made = {"input": "1x3x224x224", "weights": "random, seed 0", "budget": "MACs at most 0.5", "score": "l2"}
    return gather(plan=plan, model=model, facts=made, title="ResNet-18 at half the MACs")


def drawn_by_guides() -> None:
    """Write the pictures that the code of the guides draws."""
    for guide in (page for page in GUIDES if ".svg" in python_of(page)):
        with TemporaryDirectory() as folder:
            run(python_of(guide), Path(folder))
            for drawn in Path(folder).glob("*.svg"):
                drawn.replace(PICTURES / drawn.name)


def main() -> None:
    """Write them."""
    drawn_by_guides()
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
