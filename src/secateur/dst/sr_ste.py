"""SR-STE: N:M masks that follow dense weights, which are trained straight through the masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateur import scores
from secateur._errors import HolderError, InvalidInputError, UnsupportedError
from secateur._units import check_scores
from secateur.dst.attending import Attending, was_skipped
from secateur.dst.history import History
from secateur.masks import keeper
from secateur.masks.bits import Bits
from secateur.masks.collection import Masks
from secateur.masks.commit import Optimizers
from secateur.masks.eligible import Selectors, eligible_names, find
from secateur.masks.mask import Mask
from secateur.masks.prune import prune_
from secateur.masks.registry import mask_of
from secateur.patterns import NM
from secateur.surgery import Change, SetItem, finder, holder

__all__ = ["SRSTE"]


class SRSTE(Attending):
    r"""Sparse-refined straight-through estimation: masks follow dense weights that go on training behind them.

    Every step trains all weights W with the gradient of the loss at the masked ones, and a decay of what is masked:

    .. math:: W_{t+1} = W_t - \gamma \left( g(M_t \odot W_t) + \lambda\,(1 - M_t) \odot W_t \right)

    Then the mask is chosen anew: of every m neighbours the n largest. The parameter holds :math:`M \odot W` at all
    times but during the optimizer's step, so the model is sparse whenever somebody looks at it, saves it or evaluates
    it; what is masked of W is kept beside it. Gradients and momenta are dense here, as the method wants: clipping sees
    them whole. It attaches to the optimizer's steps by itself, like the methods of `SparseTraining`.

    Args:
        model: The model.
        optimizer: The optimizer that trains the weights, or several, as for `secateur.prune_`.
        n: Entries of a group that are kept.
        m: Entries of a group.
        dim: The dim along which neighbours form a group.
        decay: :math:`\lambda`.
        end_step: The masks stay as they are after so many optimizer steps, and masked weights are forgotten; None: they
            never do.
        every: Steps from one entry of the history to the next.
        include: Globs over dotted names, or module types; all weights if left out (no biases, no norms).
        exclude: Globs or module types that are left out, such as a first layer whose size is no multiple of m.
        lean: Hold 0.125 bytes a weight; see `secateur.prune_`.

    Attributes:
        model: The model.
        masks: Its masks, as they are at the moment.
        step: Optimizer steps that have been made.
        history: What happened to the masks so far, as plain numbers.

    Raises:
        InvalidInputError: A decay that is no number of at least 0, not ``0 < n < m``, a model in the hands of another
            method.
        UnsupportedError: In a step: the gradient of a weight is sparse.
        SecateurError: The others of `secateur.prune_`. Nothing is changed then.

    Example:
        >>> model = nn.Linear(8, 4)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> training = SRSTE(model, optimizer, n=2, m=4)
        >>> for _ in range(3):
        ...     optimizer.zero_grad()
        ...     model(torch.randn(16, 8)).square().mean().backward()
        ...     optimizer.step()
        >>> (model.weight.view(-1, 4) != 0).sum(dim=1).unique()
        tensor([2])

    References:
        Zhou et al. 2021, "Learning N:M fine-grained structured sparse neural networks from scratch", equation 9.
    """

    _enforced = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        n: int = 2,
        m: int = 4,
        dim: int = 1,
        decay: float = 2e-4,
        end_step: int | None = None,
        every: int = 100,
        include: Selectors = None,
        exclude: Selectors = None,
        lean: bool = False,
    ) -> None:
        _check(decay=decay, end_step=end_step, every=every)
        self._pattern = NM(n, m, dim)
        self.model = Masks(model).model
        self._check_unattended()
        dense = {n: find(self.model, n).detach().clone() for n in eligible_names(self.model, include, exclude)}
        self.masks = prune_(self.model, optimizer, pattern=self._pattern, include=include, exclude=exclude, lean=lean)
        self._names = tuple(name for name in dense if name not in self.masks.skipped)
        self._decay, self._end, self._every = decay, end_step, every
        self.step = 0
        self.history = History()
        self._latent: dict[str, Tensor] = {}
        self._lifted: set[str] = set()
        self._attach()
        for name, mask in self._held().items():
            self._latent[name] = dense[name].masked_fill_(mask.bits.dense, 0.0)
        self._note({})

    def remove(self) -> None:
        """Change masks no more and forget the masked weights; the masks stay as they are, and are held from now on."""
        mine = self._detach()
        for mask in mine:
            mask.apply_()
        keeper.settle(mine)
        self._latent.clear()

    def __repr__(self) -> str:
        """The step, then the table of the masks."""
        return f"SRSTE: step {self.step:,}\n{self.masks!r}"

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """The step, the masks, the masked weights and the history; plain numbers, strings, dicts and tensors."""
        return {
            "method": "SRSTE",
            "step": self.step,
            "masks": self.masks.state_dict(),
            "latent": {name: value.clone() for name, value in self._latent.items()},
            "history": self.history.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another training stood, bit by bit; weights and optimizer may be loaded before or after.

        Args:
            state: What `state_dict` returned, on a model of the same shapes.

        Raises:
            InvalidInputError: It is the state of something else, or of other weights.
            HolderError: Another method has the masks by now. Nothing has been changed then.
        """
        self._check_unattended()
        self._check_state(state)
        saved, shapes = state["latent"], {name: find(self.model, name).shape for name in self._names}
        if saved and {name: value.shape for name, value in saved.items()} != shapes:
            raise InvalidInputError(
                "the state was saved for other weights.",
                saved=", ".join(saved),
                here=", ".join(shapes),
                fix="the same include= and exclude= as before",
            )
        step, history = int(state["step"]), History.from_state(state["history"])
        self.masks.load_state_dict(state["masks"])
        self.step, self.history = step, history
        self._attach()
        if not saved:
            self.remove()
            return
        held = self._held()
        self._lifted.clear()
        self._latent = {name: value.to(held[name].parameter, copy=True) for name, value in saved.items()}

    # ---- called around the optimizer's steps

    def before_step(self, optimizer: Optimizer, held: Sequence[Mask], *, has_closure: bool) -> None:
        """Put the masked weights in their places, and their decay into the gradients."""
        if not has_closure:
            self._check_gradients(held)
        self._lift(held)
        if not has_closure:
            scale = getattr(optimizer, "grad_scale", None)  # by which the step itself will divide
            self._add_decay(held, 1.0 if scale is None else float(scale))

    def before_closure(self, held: Sequence[Mask]) -> None:
        """The loss is that of the masked weights."""
        self._project(held)

    def after_closure(self, held: Sequence[Mask]) -> None:
        """Go on with the step."""
        self._check_gradients(held)
        self._lift(held)
        self._add_decay(held, 1.0)

    def after_step(self, optimizer: Optimizer, held: Sequence[Mask]) -> None:
        """Mask the weights anew."""
        before = {name: mask.bits.packed for name, mask in self._held().items()}
        self._project(held)
        if was_skipped(optimizer) or not self._counts(held):
            return
        if self.step % self._every == 0:
            self._note(before)
        if self.step == self._end:
            self.remove()

    # ---- inside

    def _among(self, held: Sequence[Mask]) -> dict[str, Mask]:
        """Some of the masks by dotted name."""
        wanted = {id(mask) for mask in held}
        return {name: mask for name, mask in self._held().items() if id(mask) in wanted}

    def _lift(self, held: Sequence[Mask]) -> None:
        """Put the masked weights in their places."""
        with torch.no_grad():
            for name, mask in self._among(held).items():
                if name not in self._lifted:  # a step that has failed half way leaves it there
                    mask.parameter.add_(self._latent[name])
                    self._lifted.add(name)

    def _check_gradients(self, held: Sequence[Mask]) -> None:
        """Refuse gradients that have no place for the decay."""
        for name, mask in self._among(held).items():
            gradient = mask.parameter.grad
            if gradient is not None and gradient.layout != torch.strided:
                raise UnsupportedError(
                    f"the gradient of {name!r} is {gradient.layout}, and the decay of masked weights is dense.",
                    fix=f"nn.Embedding(…, sparse=False), or exclude=[{name!r}]",
                )

    def _add_decay(self, held: Sequence[Mask], scale: float) -> None:
        """Add the decay of the masked weights to the gradients."""
        with torch.no_grad():
            for name, mask in self._among(held).items():
                gradient = mask.parameter.grad
                if gradient is not None:
                    gradient.add_(self._latent[name], alpha=self._decay * scale)

    def _project(self, held: Sequence[Mask]) -> None:
        """Choose masks by the weights as they are, and take the masked weights aside.

        Raises:
            InvalidInputError: Weights have become NaN; the masks are those of before then.
        """
        masks = self._among(held)
        ranked = scores.magnitude({name: mask.parameter for name, mask in masks.items()})
        try:
            check_scores(ranked)
        except InvalidInputError:
            self._keep(masks, {name: mask.bits.dense for name, mask in masks.items()})
            raise
        self._keep(masks, {name: self._chosen(score) for name, score in ranked.items()})

    def _keep(self, masks: Mapping[str, Mask], kept: Mapping[str, Tensor]) -> None:
        """Take the masks that say what is kept, and the other weights aside."""
        for name, mask in masks.items():
            parameter = mask.parameter
            self._latent[name] = parameter.detach().masked_fill(kept[name], 0.0)
            self._lifted.discard(name)
            for each in (mask, *mask.followers()):
                each.set(Bits.of(kept[name], each.parameter, lean=each.bits.lean))
                each.bits.clear_(each.parameter, own=True)

    def _chosen(self, score: Tensor) -> Tensor:
        """The mask of the largest weights that the pattern allows."""
        units = self._pattern.reduce(score)
        num_removed = units.numel() // self._pattern.m * (self._pattern.m - self._pattern.n)
        return self._pattern.expand(self._pattern.choose(units, num_removed), score.shape)

    def _note(self, before: Mapping[str, Tensor]) -> None:
        """Write the masks down in the history."""
        self.history.add(self.step, before, {name: mask.bits for name, mask in self._held().items()}, ())


