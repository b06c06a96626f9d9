"""Parameters that are only ever multiplied with what the run has made, so that zeros there are zeros in the product."""

from __future__ import annotations

from secateur.graph.coupling import Coupling

__all__ = ["only_factors"]


def only_factors(coupling: Coupling) -> frozenset[str]:
    """Names of parameters and buffers whose values at removed positions say nothing, if those of activations are zero.

    In a product of an activation and a weight each removed position that is summed over has a zero in the activation,
    and each that is not is a removed position of the result. A lookup in a table makes no sums.

    Args:
        coupling: The analysis.

    Returns:
        The names.
    """
    own = {id(dims): frozenset((name,)) for name, dims in coupling.dims.items() if dims}
    made, given, read = set[int](), set[int](), set[str]()
    for step in coupling.ran:
        inputs = [id(dims) for dims in step.inputs]
        if step.is_view and inputs and inputs[0] in own:
            own |= {id(dims): own[inputs[0]] for dims in step.outputs if dims}
            continue
        given.update(number for number in inputs if number not in own and number not in made)
        left, right = _FACTORS.get(step.name, (-1, -1))
        for place, number in enumerate(inputs):
            if number in own and not (step.name == "aten.embedding" and place == 0):
                other = {left: right, right: left}.get(place)
                against = inputs[other] if other is not None and other < len(inputs) else None
                if against not in made or against in given:
                    read |= own[number]
        made.update(id(dims) for dims in step.outputs)
    return frozenset(coupling.dims) - read


_FACTORS = {
    **dict.fromkeys(("aten.mm", "aten.bmm", "aten.convolution"), (0, 1)),
    **dict.fromkeys(("aten.addmm", "aten.baddbmm"), (1, 2)),
}
"""Products, with the places of their factors among the tensors that they read."""
