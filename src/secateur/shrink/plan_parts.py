"""What plans to shrink and plans to grow have in common: their groups, how they are carried out, and their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from secateur.shrink.files import Part
from secateur.shrink.fit import Fit
from secateur.shrink.numbers import NumberPlan, SetNumber, number_owner
from secateur.shrink.twins import twins_among, with_free_heads_
from secateur.shrink.values import refuse_fake
from secateur.surgery.transaction import Holders, Transaction, transaction

if TYPE_CHECKING:
    from secateur.shrink.grow_plan import GrowPlan
    from secateur.shrink.plan import ShrinkPlan

__all__ = ["GroupPlan", "carried_out", "part_of", "parts_of"]


@dataclass(frozen=True)
class GroupPlan:
    """What happens to one group: how many of its units stay, and whether some op mixes them (a norm, a softmax)."""

    name: str
    kind: str
    before: int
    after: int
    mixes: bool = False


@contextmanager
def carried_out(
    plan: GrowPlan | ShrinkPlan, model: nn.Module, optimizer: Holders, ema: Holders
) -> Iterator[tuple[Transaction, list[nn.Module]]]:
    """The transaction that carries out a plan, committed when the block ends; numbers and free heads are in it.

    Args:
        plan: The plan.
        model: The model, which the plan must fit.
        optimizer: The optimizer that trains it, or several.
        ema: What follows by name.

    Yields:
        The transaction, in which tensors have yet to be changed; and the model with those of `ema` that are copies.

    Raises:
        ShapeError: The plan does not fit.
        SecateurError: Those of `secateur.transaction`. Nothing has been changed then.
    """
    plan.fit.refuse_model(model)
    refuse_fake(model.parameters())
    twins = twins_among(model, ema, plan.fit.shapes)
    owners = [number_owner(twin, number) for twin in twins for number in plan.numbers]
    with ExitStack() as bound_again, transaction(model, optimizer, ema) as surgery:
        for twin in twins:
            for name in plan.freed:
                bound_again.callback(with_free_heads_(twin.get_submodule(name)))
        for owner, number in zip(owners, plan.numbers * len(twins), strict=True):
            surgery.also(SetNumber(owner, number))
        yield surgery, twins
        surgery.commit()
        bound_again.pop_all()


def part_of(plan: GrowPlan | ShrinkPlan, *, kind: str, tensors: Mapping[str, Tensor], **more: Any) -> Part:
    """What a safetensors file holds of a plan: its tensors as such, the rest as JSON in the header.

    Args:
        plan: The plan.
        kind: The format.
        tensors: Its tensors.
        **more: What else goes into the header.
    """
    header = {
        "format": kind,
        "fit": plan.fit.to_json(),
        "numbers": [vars(number) for number in plan.numbers],
        "groups": [vars(group) for group in plan.groups],
        "kept_whole": list(plan.kept_whole),
        "parameters": list(plan.parameters),
        "freed": list(plan.freed),
        **more,
    }
    return Part(header, tensors)


def parts_of(header: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that both have, by name, from the header that `part_of` has made."""
    return {
        "fit": Fit.from_json(header["fit"]),
        "numbers": tuple(NumberPlan(**number) for number in header["numbers"]),
        "groups": tuple(GroupPlan(**group) for group in header["groups"]),
        "kept_whole": tuple(header["kept_whole"]),
        "parameters": tuple(header["parameters"]),
        "freed": tuple(header["freed"]),
    }
