"""For any shapes, sparsities, allocations, scores and optimizers: zero means zero, and all identities stay."""

from __future__ import annotations

import copy
import weakref
from functools import partial

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur import InfeasibleError, Masks, allocation, patterns, prune_, scores
from tests.contract.optimizer_table import CASES
from tests.masks.oracles import bits, carried_over, nonzero_names, snapshot

STEPPING = [case for case in CASES if not case.needs_sparse]
SHAPES = st.lists(
    st.one_of(
        st.lists(st.integers(1, 7), min_size=2, max_size=2).map(tuple),
        st.lists(st.integers(1, 4), min_size=4, max_size=4).map(tuple),
        st.just((260, 256)),  # larger than what is masked as a whole after every step
    ),
    min_size=1,
    max_size=3,
)
SCORES = st.one_of(st.just(scores.magnitude), st.integers(0, 9).map(lambda seed: partial(scores.random, seed=seed)))


class Weights(nn.Module):
    """Parameters of given shapes under a loss that pulls each of them somewhere."""

    def __init__(self, shapes: list[tuple[int, ...]], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(shape, dtype=dtype) for shape in shapes])

    def forward(self, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(step)
        targets = (torch.randn(w.shape, generator=generator).to(w) for w in self.weights)
        return torch.stack([(w - target).pow(2).mean() for w, target in zip(self.weights, targets, strict=True)]).sum()


def feasible(model: nn.Module, **options: object) -> Masks | None:
    """Prune; None, and nothing changed, if a small tensor cannot have that many zeros."""
    before = snapshot(model)
    try:
        return prune_(model, **options)
    except InfeasibleError:
        assert snapshot(model) == before
        return None


@given(
    shapes=SHAPES,
    sparsity=st.floats(0, 0.99),
    score=SCORES,
    allocate=st.sampled_from(sorted(allocation.ALLOCATIONS)),
    lean=st.booleans(),
    case=st.sampled_from(STEPPING),
    warm=st.integers(0, 2),
)
def test_masked_weights_stay_zero_and_identities_stay(
    shapes: list[tuple[int, ...]], sparsity: float, score: object, allocate: str, lean: bool, case: object, warm: int
) -> None:
    torch.manual_seed(0)
    if case.needs_matrices:
        shapes = [shape for shape in shapes if len(shape) == 2] or [(3, 4)]
    model = Weights(shapes)
    optimizer = case.make(model.parameters())
    for step in range(warm):
        case.step(optimizer, partial(model, step))
    ids = {name: id(p) for name, p in model.named_parameters()}
    keys, references = list(model.state_dict()), [weakref.ref(p) for p in model.parameters()]
    marks = [setattr(p, "mark", i) for i, p in enumerate(model.parameters())]
    masks = feasible(
        model,
        optimizer=optimizer,
        sparsity=sparsity,
        score=score,
        allocation=allocation.ALLOCATIONS[allocate],
        lean=lean,
    )
    for step in range(3):
        case.step(optimizer, partial(model, step))
        assert nonzero_names(model, dict(masks or {})) == []
        assert carried_over(optimizer, model, dict(masks or {})) == []
    assert {name: id(p) for name, p in model.named_parameters()} == ids
    assert list(model.state_dict()) == keys
    assert [reference() for reference in references] == list(model.parameters())
    assert [p.mark for p in model.parameters()] == list(range(len(marks)))
    assert all(p.requires_grad for p in model.parameters())


@given(
    shape=st.lists(st.integers(1, 8), min_size=2, max_size=4).map(tuple),
    first=st.floats(0, 0.6),
    more=st.floats(0, 0.39),
    pattern=st.sampled_from(sorted(patterns.PATTERNS)),
    score=SCORES,
)
def test_zeros_of_further_calls_include_those_before(
    shape: tuple[int, ...], first: float, more: float, pattern: str, score: object
) -> None:
    torch.manual_seed(0)
    model, chosen = Weights([shape]), patterns.PATTERNS[pattern]
    assume(not chosen.misfit(torch.Size(shape)))
    asked = [first, first + more] if chosen.sparsity is None else [chosen.sparsity] * 2
    masks = feasible(model, sparsity=asked[0], pattern=chosen, score=score)
    before = dict(masks) if masks is not None else {}
    further = feasible(model, sparsity=asked[1], pattern=chosen, score=score)
    for name, mask in before.items():
        assert not bool((Masks(model)[name] & ~mask).any())
    if further is not None:
        units = chosen.reduce(further["weights.0"].float())
        assert int((units == 0).sum()) == round(asked[1] * units.numel())
        assert int((model.weights[0] == 0).sum()) == further.num_zeros()


@given(shapes=SHAPES, sparsity=st.floats(0, 0.7), steps=st.lists(st.sampled_from("tcsmur"), max_size=6))
def test_zeros_survive_any_sequence_of_events(shapes: list[tuple[int, ...]], sparsity: float, steps: list[str]) -> None:
    """Train, copy, save and load whole, convert, update, resume in a fresh model."""
    torch.manual_seed(0)
    model: nn.Module = Weights([shape for shape in shapes if len(shape) == 2] or [(4, 4)])
    masks = feasible(model, sparsity=sparsity)
    wanted = dict(masks) if masks is not None else {}
    for i, event in enumerate(steps):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        if event == "t":
            model(i).backward()
            optimizer.step()
        elif event == "c":
            model = copy.deepcopy(model)
        elif event == "s":
            model.load_state_dict({key: torch.ones_like(value) for key, value in model.state_dict().items()})
        elif event == "m":
            model = model.to([torch.float64, torch.float32][i % 2])
        elif event == "u" and wanted:
            name = next(iter(wanted))
            wanted[name] = torch.rand(wanted[name].shape) > 0.5
            Masks(model).update_({name: wanted[name]})
        elif event == "r":
            state = Masks(model).state_dict(), copy.deepcopy(model.state_dict())
            model = Weights([tuple(p.shape) for p in model.parameters()], next(model.parameters()).dtype)
            Masks(model).load_state_dict(state[0])
            model.load_state_dict(state[1])
        assert nonzero_names(model, wanted) == []
        assert {name: bits(mask) for name, mask in Masks(model).items()} == {n: bits(m) for n, m in wanted.items()}