@finder
def _find(tensor: Tensor) -> list[SRSTE]:
    """Surgery asks for what refers to a tensor: what trains it behind its mask."""
    mask = mask_of(tensor)
    return [mask.listener] if mask is not None and isinstance(mask.listener, SRSTE) else []


@holder(SRSTE)
def _follow(training: SRSTE, changes: Sequence[Change]) -> Iterator[SetItem]:
    """Masked weights are cut like the parameter; at new positions they are 0."""
    names = {id(mask.parameter): name for name, mask in training._held().items()}
    for change in changes:
        name = names[id(change.tensor)]
        why = training._pattern.misfit(change.new_shape)
        if why:
            raise HolderError(
                f"SRSTE cannot go on with {name!r} after the resize: {why}.",
                shape=tuple(change.new_shape),
                fix=f"sizes that are multiples of {training._pattern.m}, or remove() first; the masks stay",
            )
        yield SetItem(training._latent, name, change.take(training._latent[name]))


def _check(*, decay: float, end_step: int | None, every: int) -> None:
    """Refuse numbers that make no sense."""
    if not 0.0 <= decay < float("inf"):
        raise InvalidInputError("decay must be a number of at least 0.", decay=decay, fix="decay=2e-4")
    for name, value in (("end_step", end_step), ("every", every)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise InvalidInputError(f"{name} must be a whole number of optimizer steps, 1 or more.", found=repr(value))
