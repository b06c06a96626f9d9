"""Models masked by `torch.nn.utils.prune`, which renames ``weight`` to ``weight_orig`` and computes ``weight`` anew."""

from __future__ import annotations

from collections.abc import Iterator

from secateur.doctor.findings import Finding
from secateur.doctor.registry import check
from secateur.doctor.setup import Setup
from secateur.doctor.strays import pruned_modules, strays
from secateur.doctor.wording import listed


@check("prune-names-reversed", structural=True)
def prune_names_reversed(setup: Setup) -> Iterator[Finding]:
    """``weight`` is treated as the parameter where ``weight_orig`` is the one."""
    computed = setup.once(strays).pruned
    taken = [f"{prefix}{leaf}" for prefix, module, leaf in pruned_modules(setup.model) if leaf in module._parameters]
    if computed:
        held = [name for name, slot in computed.items() if slot is not None]
        yield Finding(
            "prune-names-reversed",
            tuple(computed),
            f"no optimizer holds {listed(tuple(computed))}"
            + (", but the computed weight in its place." if held else "."),
            "torch.nn.utils.prune keeps the parameter as `weight_orig` and computes `weight` from it in each forward; "
            "the optimizer was given `module.weight`, or made from a list of such names.",
            "optimizer.step() moves a tensor that the next forward throws away.",
            "secateur.relink_(model, optimizer)"
            if held
            else "optimizer.add_param_group({'params': [module.weight_orig]})",
            repairable=len(held) == len(computed),
            data={"held_instead": [name.removesuffix("_orig") for name in held]},
        )
    if taken:
        yield Finding(
            "prune-names-reversed",
            tuple(taken),
            f"{listed(taken)} is a parameter again while torch.nn.utils.prune still masks it.",
            "`module.weight = nn.Parameter(…)` on a pruned module; there the parameter is `weight_orig`.",
            "The next forward raises: prune cannot assign the masked weight to the name of a parameter.",
            "del module.weight; with torch.no_grad(): module.weight_orig.copy_(new_values)",
        )
