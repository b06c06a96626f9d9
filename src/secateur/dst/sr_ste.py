"""SR-STE: N:M masks that follow dense weights, which are trained straight through the masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateur import scores
from secateur._errors import InvalidInputError, UnsupportedError
from secateur.dst.attending import check_unattended, lead_of, was_skipped
from secateur.dst.history import History
from secateur.masks import keeper
from secateur.masks.bits import Bits
from secateur.masks.collection import Masks
from secateur.masks.commit import Optimizers, listed
from secateur.masks.eligible import Selectors, eligible_names, find
from secateur.masks.mask import Mask
from secateur.masks.prune import prune_
from secateur.masks.slots import masked_parameters
from secateur.patterns import NM

__all__ = ["SRSTE"]


class SRSTE:
    r"""Sparse-refined straight-through estimation: masks follow dense weights that go on training behind them.

    Every step trains all weights W with the gradient of the loss at the masked ones, and a decay of what is masked:

    .. math:: W_{t+1} = W_t - \gamma \left( g(M_t \odot W_t) + \lambda\,(1 - M_t) \odot W_t \right)

    Then the mask is chosen anew: of every m neighbours the n largest. The parameter holds :math:`M \odot W` at all
    times but during the optimizer's step, so the model is sparse whenever somebody looks at it, saves it or evaluates
    it; what is masked of W is kept beside it. Gradients and momenta are dense here, as the method wants: clipping sees
    them whole. It attaches to the optimizer's steps by itself, like the methods of `SparseTraining`.

    Args:
        model: The model.
        optimizer: The optimizer that trains the weights, as for `secateur.prune_`; one only.
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
        UnsupportedError: Several optimizers.
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
        self.masks = Masks(model)
        self.model = self.masks.model
        check_unattended(self.model)
        if len(listed(optimizer)) > 1:
            raise UnsupportedError(
                "SRSTE needs one optimizer that trains all the weights: between the steps of two, some weights would "
                "be dense.",
                optimizers=", ".join(type(each).__name__ for each in listed(optimizer)),
                fix="one optimizer with several parameter groups, or include= only the weights of one",
            )
        names = eligible_names(self.model, include, exclude)
        dense = {name: find(self.model, name).detach().clone() for name in names}
        prune_(self.model, optimizer, sparsity=self._pattern.sparsity, pattern=self._pattern, include=names, lean=lean)
        self._names, self._decay, self._end, self._every = tuple(names), decay, end_step, every
        self._is_lifted = False
        self.step = 0
        self.history = History()
        self._latent: dict[str, Tensor] = {}
        self._attach()
        for name, mask in self._held().items():
            self._latent[name] = dense[name].masked_fill_(mask.bits.dense, 0.0)
        self._note({})

    def remove(self) -> None:
        """Change masks no more and forget the masked weights; the masks stay as they are, and are held from now on."""
        held = self._held()
        for mask in held.values():
            mask.listen(None)
            mask.apply_()
        keeper.settle(held.values())
        self._latent.clear()

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
            InvalidInputError: It is the state of something else, or of other weights. Nothing has been changed then.
        """
        if not {"method", "step", "masks", "latent", "history"} <= state.keys() or state["method"] != "SRSTE":
            raise InvalidInputError("this is no state of SRSTE.", method=state.get("method", "none"))
        saved, shapes = state["latent"], {name: find(self.model, name).shape for name in self._names}
        if saved and {name: value.shape for name, value in saved.items()} != shapes:
            raise InvalidInputError(
                "the state was saved for other weights.",
                saved=", ".join(saved),
                here=", ".join(shapes),
                fix="the same include= and exclude= as before",
            )
        self.masks.load_state_dict(state["masks"])
        self.step = int(state["step"])
        self.history = History.from_state(state["history"])
        if not saved:
            self.remove()
            return
        self._attach()
        held = self._held()
        self._latent = {name: value.to(held[name].parameter, copy=True) for name, value in saved.items()}

    # ---- called around the optimizer's steps

    def before_step(self, optimizer: Optimizer, *, has_closure: bool) -> None:
        """Put the masked weights in their places, and their decay into the gradients."""
        self._lift()
        if not has_closure:
            scale = getattr(optimizer, "grad_scale", None)  # by which the step itself will divide
            self._add_decay(1.0 if scale is None else float(scale))

    def before_closure(self) -> None:
        """The loss is that of the masked weights."""
        self._project()

    def after_closure(self) -> None:
        """Go on with the step."""
        self._lift()
        self._add_decay(1.0)

    def after_step(self, optimizer: Optimizer) -> None:
        """Mask the weights anew."""
        before = {name: mask.bits.packed for name, mask in self._held().items()}
        self._project()
        if was_skipped(optimizer):
            return
        self.step += 1
        if self.step % self._every == 0:
            self._note(before)
        if self.step == self._end:
            self.remove()

    # ---- inside

    def _held(self) -> dict[str, Mask]:
        """The masks of the weights that this training is about, those that are still there."""
        return {name: mask for name, mask in masked_parameters(self.model).items() if name in self._names}

    def _attach(self) -> None:
        """Be called around the steps, which are no longer guarded otherwise."""
        held = self._held()
        lead = lead_of(held)
        for mask in held.values():
            mask.listen(self if mask is lead else None, enforced=False)

    def _lift(self) -> None:
        """Put the masked weights in their places."""
        if self._is_lifted:  # the last step has failed half way
            return
        with torch.no_grad():
            for name, mask in self._held().items():
                mask.parameter.add_(self._latent[name])
        self._is_lifted = True

    def _add_decay(self, scale: float) -> None:
        """Add the decay of the masked weights to the gradients."""
        with torch.no_grad():
            for name, mask in self._held().items():
                gradient = mask.parameter.grad
                if gradient is not None:
                    gradient.add_(self._latent[name], alpha=self._decay * scale)

    def _project(self) -> None:
        """Choose masks by the weights as they are, and take the masked weights aside."""
        held = self._held()
        ranked = scores.magnitude({name: mask.parameter for name, mask in held.items()})
        kept = {name: self._chosen(score) for name, score in ranked.items()}
        for name, mask in held.items():
            parameter = mask.parameter
            self._latent[name] = parameter.detach().masked_fill(kept[name], 0.0)
            for each in (mask, *mask.followers()):
                each.set(Bits.of(kept[name], each.parameter, lean=each.bits.lean))
                each.bits.clear_(each.parameter, own=True)
        self._is_lifted = False

    def _chosen(self, score: Tensor) -> Tensor:
        """The mask of the largest weights that the pattern allows."""
        units = self._pattern.reduce(score)
        num_removed = units.numel() // self._pattern.m * (self._pattern.m - self._pattern.n)
        return self._pattern.expand(self._pattern.choose(units, num_removed), score.shape)

    def _note(self, before: Mapping[str, Tensor]) -> None:
        """Write the masks down in the history."""
        self.history.add(self.step, before, {name: mask.bits for name, mask in self._held().items()}, ())


def _check(*, decay: float, end_step: int | None, every: int) -> None:
    """Refuse numbers that make no sense."""
    if not 0.0 <= decay < float("inf"):
        raise InvalidInputError("decay must be a number of at least 0.", decay=decay, fix="decay=2e-4")
    for name, value in (("end_step", end_step), ("every", every)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise InvalidInputError(f"{name} must be a whole number of optimizer steps, 1 or more.", found=repr(value))
