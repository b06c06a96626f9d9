"""Which optimizers train which models, told from the parameters that both have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch import nn
from torch.optim import Optimizer

from secateur.doctor.courses import held_by
from secateur.doctor.families import Family
from secateur.doctor.subjects import Subject

__all__ = ["grouped"]

_Team = tuple[dict[int, nn.Module], list[Optimizer]]


def grouped(family: Family, optimizers: Iterable[Optimizer], before: Sequence[Subject]) -> list[Subject]:
    """Sort models and optimizers into subjects: what shares a parameter belongs together.

    Args:
        family: The modules that have been seen.
        optimizers: The optimizers that have begun a step.
        before: The subjects so far; an optimizer stays with its model, also when it holds nothing of it any more.

    Returns:
        The subjects, which know what those before knew.
    """
    teams: list[_Team] = []
    strangers = []
    for optimizer in optimizers:
        roots = {id(root): root for root in _roots(family, optimizer, before)}
        if roots:
            teams = _joined(teams, roots, optimizer)
        else:
            strangers.append(optimizer)
    teams += _left_behind(family, strangers, {key for roots, _ in teams for key in roots})
    subjects = [Subject(list(roots.values()), together) for roots, together in teams]
    for subject in subjects:
        subject.follow(before)
    return subjects


def _roots(family: Family, optimizer: Optimizer, before: Sequence[Subject]) -> list[nn.Module]:
    """The models that an optimizer holds something of, or held something of."""
    former = [s for s in before if any(each is optimizer for each in s.optimizers)]
    held = {id(tensor) for tensor in held_by(optimizer)}
    return [*family.roots(held), *(family.top(root) for subject in former for root in subject.roots)]


def _joined(teams: list[_Team], roots: dict[int, nn.Module], optimizer: Optimizer) -> list[_Team]:
    """The teams with one more optimizer; those that share a model with it become one."""
    shared = [team for team in teams if team[0].keys() & roots.keys()]
    models = {key: root for own, _ in shared for key, root in own.items()} | roots
    together = [each for _, several in shared for each in several] + [optimizer]
    return [*(team for team in teams if team not in shared), (models, together)]


def _left_behind(family: Family, strangers: list[Optimizer], known: set[int]) -> Iterator[_Team]:
    """Optimizers of parameters that modules have lost, with the models that get gradients and have no optimizer."""
    lost = [o for o in strangers if any(family.was_owned(tensor) for tensor in held_by(o))]
    models = {
        id(root): root
        for root in family.called_roots()
        if id(root) not in known and any(p.grad is not None for p in root.parameters())
    }
    if lost and models:
        yield models, lost
