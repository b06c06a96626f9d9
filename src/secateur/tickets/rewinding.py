"""Back to an earlier moment: the weights, or the learning rate alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateur._errors import InvalidInputError, UnsupportedError
from secateur._names import match, tied_names
from secateur._wrappers import refuse_model, unwrapped
from secateur.masks import Masks
from secateur.masks.commit import Optimizers, check_held, listed
from secateur.masks.eligible import Selectors
from secateur.surgery.refusals import refuse_call
from secateur.tickets.nested import owned
from secateur.tickets.optimizers import clearing, restoring
from secateur.tickets.snapshot import Schedulers, Snapshot, check_snapshot, listed_schedulers

__all__ = ["prepared", "rewind_", "rewind_learning_rate_"]


def rewind_(
    model: nn.Module,
    snapshot: Snapshot,
    optimizer: Optimizers = None,
    *,
    include: Selectors = None,
    exclude: Selectors = None,
    buffers: bool = False,
    state: bool = False,
    random_state: bool = False,
) -> None:
    """Give weights the values that they had when a snapshot was taken; masked ones are exactly 0.

    Args:
        model: The model, with or without masks.
        snapshot: Taken before, of this model or of another instance of its class; at initialisation or at any step.
        optimizer: The optimizer that goes on training it, or several. One that is left out keeps the momenta that
            belong to the weights of before; one that is made anew for each training need not be named.
        include: Globs over dotted names, or module types, of parameters to rewind; all if left out.
        exclude: Globs or module types that are left out.
        buffers: Whether buffers (running statistics of a BatchNorm) go back too, all of them.
        state: Whether the optimizer gets the momenta that the snapshot holds, instead of none.
        random_state: Whether torch's random numbers go back too.

    Changes:
        Values of the parameters (those of kept weights are then equal to the snapshot bit for bit, where the dtype is
        the same); their gradients become None; the optimizer's state of these parameters, as before its first step or
        as in the snapshot. LBFGS has one history for all parameters and loses all of it.

    Keeps:
        Identity of the parameters, the masks, learning rates and other options.

    Raises:
        InvalidInputError: There is no snapshot, or it does not hold what is asked for; a selector matches nothing.
        ShapeError: The snapshot was taken of another architecture.
        HolderError: The optimizer was made for another model, or is of another class than the one in the snapshot.
        UnsupportedError: A parameter that cannot be written to. Nothing is changed then.

    Example:
        >>> import secateur
        >>> layer = nn.Linear(4, 2)
        >>> snapshot = Snapshot.of(layer)
        >>> masks = secateur.prune_(layer, sparsity=0.5)
        >>> rewind_(layer, snapshot)
        >>> torch.equal(layer.weight, snapshot.parameters["weight"] * masks["weight"])
        True

    References:
        Frankle, Carbin 2019, "The lottery ticket hypothesis", section 1 (to initialisation); Frankle et al. 2020,
        "Linear mode connectivity and the lottery ticket hypothesis", section 2 (to step k).
    """
    prepared(
        model,
        snapshot,
        listed(optimizer),
        include=include,
        exclude=exclude,
        buffers=buffers,
        state=state,
        random_state=random_state,
    )()


def prepared(
    model: nn.Module,
    snapshot: Snapshot,
    optimizers: Sequence[Optimizer],
    *,
    include: Selectors = None,
    exclude: Selectors = None,
    buffers: bool = False,
    state: bool = False,
    random_state: bool = False,
) -> Callable[[], None]:
    """Check all that `rewind_` checks, and return the call that rewinds; the arguments are those of `rewind_`."""
    refuse_call()
    refuse_model(model)
    model = unwrapped(model)
    check_snapshot(snapshot)
    snapshot.check_fits(model, buffers=buffers)
    check_held(model, {}, optimizers)
    _check_kept(snapshot, optimizers if state else (), random_state=random_state)
    names = _chosen(model, include, exclude)
    _refuse_unwritable(model, names, snapshot.buffers if buffers else ())
    edits = list(_state_edits(model, names, optimizers, snapshot, state=state))

    def rewind() -> None:
        _copy_(model, names, snapshot, buffers=buffers)
        Masks(model).apply_()
        for edit in edits:
            edit()
        if random_state:
            _set_random_state(snapshot)

    return rewind


def rewind_learning_rate_(snapshot: Snapshot, optimizer: Optimizers, scheduler: Schedulers = None) -> int:
    """Set the learning rate and its schedule back, and leave weights and momenta as they are.

    Args:
        snapshot: Taken with the optimizer, and with the scheduler if there is one.
        optimizer: The optimizer, or several, in the order in which the snapshot was taken.
        scheduler: The learning-rate scheduler, or several, in that order.

    Returns:
        The snapshot's step, from which training goes on.

    Changes:
        All options of the optimizer's groups; the scheduler's state.

    Raises:
        InvalidInputError: There is no snapshot, or it was taken without the optimizer or the scheduler.
        HolderError: The optimizer or the scheduler is of another class, or the optimizer has other groups. Nothing is
            changed then.

    Example:
        >>> layer = nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        >>> snapshot = Snapshot.of(layer, optimizer, step=100)
        >>> optimizer.param_groups[0]["lr"] = 0.001
        >>> rewind_learning_rate_(snapshot, optimizer), optimizer.param_groups[0]["lr"]
        (100, 0.1)

    References:
        Renda, Frankle, Carbin 2020, "Comparing rewinding and fine-tuning in neural network pruning", section 2.
    """
    check_snapshot(snapshot)
    optimizers, schedulers = listed(optimizer), listed_schedulers(scheduler)
    _check_kept(snapshot, optimizers, random_state=False)
    if not optimizers or len(schedulers) != len(snapshot.schedulers):
        raise InvalidInputError(
            "the snapshot was taken with other things than those whose learning rate is to go back.",
            snapshot=f"{len(snapshot.optimizers)} optimizers, {len(snapshot.schedulers)} schedulers",
            passed=f"{len(optimizers)} optimizers, {len(schedulers)} schedulers",
            fix="Snapshot.of(model, optimizer, scheduler=scheduler), and the same ones here",
        )
    snapshot.check_schedulers(schedulers)
    for one, kept in zip(optimizers, snapshot.optimizers, strict=True):
        kept.restore_options_(one)
    for one, its_state in zip(schedulers, snapshot.schedulers, strict=True):
        one.load_state_dict(owned(its_state))  # schedulers keep what they are given
    return snapshot.step


def _check_kept(snapshot: Snapshot, optimizers: Sequence[Optimizer], *, random_state: bool) -> None:
    """Refuse to restore what the snapshot does not hold."""
    if optimizers and len(optimizers) != len(snapshot.optimizers):
        raise InvalidInputError(
            "the snapshot does not hold the state of these optimizers.",
            snapshot=[each.kind for each in snapshot.optimizers] or "no optimizer",
            passed=[type(each).__name__ for each in optimizers],
            fix="Snapshot.of(model, optimizer) keeps it",
        )
    for optimizer, kept in zip(optimizers, snapshot.optimizers, strict=False):
        kept.check_kind(optimizer)
    if random_state and not snapshot.random_state:
        raise InvalidInputError(
            "the snapshot holds no random state.", fix="Snapshot.of(model, random_state=True) keeps it"
        )


def _chosen(model: nn.Module, include: Selectors, exclude: Selectors) -> list[str]:
    """First names of the parameters to rewind."""
    names = tied_names(model)
    meant = set(names) if include is None else set(match(model, include))
    out = set() if exclude is None else set(match(model, exclude))
    return [first for first, every in names.items() if meant.intersection(every) and not out.intersection(every)]


def _refuse_unwritable(model: nn.Module, parameters: Iterable[str], buffers: Iterable[str]) -> None:
    """Refuse tensors that torch would not write to."""
    own: dict[str, Tensor] = {name: model.get_parameter(name) for name in parameters}
    own |= {name: buffer for name, buffer in model.named_buffers() if name in set(buffers)}
    for name, tensor in own.items():
        if tensor.is_inference():
            raise UnsupportedError(
                f"cannot rewind {name!r}: it was made inside torch.inference_mode().",
                fix="make the model outside inference mode",
            )
        if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            raise UnsupportedError(
                f"cannot rewind {name!r}: several of its entries are one place in memory.",
                strides=tensor.stride(),
                fix="a tensor of its own instead of an expanded one: tensor.clone()",
            )


def _state_edits(
    model: nn.Module, names: Sequence[str], optimizers: Sequence[Optimizer], snapshot: Snapshot, *, state: bool
) -> Iterable[Callable[[], object]]:
    """Yield what gives the optimizers their state."""
    for number, optimizer in enumerate(optimizers):
        if state:
            yield from restoring(model, names, optimizer, snapshot.optimizers[number])
        else:
            yield from clearing(model, names, optimizer)


@torch.no_grad()
def _copy_(model: nn.Module, names: Sequence[str], snapshot: Snapshot, *, buffers: bool) -> None:
    """Write the snapshot's values into parameters, and into buffers if asked."""
    for name in names:
        parameter = model.get_parameter(name)
        parameter.copy_(snapshot.parameters[name])
        parameter.grad = None
    own: dict[str, Tensor] = dict(model.named_buffers()) if buffers else {}
    for name, value in snapshot.buffers.items():
        if name in own:
            own[name].copy_(value)


def _set_random_state(snapshot: Snapshot) -> None:
    """Set torch's random numbers back."""
    for device, value in snapshot.random_state.items():
        if device == "cpu":
            torch.set_rng_state(value)
        else:
            torch.cuda.set_rng_state(value, device)
