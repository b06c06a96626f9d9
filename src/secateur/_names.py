"""Dotted names of parameters: who owns them, which are tied, which a glob or a module type selects."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator

from torch import Tensor, nn

from secateur._errors import InvalidInputError

__all__ = [
    "Selector",
    "Selectors",
    "chosen_names",
    "computed_by",
    "default_names",
    "match",
    "owner_of",
    "put_module",
    "selectors_among",
    "tied_names",
]

Selector = str | type[nn.Module]
"""A glob over dotted parameter names (``"encoder.*.weight"``), or a module type whose parameters are meant."""

Selectors = Iterable[Selector] | Selector | None
"""Globs over dotted parameter names, module types, one of these, or None."""

_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)


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


def put_module(model: nn.Module, path: str, module: nn.Module) -> None:
    """Put a module where a model has another one, under each of the names that it has there.

    Args:
        model: The model.
        path: Dotted path of what is there; not empty.
        module: What will be there.
    """
    old = _inside(model, path)
    for parent in list(model.modules()):
        for leaf, child in list(parent._modules.items()):
            if child is old:
                setattr(parent, leaf, module)


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


def selectors_among(given: Selector | Iterable[Selector]) -> list[Selector]:
    """One selector, or several, as a list.

    Raises:
        InvalidInputError: What is given is neither.
    """
    if isinstance(given, str | type):
        return [given]
    found = list(given) if isinstance(given, Iterable) else [given]
    strange = [selector for selector in found if not isinstance(selector, str | type)]
    if strange:
        raise InvalidInputError(
            "parameters are chosen by globs over their names or by module types.",
            selector=repr(strange[0])[:80],
            fix='"encoder.*.weight" or nn.Linear, or a list of such',
        )
    return found


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
    for selector in selectors_among(selectors):
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


def default_names(model: nn.Module) -> list[str]:
    """First names of all weights: parameters of two or more dims that belong to no norm and are no bias."""
    return [name for name, parameter in model.named_parameters() if _is_weight(model, name, parameter)]


def chosen_names(model: nn.Module, include: Selectors) -> list[str]:
    """First names of the parameters that are meant, in the model's order.

    Args:
        model: Any module.
        include: Globs over dotted names or module types; all weights (`default_names`) if left out. A module type means
            the weights of its modules (all their parameters if there are none); a glob means every parameter that it
            matches. A parameter with several names is meant by any of them.

    Raises:
        InvalidInputError: A selector means nothing.
    """
    weights = default_names(model)
    if include is None:
        return weights
    first = {name: names[0] for names in tied_names(model).values() for name in names}
    found: set[str] = set()
    for selector in [include] if isinstance(include, str | type) else include:
        meant = {first[name] for name in match(model, [selector])}
        found |= (meant & set(weights) if isinstance(selector, type) else set()) or meant
    return [name for name in dict.fromkeys(first.values()) if name in found]


def _is_weight(model: nn.Module, name: str, parameter: Tensor) -> bool:
    """Whether a parameter is one that is pruned when nothing is said."""
    if nn.parameter.is_lazy(parameter):
        return True
    module, leaf = owner_of(model, name)
    return parameter.dim() > 1 and "bias" not in leaf and not isinstance(module, _NORMS)


def computed_by(model: nn.Module, name: str, *, besides: object = None) -> str:
    """Names of the parametrizations, hooks or pruning methods that a parameter is part of or that make it; or ''.

    Args:
        model: The model.
        name: Dotted name of a tensor.
        besides: A hook that does not count.
    """
    path, _, rest = f".{name}".partition(".parametrizations.")
    if rest:
        module, leaf = model.get_submodule(path[1:]), rest.partition(".")[0]
    else:
        module, leaf = owner_of(model, name)
    if nn.utils.parametrize.is_parametrized(module, leaf):
        return ", ".join(type(part).__name__.lstrip("_") for part in _parts(module, leaf))
    for hook in module._forward_pre_hooks.values():
        made = getattr(hook, "name", None) or getattr(hook, "_tensor_name", None)
        if hook is not besides and isinstance(made, str) and leaf in (made, f"{made}_g", f"{made}_v", f"{made}_orig"):
            return type(hook).__name__
    return ""


def _parts(module: nn.Module, leaf: str) -> list[nn.Module]:
    """The parametrizations of one tensor."""
    parts = module.parametrizations
    return list(parts[leaf].children()) if isinstance(parts, nn.ModuleDict) else []


def _direct(module: nn.Module) -> dict[str, Tensor]:
    """Parameters that the module itself owns, by their short names."""
    return dict(module.named_parameters(recurse=False, remove_duplicate=False))


def _means(selector: Selector, name: str, module: nn.Module) -> bool:
    """Whether one selector means the parameter `name`, owned by `module`."""
    if isinstance(selector, str):
        return fnmatch.fnmatchcase(name, selector)
    return isinstance(module, selector)
