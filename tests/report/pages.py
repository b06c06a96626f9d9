"""Pages taken apart by an HTML parser, and reports to take apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

import torch
from torch import Tensor, nn

import secateur
from secateur.report import Report, gather
from tests.shrink.models import SmallCNN

VOID = {"meta", "link", "br", "img", "input", "hr"}
HOSTILE = "</script><script>problems[0] = 1</script>\"'&"


@dataclass
class Node:
    """An element of a page."""

    tag: str
    attributes: dict[str, str | None]
    children: list[Node | str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Node]:
        """This element and all that are in it, in the order of the page."""
        yield self
        for child in self.children:
            if isinstance(child, Node):
                yield from child

    def all(self, *tags: str) -> list[Node]:
        return [node for node in self if node.tag in tags]

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def __getitem__(self, name: str) -> str:
        return self.attributes.get(name) or ""


class Reader(HTMLParser):
    """Builds the tree, and refuses tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open = [Node("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), (tag, attrs)
        node = Node(tag, dict(attrs))
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Node(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parsed(text: str) -> Node:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert len(reader.open) == 1
    return reader.open[0]


class Named(nn.Module):
    """Two layers, one of which has a name that HTML must not see as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({HOSTILE: nn.Linear(6, 8)})
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(next(iter(self.parts.values()))(x).relu())
        return found


def deep(depth: int) -> nn.Module:
    """Convolutions with norms, all with one width: 2 · depth layers."""
    layers = [(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(depth)]
    return nn.Sequential(*(layer for several in layers for layer in several), nn.Conv2d(8, 3, 1)).eval()


def trained(method: str = "rigl") -> tuple[nn.Module, torch.optim.Optimizer, object, list[float]]:
    """A short training with masks that change, or with cuts."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x, losses = torch.randn(32, 6), []
    run: object
    if method == "rigl":
        run = secateur.RigL(model, optimizer, sparsity=0.5, every=4, end_step=14)
    else:
        run = secateur.shrink_schedule(
            model, x, begin_step=4, end_step=12, num_cuts=3, final_sparsity=0.5, optimizer=optimizer
        )
    for _ in range(16):
        optimizer.zero_grad()
        loss = (model(x) - x[:, :3]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if isinstance(run, secateur.shrink.ShrinkSchedule):
            run.step()
    return model, optimizer, run, losses


def report_of_plan() -> Report:
    model = SmallCNN().eval()
    return gather(plan=secateur.plan_shrink(model, torch.randn(2, 3, 6, 6), sparsity=0.4), model=model)


def report_of_hostile_names() -> Report:
    model = Named()
    masks = secateur.prune_(model, sparsity=0.5)
    plan = secateur.plan_shrink(model, torch.randn(2, 6), sparsity=0.5)
    return gather(plan=plan, masks=masks, curves={HOSTILE: [1.0, 0.5]}, title=HOSTILE)


def report_of_training() -> Report:
    model, _, training, losses = trained()
    _, _, schedule, _ = trained("cuts")
    return gather(training=[training, schedule], curves={"loss": losses, "accuracy": {1: 0.25, 16: 0.75}}, model=model)


def report_of_everything() -> Report:
    model, optimizer, training, losses = trained()
    x = torch.randn(4, 6)
    plan = secateur.plan_shrink(model, x, sparsity=0.25)
    comparison = [
        secateur.profile({"dense": deep(1)[:1], "masked": nn.Sequential(nn.Conv2d(8, 8, 3))}, torch.randn(1, 8, 6, 6)),
        secateur.compress(model, x),
    ]
    model[0].weight = nn.Parameter(model[0].weight * 1.0)
    return gather(
        plan=plan,
        model=model,
        training=training,
        curves={"loss": losses},
        comparison=comparison,
        findings=secateur.diagnose(model, optimizer),
    )


REPORTS: dict[str, Callable[[], Report]] = {
    "plan": report_of_plan,
    "hostile names": report_of_hostile_names,
    "training": report_of_training,
    "everything": report_of_everything,
}
