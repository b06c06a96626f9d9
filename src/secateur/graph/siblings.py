"""Parts of a model that no example input has reached, beside others of their kind that were: experts of a mixture.

What an input does not reach now, another one may reach later. If the streams around it have lost positions by then, it
must have lost them too, or it breaks. So an unreached expert is cut like a reached one of the same list.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from torch import Tensor, nn

__all__ = ["reached_siblings"]


def reached_siblings(
    model: nn.Module, tensors: Mapping[str, Tensor], unreached: Iterable[str], reached: Container[str]
) -> Iterator[tuple[str, str]]:
    """Unreached tensors, each with a reached one that has its place in another module of a list or dict of modules.

    Args:
        model: The model.
        tensors: Its parameters and buffers by name.
        unreached: Names of those that no input has reached.
        reached: Names of those that some input has.

    Yields:
        (unreached name, reached name), for tensors of one shape in modules of one class.
    """
    kinds = (nn.ModuleList, nn.ModuleDict)
    several = {prefix: module for prefix, module in model.named_modules() if isinstance(module, kinds)}
    for name in unreached:
        parts = name.split(".")
        for place in reversed(range(len(parts))):
            among = several.get(".".join(parts[:place]))
            twins = _twins(among, parts, place) if among is not None else ()
            found = next((t for t in twins if t in reached and tensors[t].shape == tensors[name].shape), None)
            if found is not None:
                yield name, found
                break


def _twins(among: nn.Module, parts: list[str], place: int) -> Iterator[str]:
    """Names that a tensor would have in the other modules of a container that are of the same class."""
    own = among._modules.get(parts[place])
    for key, module in among._modules.items():
        if module is not own and type(module) is type(own):
            yield ".".join([*parts[:place], key, *parts[place + 1 :]])
