"""``secateur apply``: a checkpoint cut without the model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import timm
import torch
import torchvision
from torch import Tensor, nn

import secateur
from secateur import InvalidInputError, ShapeError, ShrinkPlan
from secateur.checkpoints import open_checkpoint
from secateur.graph.provenance import stored_sizes
from tests.cli.conftest import Run, llama


def stored(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint."""
    return {each.name: each.tensor() for each in open_checkpoint(path)}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Whether two state dicts are the same."""
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_file_becomes_the_state_of_the_shrunk_model(run: Run, tmp_path: Path) -> None:
    model = torchvision.models.resnet18(weights=None).eval()
    for module in model.modules():  # constants of removed channels then go into the biases behind them
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.bias)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "full.safetensors")
    plan = secateur.plan_shrink(model, torch.randn(1, 3, 32, 32), sparsity=0.4)
    plan.save(tmp_path / "plan.safetensors")
    result = run(
        *("apply", tmp_path / "plan.safetensors", tmp_path / "full.safetensors", "--out", tmp_path / "small", "--json")
    )
    assert result.data["bytes"]["after"] == sum(each.num_bytes for each in open_checkpoint(tmp_path / "small"))
    assert result.data["cut"] == len(plan.shapes)
    assert_equal(stored(tmp_path / "small"), plan.apply_(model).state_dict())
    loaded = secateur.load_(torchvision.models.resnet18(weights=None), safetensors.torch.load_file(tmp_path / "small"))
    assert_equal(loaded.state_dict(), model.state_dict())


def test_constants_go_into_biases_before_they_are_cut(run: Run, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    masks = {name: torch.ones_like(p, dtype=torch.bool) for name, p in model.named_parameters() if p.dim() > 1}
    masks["0.weight"][::2] = False
    plan = secateur.plan_shrink(model, torch.randn(2, 6), masks=secateur.Masks.from_dict(model, masks))
    assert plan.bias_changes
    plan.save(tmp_path / "plan.safetensors")
    safetensors.torch.save_file(model.state_dict(), tmp_path / "full.safetensors")
    words = ["apply", tmp_path / "plan.safetensors", tmp_path / "full.safetensors", "--out", tmp_path / "small"]
    assert run(*words).status == 0
    assert_equal(stored(tmp_path / "small"), plan.apply_to(model.state_dict()))


@pytest.mark.parametrize("tied", [False, True])
def test_language_model_is_cut_shard_by_shard(tied: bool, run: Run, tmp_path: Path) -> None:
    model = llama()
    if tied:
        model.config.tie_word_embeddings = True
        model.tie_weights()
    model.config.use_cache = False
    model.save_pretrained(tmp_path / "full", max_shard_size="40KB")
    plan = secateur.plan_shrink(model, torch.randint(50, (1, 8)), sparsity=0.5)
    plan.save(tmp_path / "plan.safetensors")
    assert run("apply", tmp_path / "plan.safetensors", tmp_path / "full", "--out", tmp_path / "small").status == 0
    expected = plan.apply_(model).state_dict()
    found = stored(tmp_path / "small")
    assert ("lm_head.weight" in found) != tied
    assert_equal(found, {name: expected[name] for name in found})
    assert len(found) == len(expected) - tied


def test_checkpoint_of_another_model_is_refused_before_anything_is_written(run: Run, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    secateur.plan_shrink(model, torch.randn(2, 6), sparsity=0.5).save(tmp_path / "plan.safetensors")
    safetensors.torch.save_file({"0.weight": torch.zeros(9, 6)}, tmp_path / "full.safetensors")
    words = ["apply", tmp_path / "plan.safetensors", tmp_path / "full.safetensors", "--out", tmp_path / "small"]
    result = run(*words)
    assert (result.status, result.out) == (1, "")
    assert "'0.weight' is not as it was when the plan was made" in result.err
    assert "planned: (8, 6)    found: (9, 6)" in result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full.safetensors", "plan.safetensors"]


def test_plan_applies_once(run: Run, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    secateur.plan_shrink(model, torch.randn(2, 6), sparsity=0.5).save(tmp_path / "plan.safetensors")
    safetensors.torch.save_file(model.state_dict(), tmp_path / "full.safetensors")
    assert (
        run("apply", tmp_path / "plan.safetensors", tmp_path / "full.safetensors", "--out", tmp_path / "a").status == 0
    )
    again = run("apply", tmp_path / "plan.safetensors", tmp_path / "a", "--out", tmp_path / "b")
    assert again.status == 1
    assert "plans apply once" in again.err


@pytest.mark.parametrize("kind", ["plan", "model", "compressed"])
def test_files_of_other_kinds_are_explained(kind: str, run: Run, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    plan, file = tmp_path / "plan.safetensors", tmp_path / "full.safetensors"
    secateur.plan_shrink(model, torch.randn(2, 6), sparsity=0.5).save(plan)
    if kind == "compressed":
        secateur.compress(model, torch.randn(1, 6)).save(file)
    else:
        secateur.save(model, file)
    result = run("apply", file if kind == "plan" else plan, file, "--out", tmp_path / "small")
    assert result.status == 1
    told = {
        "plan": "is not a file of the kind",
        "model": "plan.apply_(model)",
        "compressed": "secateur.load_compressed",
    }
    assert told[kind] in result.err
    assert not (tmp_path / "small").exists()


def test_module_of_the_model_is_never_imported(run: Run, folder: Path) -> None:
    run("shrink", "my_models:mlp", "--input", "2x8", "--sparsity", "0.5", "--out", "small")
    safetensors.torch.save_file(sys.modules.pop("my_models").mlp().state_dict(), "full.safetensors")
    assert run("apply", "small/plan.safetensors", "full.safetensors", "--out", "cut").status == 0
    assert "my_models" not in sys.modules
    assert {name: tuple(t.shape) for name, t in stored(folder / "cut").items()}["2.weight"] == (8, 8)
    ShrinkPlan.load("small/plan.safetensors")


class Rotated(nn.Module):
    """Attention whose code keeps the heads and their width, and a buffer that no state_dict holds."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim = 4, 6
        self.qkv, self.out = nn.Linear(8, 72), nn.Linear(24, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.register_buffer("shift", torch.linspace(0, 1, 24), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        heads = nn.functional.scaled_dot_product_attention(q, k, v, scale=self.head_dim**-0.5)
        x = self.out(heads.transpose(1, 2).flatten(2) + self.shift)
        mixed: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return mixed


def vit() -> nn.Module:
    torch.manual_seed(3)
    model: nn.Module = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=5)
    return model.eval()


MODELS = {
    "heads": (vit, torch.randn(1, 3, 32, 32)),
    "llama": (llama, torch.randint(50, (1, 8))),
    "free heads and buffers": (lambda: Rotated().eval(), torch.randn(2, 5, 8)),
}


def full(model: nn.Module, layout: str, folder: Path) -> Path:
    """A checkpoint, whole or one tensor a file."""
    state = model.state_dict()
    if layout == "file":
        safetensors.torch.save_file(state, folder / "full.safetensors")
        return folder / "full.safetensors"
    (folder / "full").mkdir()
    where = {name: f"part-{number}.safetensors" for number, name in enumerate(state)}
    for name, file in where.items():
        safetensors.torch.save_file({name: state[name]}, folder / "full" / file)
    (folder / "full" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder / "full"


@pytest.mark.parametrize("layout", ["file", "shards"])
@pytest.mark.parametrize("name", MODELS)
def test_cut_file_makes_the_model_that_the_plan_makes(name: str, layout: str, run: Run, tmp_path: Path) -> None:
    make, x = MODELS[name]
    torch.manual_seed(3)
    model = make()
    given = full(model, layout, tmp_path)
    plan = secateur.plan_shrink(model, x, sparsity=0.5)
    plan.save(tmp_path / "plan.safetensors")
    assert run("apply", tmp_path / "plan.safetensors", given, "--out", tmp_path / "cut").status == 0
    plan.apply_(model)
    loaded = secateur.load_(make(), tmp_path / "cut")
    assert [(n, v) for _, n, v in numbers(loaded)] == [(n, v) for _, n, v in numbers(model)]
    assert torch.equal(output(loaded, x), output(model, x))
    assert torch.equal(output(secateur.load_(loaded, tmp_path / "cut"), x), output(model, x))
    fresh = make()
    optimizer = torch.optim.SGD(fresh.parameters(), lr=0.1)
    secateur.load_(fresh, tmp_path / "cut", optimizer=optimizer)
    assert {id(p) for p in optimizer.param_groups[0]["params"]} == {id(p) for p in fresh.parameters()}


def test_plans_that_follow_one_another_are_all_in_the_header(run: Run, tmp_path: Path) -> None:
    model, x = vit(), MODELS["heads"][1]
    given = full(model, "file", tmp_path)
    for number in range(2):
        plan = secateur.plan_shrink(model, x, sparsity=0.5, min_units=1)
        plan.save(tmp_path / "plan.safetensors")
        assert run("apply", tmp_path / "plan.safetensors", given, "--out", tmp_path / f"cut{number}").status == 0
        given = tmp_path / f"cut{number}"
        plan.apply_(model)
    assert model.blocks[0].attn.num_heads == 1
    assert torch.equal(output(secateur.load_(vit(), given), x), output(model, x))


def test_cut_file_of_another_model_is_refused_before_anything_changes(run: Run, tmp_path: Path) -> None:
    given = full(vit(), "file", tmp_path)
    secateur.plan_shrink(vit(), MODELS["heads"][1], sparsity=0.5).save(tmp_path / "plan.safetensors")
    run("apply", tmp_path / "plan.safetensors", given, "--out", tmp_path / "cut")
    for change in ("numbers", "shapes"):
        other = vit()
        if change == "numbers":
            other.blocks[0].attn.num_heads = 6
        else:
            other.blocks[0].mlp.fc1 = nn.Linear(192, 1000)
        before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
        with pytest.raises(ShapeError, match="the plan does not fit"):
            secateur.load_(other, tmp_path / "cut")
        assert_equal(other.state_dict(), before)


@pytest.mark.parametrize(
    "change", [{"numbers": [{}]}, {"fit": None}, {"tensors": {"0.weight|0": ["int64", [4], "??"]}}]
)
def test_plan_that_is_damaged_in_the_header_is_told(change: dict[str, object], run: Run, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    secateur.plan_shrink(model, torch.randn(2, 6), sparsity=0.5).save(tmp_path / "plan.safetensors")
    given = full(model, "file", tmp_path)
    run("apply", tmp_path / "plan.safetensors", given, "--out", tmp_path / "cut")
    state = safetensors.torch.load_file(tmp_path / "cut")
    with safetensors.safe_open(tmp_path / "cut", "pt") as file:
        (key, text), *_ = file.metadata().items()
    safetensors.torch.save_file(state, tmp_path / "cut", {key: json.dumps(json.loads(text) | change)})
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(InvalidInputError, match="damaged"):
        secateur.load_(model, tmp_path / "cut")
    assert_equal(model.state_dict(), before)


def test_profile_takes_the_cut_file(run: Run, folder: Path) -> None:
    options = ["--arg", "img_size=32", "--arg", "depth=2"]
    name = "timm:vit_tiny_patch16_224"
    run("shrink", name, *options, "--input", "1x3x32x32", "--sparsity", "0.5", "--out", "small")
    given = full(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2), "file", folder)
    run("apply", "small/plan.safetensors", given, "--out", "cut.safetensors")
    words = ["--checkpoint", "cut.safetensors", "--input", "1x3x32x32"]
    assert run("profile", name, *options, *words).status == 0


def numbers(model: nn.Module) -> list[tuple[str, str, int]]:
    """The integers that modules store."""
    return [(place.label, place.name, int(value)) for place, value in stored_sizes(model)]


def output(model: nn.Module, x: Tensor) -> Tensor:
    """What a model computes."""
    with torch.no_grad():
        found = model(x)
    logits: Tensor = found if isinstance(found, Tensor) else found.logits
    return logits
