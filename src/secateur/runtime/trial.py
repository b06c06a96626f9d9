"""What there is to choose in a model, and what is chosen: its folded form, its layers, and a format for each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from secateur._passes import Inputs
from secateur._progress import task, track
from secateur.runtime import choosing
from secateur.runtime.attention import can_be_opened
from secateur.runtime.choosing import Choice, best_of, choose
from secateur.runtime.comparing import seconds_in_place
from secateur.runtime.formats import PREPACKED
from secateur.runtime.layers import SparseLayer
from secateur.runtime.norms import fold_, foldable, has_hooks
from secateur.runtime.observing import Observed, observe
from secateur.runtime.profile_sizes import bytes_in
from secateur.runtime.recipe import CHANNELS_LAST, Recipe, held, inside, is_transposed, open_, pack_
from secateur.runtime.table import LayerLine
from secateur.runtime.zeros import pattern_of, sparsity_of

__all__ = ["Trial"]

_LAST = (CHANNELS_LAST, PREPACKED)
"""Formats of convolutions that return images with the channels last."""

_CACHE_BYTES = 1 << 23  # that are read between two measurements of a layer, as other layers would


@dataclass
class _Place:
    """A layer that may get a format: what it is given in all examples, and whether a ReLU follows it alone."""

    shapes: list[torch.Size]
    relu: str


class Trial:
    """A model with its norms folded, all its attentions open, and what was seen of it.

    Args:
        model: The plain model, without empty units.
        examples: Example inputs.
        folds: Whether norms are folded.
    """

    @task("looking at layers")
    def __init__(self, model: nn.Module, examples: Sequence[Inputs], *, folds: bool = True) -> None:
        self.examples = examples
        seen = [observe(model, inputs, _WATCHED) for inputs in examples]
        self.norms = _common(dict(foldable(model, each)) for each in seen) if folds else {}
        self.folded = held(copy.deepcopy(model))
        fold_(inside(self.folded), self.norms)
        self.attentions = {
            path: all(each.alike.get(path, True) for each in seen)
            for path, module in model.named_modules()
            if isinstance(module, nn.MultiheadAttention) and can_be_opened(module) and not has_hooks(module)
        }
        self.opened = copy.deepcopy(self.folded)
        open_(self.opened, Recipe(attentions=self.attentions))
        modules = dict(inside(self.opened).named_modules())
        kinds = {type(module) for module in modules.values() if is_transposed(module)}
        again = [observe(inside(self.opened), inputs, (*_LAYERS, *kinds)) for inputs in examples]
        self.places = {path: _place(path, modules, again) for path in _layers(modules)}

    def choices(self, *, values: torch.dtype, margin: float, allowed: Collection[str] | None) -> dict[str, Choice]:
        """The choice for each layer."""
        evict = _evictor(bytes_in(self.opened))
        found = {}
        with torch.inference_mode():
            for path, place in track(self.places.items(), "trying formats"):
                layer = inside(self.opened).get_submodule(path)
                found[path] = choose(
                    layer,
                    place.shapes,
                    relu=bool(place.relu),
                    values=values,
                    margin=margin,
                    allowed=allowed,
                    between=evict,
                )
        return found

    def recipe(self, choices: Mapping[str, Choice], values: torch.dtype) -> Recipe:
        """What was chosen, for layers that have become sparse."""
        layers = {path: choice.format for path, choice in choices.items() if choice.format != "dense"}
        opened = {path: joint for path, joint in self.attentions.items() if any(_is_in(name, path) for name in layers)}
        recipe = Recipe(self.norms, opened, layers, {}, str(values).removeprefix("torch."))
        return replace(recipe, activations={p: self.places[p].relu for p in recipe.packed if self.places[p].relu})

    def has_channels_last(self, recipe: Recipe) -> bool:
        """Whether a layer of a recipe returns images with the channels last."""
        return any(self._puts_channels_last(path, form) for path, form in recipe.layers.items())

    def _puts_channels_last(self, path: str, form: str) -> bool:
        """Whether a layer returns such images in a format."""
        return form in _LAST and type(inside(self.opened).get_submodule(path)) is nn.Conv2d

    def channels_first(self, choices: Mapping[str, Choice], margin: float) -> dict[str, Choice]:
        """The same choices without those that put the channels last, for models that look at the memory of images."""
        made = dict(choices)
        for path, each in choices.items():
            if each.seconds is not None and self._puts_channels_last(path, each.format):
                form = best_of({name: time for name, time in each.seconds.items() if name not in _LAST}, margin)
                why = "the model cannot have the channels last" if form == "dense" else ""
                made[path] = replace(each, format=form, why=why)
        return made

    def in_one_form(self, choices: Mapping[str, Choice]) -> Iterator[dict[str, Choice]]:
        """The same choices with one form for all layers that are dense, as a model is more than its layers.

        Convolutions that have the channels last turn no images around between them. So first those that would have
        stayed as they are get that order in torch's own op; then all that are dense are prepacked. A layer gets what
        was tried.
        """
        plain = {path: each for path, each in choices.items() if each.format in ("dense", CHANNELS_LAST)}
        seen = [{path: each.format for path, each in plain.items()}]
        for order in ((CHANNELS_LAST,), (PREPACKED, CHANNELS_LAST)):
            forms = {
                path: next((form for form in order if form in (each.seconds or {})), each.format)
                for path, each in plain.items()
            }
            if forms not in seen:
                seen.append(forms)
                other = {path: form for path, form in forms.items() if form != plain[path].format}
                yield {**choices, **{path: replace(plain[path], format=form, why="") for path, form in other.items()}}

    def made(self, recipe: Recipe) -> nn.Module:
        """The model that a recipe makes."""
        holder = copy.deepcopy(self.folded)
        open_(holder, recipe)
        pack_(holder, recipe)
        return inside(holder)

    def lines(self, choices: Mapping[str, Choice], fast: nn.Module) -> Iterable[LayerLine]:
        """The lines of the report."""
        model = inside(self.opened)
        before, after = (seconds_in_place(each, self.places, self.examples) for each in (model, fast))
        modules = dict(fast.named_modules())
        for path, choice in choices.items():
            layer = model.get_submodule(path)
            weight: Tensor = layer.weight  # type: ignore[assignment]
            packed = modules.get(path)
            sizes = bytes_in(layer), bytes_in(packed) if isinstance(packed, SparseLayer) else bytes_in(layer)
            measured = before[path] / after[path] if path in before and path in after else 1.0
            rows = weight.t() if is_transposed(layer) else weight
            yield LayerLine(
                path, tuple(rows.shape), sparsity_of(rows), pattern_of(rows), choice.format, choice.speedup, measured,
                *sizes, choice.why,
            )  # fmt: skip


_LAYERS: tuple[type[nn.Module], ...] = (*choosing.LAYERS, nn.ReLU)
_WATCHED: tuple[type[nn.Module], ...] = (
    nn.Linear, nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm, nn.MultiheadAttention,
)  # fmt: skip


def _common(several: Iterable[dict[str, str]]) -> dict[str, str]:
    """What all dicts have in common."""
    first, *others = several
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}


def _layers(modules: Mapping[str, nn.Module]) -> Iterable[str]:
    """Layers that hold a weight which a product reads."""
    for path, module in modules.items():
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd) or is_transposed(module):
            yield path


def _place(path: str, modules: Mapping[str, nn.Module], seen: Sequence[Observed]) -> _Place:
    """What is known of a layer."""
    readers = {each.readers.get(path, "") for each in seen}
    relu = readers.pop() if len(readers) == 1 else ""
    if type(modules.get(relu)) is not nn.ReLU or has_hooks(modules[relu]) or not _follows(path, relu, modules):
        relu = ""
    return _Place([shape for each in seen for shape in each.inputs.get(path, [])], relu)


def _follows(path: str, relu: str, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a ReLU comes right after a layer in nn.Sequential, so that nothing else can be between or use it."""
    parent = path.rpartition(".")[0]
    if type(modules[parent]) is not nn.Sequential or relu.rpartition(".")[0] != parent:
        return False
    children = [name for name, child in modules[parent].named_children() if type(child) is not nn.Identity]
    at = children.index(path.rpartition(".")[2])
    return children[at + 1 : at + 2] == [relu.rpartition(".")[2]]


def _is_in(path: str, parent: str) -> bool:
    """Whether a path is inside another."""
    return parent == "" or path.startswith(f"{parent}.")


def _evictor(size: int) -> Callable[[], object]:
    """A function that reads as much memory as the rest of a model, as far as a cache could hold it."""
    scratch = torch.ones(min(size, _CACHE_BYTES) // 4)
    return scratch.sum
