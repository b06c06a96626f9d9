"""Dotted names of parameters: who owns them, which are tied, which a glob or a module type selects."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator

from torch import Tensor, nn

from secateur._errors import InvalidInputError

__all__ = ["Selector", "match", "owner_of", "tied_names"]

Selector = str | type[nn.Module]
"""A glob over dotted parameter names (``"encoder.*.weight"``), or a module type whose parameters are meant."""


def owner_of(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Split a dotted name into the module that owns the tensor and its name there.

    Args:
        model: The module that `name` is relative to.
        name: A dotted name, ``"encoder.0.weight"``.

    Returns:
        The owning module and the last part of the name. That the owner has such a tensor is not checked.

    Raises:
        InvalidInputError: `model` has no such submodule.
    """
    path, _, leaf = name.rpartition(".")
    try:
        return _inside(model, path), leaf
    except AttributeError as error:
        raise InvalidInputError(
            f"no module {path!r} in {type(model).__name__}, so no tensor {name!r}.",
            fix="names are those of model.named_parameters()",
        ) from error


def _inside(model: nn.Module, path: str) -> nn.Module:
    """The submodule at a path: as ``get_submodule``, which asks several times on the way and is some times slower."""
    module = model
    for part in path.split(".") if path else ():
        children = module._modules
        if part not in children or children[part] is None:
            return model.get_submodule(path)
        module = children[part]  # type: ignore[assignment]
    return module


def tied_names(model: nn.Module) -> dict[str, list[str]]:
    """Map the first dotted name of every parameter to all names under which the same object is reachable.

    Args:
        model: Any module.

    Returns:
        ``{first name: [first name, other name, …]}`` in registration order; untied parameters have a list of one.

    Example:
        >>> model = nn.ModuleDict({"emb": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
        >>> model.head.weight = model.emb.weight
        >>> tied_names(model)
        {'emb.weight': ['emb.weight', 'head.weight']}
    """
    first: dict[int, str] = {}
    names: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(first.setdefault(id(parameter), name), []).append(name)
    return names


def match(model: nn.Module, selectors: Selector | Iterable[Selector]) -> Iterator[str]:
    """Yield the dotted names (tied ones too) of the parameters that at least one selector means.

    Args:
        model: Any module.
        selectors: Globs over dotted names, names of modules, or module types; a type means the parameters its
            instances own directly. One alone need not be in a list.

    Raises:
        InvalidInputError: A selector is neither, or means no parameter of this model, so it is most likely misspelt.

    Example:
        >>> list(match(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)), ["2.*"]))
        ['2.weight', '2.bias']
        >>> list(match(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)), "0"))
        ['0.weight', '0.bias']
    """
    owned = [
        (f"{prefix}.{leaf}" if prefix else leaf, module)
        for prefix, module in model.named_modules(remove_duplicate=False)
        for leaf in _direct(module)
    ]
    chosen: set[str] = set()
    for selector in [selectors] if isinstance(selectors, str | type) else selectors:
        found = {name for name, module in owned if _means(selector, name, module)}
        if not found and isinstance(selector, str):  # the name of a module means what is inside it
            found = {name for name, _ in owned if fnmatch.fnmatchcase(name, f"{selector}.*")}
        if not found:
            shown = repr(selector) if isinstance(selector, str) else selector.__name__
            raise InvalidInputError(
                f"{shown} matches no parameter of {type(model).__name__}.",
                fix="print([n for n, _ in model.named_parameters()]) shows the names that a glob can match",
            )
        chosen |= found
    return (name for name, _ in owned if name in chosen)


def _direct(module: nn.Module) -> dict[str, Tensor]:
    """Parameters that the module itself owns, by their short names."""
    return dict(module.named_parameters(recurse=False, remove_duplicate=False))


def _means(selector: Selector, name: str, module: nn.Module) -> bool:
    """Whether one selector means the parameter `name`, owned by `module`."""
    if isinstance(selector, str):
        return fnmatch.fnmatchcase(name, selector)
    if isinstance(selector, type):
        return isinstance(module, selector)
    raise InvalidInputError(
        "parameters are chosen by globs over their names or by module types.",
        selector=repr(selector)[:80],
        fix='"encoder.*.weight" or nn.Linear',
    )
