from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from helpers import TINY, tiny_vit
from torch import Tensor, nn

from caprompt.backbones.vit import Adaptation, Place, ViT, ViTConfig
from caprompt.errors import InputError
from caprompt.methods.components.adapters import Adapter, AdapterOptions
from caprompt.methods.components.prefix import PLACES, ModulatedPrefix, Prefix
from caprompt.methods.components.task_adapters import TaskAdapters
from caprompt.methods.components.tokens import Tokens
from caprompt.methods.inflora import InputMomentRecorder, KeyValueUpdate
from caprompt.utils.threads import use_threads


def images(count: int = 3, size: int = 16) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def plain_forward(vit: ViT, x: Tensor) -> Tensor:
    """Compute the same network without modules, attention head by head."""
    w, c = vit.state_dict(), vit.config
    grid = c.image_size // c.patch_size
    patches = x.unfold(2, c.patch_size, c.patch_size).unfold(3, c.patch_size, c.patch_size)  # (B, 3, g, g, p, p)
    patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(len(x), grid * grid, -1)
    tokens = patches @ w["patch_embed.proj.weight"].reshape(c.width, -1).T + w["patch_embed.proj.bias"]
    h = torch.cat([w["cls_token"].repeat(len(x), 1, 1), tokens], dim=1) + w["pos_embed"]
    for layer in range(c.depth):
        p = f"blocks.{layer}."
        normed = F.layer_norm(h, (c.width,), w[p + "norm1.weight"], w[p + "norm1.bias"], c.norm_eps)
        qkv = normed @ w[p + "attn.qkv.weight"].T + w[p + "attn.qkv.bias"]
        d, heads = c.width // c.heads, []
        for head in range(c.heads):
            q, k, v = (qkv[..., part * c.width + head * d : part * c.width + (head + 1) * d] for part in range(3))
            heads.append((q @ k.transpose(1, 2) / d**0.5).softmax(dim=-1) @ v)
        h = h + torch.cat(heads, dim=-1) @ w[p + "attn.proj.weight"].T + w[p + "attn.proj.bias"]
        normed = F.layer_norm(h, (c.width,), w[p + "norm2.weight"], w[p + "norm2.bias"], c.norm_eps)
        hidden = normed @ w[p + "mlp.fc1.weight"].T + w[p + "mlp.fc1.bias"]
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
        h = h + hidden @ w[p + "mlp.fc2.weight"].T + w[p + "mlp.fc2.bias"]
    return F.layer_norm(h, (c.width,), w["norm.weight"], w["norm.bias"], c.norm_eps)[:, 0]


def test_forward_pass_equals_the_reference() -> None:
    vit = tiny_vit().double()
    torch.testing.assert_close(vit(images().double()), plain_forward(vit, images().double()), rtol=0, atol=1e-10)


def test_parameter_names_are_timms() -> None:
    names = set(tiny_vit().state_dict())
    block = {
        f"blocks.1.{part}.{kind}"
        for part in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
        for kind in ("weight", "bias")
    }
    assert {
        "cls_token",
        "pos_embed",
        "patch_embed.proj.weight",
        "patch_embed.proj.bias",
        "norm.weight",
        "norm.bias",
    } | block <= names


def test_default_hooks_change_nothing() -> None:
    vit = tiny_vit()
    assert torch.equal(vit(images()), vit(images(), Adaptation()))


class PrefixAdaptation(Adaptation):
    def __init__(self, keys: Tensor, values: Tensor, layer: int) -> None:
        self.rows, self.layer = (keys, values), layer

    def prefix(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor] | None:
        return self.rows if layer == self.layer else None


def test_prefix_equals_attention_with_concatenated_rows() -> None:
    vit = tiny_vit()
    x = images(2)
    keys, values = torch.randn(2, 2, 3, TINY.width, generator=torch.Generator().manual_seed(2))
    block = vit.blocks[0]
    tokens = vit.embed(x)
    query, key, value = block.attn.qkv(block.norm1(tokens)).chunk(3, dim=2)
    key, value = torch.cat([keys, key], dim=1), torch.cat([values, value], dim=1)
    heads = []
    for columns in torch.arange(TINY.width).chunk(TINY.heads):
        scores = query[..., columns] @ key[..., columns].transpose(1, 2) / len(columns) ** 0.5
        heads.append(scores.softmax(dim=-1) @ value[..., columns])
    h = tokens + block.attn.proj(torch.cat(heads, dim=-1))
    h = h + block.mlp(block.norm2(h))
    expected = vit.norm(vit.blocks[1](h, Adaptation()))[:, 0]
    torch.testing.assert_close(vit(x, PrefixAdaptation(keys, values, 0)), expected, rtol=1e-5, atol=1e-5)


def test_each_image_has_its_own_prefix() -> None:
    """Row b of the prefix belongs to image b.

    The released code of the paper mixes images here by a reshape.
    """
    vit, x = tiny_vit(), images(4)
    keys, values = torch.randn(2, 4, 3, TINY.width, generator=torch.Generator().manual_seed(3))
    together = vit(x, PrefixAdaptation(keys, values, 1))
    for row in range(4):
        alone = vit(x[row : row + 1], PrefixAdaptation(keys[row : row + 1], values[row : row + 1], 1))
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-5, atol=1e-5)


class TokensAdaptation(Adaptation):
    def __init__(self, rows: Tensor) -> None:
        self.rows, self.widths = rows, []  # type: ignore[var-annotated]

    def tokens(self, layer: int, x: Tensor) -> Tensor | None:
        self.widths.append(x.shape[1])
        return self.rows.expand(x.shape[0], -1, -1) if layer == 0 else None


def test_tokens_remain_for_later_blocks_and_the_class_token_is_returned() -> None:
    vit, x = tiny_vit(), images(2)
    hook = TokensAdaptation(torch.randn(1, 2, TINY.width, generator=torch.Generator().manual_seed(4)))
    features = vit(x, hook)
    assert hook.widths == [17, 19]
    torch.testing.assert_close(features, vit.encode(x, hook)[:, 2])
    assert not torch.allclose(features, vit(x))


class QkvAdaptation(Adaptation):
    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def qkv(self, layer: int, x: Tensor) -> Tensor:
        return x @ self.matrix


def test_qkv_delta_equals_changed_weights() -> None:
    vit, other = tiny_vit(), tiny_vit()
    matrix = torch.randn(TINY.width, 3 * TINY.width, generator=torch.Generator().manual_seed(5)) * 0.1
    for block in other.blocks:
        block.attn.qkv.weight.data += matrix.T
    torch.testing.assert_close(vit(images(), QkvAdaptation(matrix)), other(images()), rtol=1e-5, atol=1e-5)


class MlpAdaptation(Adaptation):
    def mlp(self, layer: int, x: Tensor) -> Tensor:
        return -x


def test_parallel_branch_is_added_to_the_output_of_the_mlp() -> None:
    vit = tiny_vit()
    block, x = vit.blocks[0], vit.embed(images())
    after_attention = x + block.attn(block.norm1(x))
    torch.testing.assert_close(block(x, MlpAdaptation()), block.mlp(block.norm2(after_attention)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [16, 24, 8])
def test_image_sizes_that_are_multiples_of_the_patch(size: int) -> None:
    vit = tiny_vit()
    assert vit(images(2, size)).shape == (2, TINY.width)
    assert vit.interpolate_positions(size // 4, size // 4).shape == (1, 1 + (size // 4) ** 2, TINY.width)


def test_constant_positions_stay_constant_when_interpolated() -> None:
    vit = tiny_vit()
    vit.pos_embed.data.fill_(0.7)
    torch.testing.assert_close(vit.interpolate_positions(6, 3), torch.full((1, 19, TINY.width), 0.7))


def test_other_image_sizes_are_rejected() -> None:
    with pytest.raises(InputError, match="cannot be cut into patches of 4"):
        tiny_vit()(images(1, 18))


def test_error_of_strict_loading_names_the_first_difference() -> None:
    vit, weights = tiny_vit(), tiny_vit().state_dict()
    incomplete = {name: value for name, value in weights.items() if name != "norm.bias"}
    with pytest.raises(InputError, match="lack 'norm.bias'"):
        vit.load_weights(incomplete)
    with pytest.raises(InputError, match="hold 'rope'"):
        vit.load_weights({**weights, "rope": torch.zeros(1)})
    wide = ViT(ViTConfig(16, 4, 64, 2, 2, 64)).state_dict()
    with pytest.raises(InputError, match=r"'cls_token' is \(1, 1, 64\) in the weights but \(1, 1, 32\)"):
        vit.load_weights(wide)


FULL = replace(TINY, layer_scale=True, registers=3, class_position=False, pre_norm=True, quick_gelu=True, patch_bias=False)


def test_switches_add_only_timms_parameters() -> None:
    plain, full = set(ViT(TINY).state_dict()), set(ViT(FULL).state_dict())
    scales = {f"blocks.{layer}.ls{part}.gamma" for layer in range(TINY.depth) for part in (1, 2)}
    assert full - plain == {"reg_token", "norm_pre.weight", "norm_pre.bias"} | scales
    assert plain - full == {"patch_embed.proj.bias"}
    assert ViT(FULL).pos_embed.shape == (1, TINY.grid**2, TINY.width)


def test_class_token_with_registers_and_added_tokens() -> None:
    vit, rows = tiny_vit(config=FULL), torch.zeros(3, 2, TINY.width)
    torch.testing.assert_close(vit(images()), vit.encode(images())[:, 0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        vit(images(), TokensAdaptation(rows)), vit.encode(images(), TokensAdaptation(rows))[:, 2], rtol=1e-5, atol=1e-5
    )


class AllHooks(Adaptation):
    """Uses all hooks at every layer."""

    def tokens(self, layer: int, x: Tensor) -> Tensor:
        return x.new_full((len(x), 2, TINY.width), 0.3)

    def prefix(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, :3] + 1, x[:, 1:4] - 1

    def qkv(self, layer: int, x: Tensor) -> Tensor:
        return torch.cat([x, -0.5 * x, 2 * x], dim=2)

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        return -0.5 * x

    def modulate(self, layer: int, place: Place, x: Tensor) -> Tensor:
        return (1.2 if place.endswith("input") else 0.9) * x + 0.1 * (layer + 1)


class ModulateAdaptation(Adaptation):
    """Doubles what one place reads or writes."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def modulation(self, layer: int, place: Place) -> tuple[Tensor, Tensor] | None:
        one = torch.ones(1, 1, FULL.width)
        return (one, 0 * one) if place == self.place else None


@pytest.mark.parametrize(
    ("place", "doubled"),
    [
        ("attention_input", ["norm1.weight", "norm1.bias"]),
        ("attention_output", ["attn.proj.weight", "attn.proj.bias"]),
        ("mlp_input", ["norm2.weight", "norm2.bias"]),
        ("mlp_output", ["mlp.fc2.weight", "mlp.fc2.bias"]),
    ],
)
def test_doubling_an_input_or_output_equals_doubled_weights(place: Place, doubled: list[str]) -> None:
    vit, other = tiny_vit(config=FULL), tiny_vit(config=FULL)
    for block in other.blocks:
        for name in doubled:
            block.get_parameter(name).data *= 2
    features = vit(images(), ModulateAdaptation(place))
    torch.testing.assert_close(features, other(images()), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(features, vit(images()), atol=1e-3)


@pytest.mark.parametrize("depth", [1, 2])
def test_last_block_computes_only_the_class_token(depth: int) -> None:
    vit = tiny_vit(config=replace(FULL, depth=depth))
    tokens = vit.encode(images(), AllHooks())
    num_tokens: dict[int, int] = {}

    class RecordingHooks(AllHooks):
        def mlp(self, layer: int, x: Tensor) -> Tensor:
            num_tokens[layer] = x.shape[1]
            return super().mlp(layer, x)

    torch.testing.assert_close(vit(images(), RecordingHooks()), tokens[:, 2 * depth], rtol=1e-5, atol=1e-5)
    assert num_tokens[depth - 1] == 1


def test_forward_class_token_is_not_normalized() -> None:
    vit = tiny_vit()
    token = vit.forward_class_token(images())
    torch.testing.assert_close(F.layer_norm(token, (TINY.width,), vit.norm.weight, vit.norm.bias, TINY.norm_eps), vit(images()))
    assert token.std(dim=1).max() > 1.1, "a normalized token would have a standard deviation of 1"


def test_class_tokens_of_several_blocks() -> None:
    vit = tiny_vit(config=FULL)
    for adaptation in (Adaptation(), AllHooks()):
        features = vit(images(), adaptation, 2)
        assert features.shape == (len(images()), 2 * FULL.width)
        torch.testing.assert_close(features[:, -FULL.width :], vit(images(), adaptation), rtol=1e-5, atol=1e-5)
    shallow = tiny_vit(config=FULL)
    shallow.load_state_dict(vit.state_dict())
    shallow.blocks = shallow.blocks[:-1]
    torch.testing.assert_close(vit(images(), num_blocks=2)[:, : FULL.width], shallow(images()), rtol=1e-5, atol=1e-5)


def test_pass_from_a_stem_equals_pass_from_images() -> None:
    vit = tiny_vit(config=FULL)
    stem = vit.stem(images())
    for adaptation in (Adaptation(), AllHooks()):
        torch.testing.assert_close(vit(stem, adaptation), vit(images(), adaptation), rtol=0, atol=0)
    twice = stem.repeat(2)
    torch.testing.assert_close(vit(twice), torch.cat([vit(images())] * 2), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(vit(stem.select(torch.tensor([2, 0]))), vit(images())[[2, 0]], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(vit(twice.repeat(2)), torch.cat([vit(images())] * 4), rtol=1e-5, atol=1e-5)
    rows = torch.tensor([len(images()) + 1, 0])  # the second image of the second repetition, and the first of the first
    torch.testing.assert_close(vit(twice.select(rows)), vit(images())[[1, 0]], rtol=1e-5, atol=1e-5)


def test_normalized_class_token_is_the_feature() -> None:
    vit = tiny_vit(config=FULL)
    for adaptation in (Adaptation(), AllHooks()):
        token = vit.forward_class_token(images(), adaptation)
        assert not torch.allclose(token, vit(images(), adaptation))
        torch.testing.assert_close(vit.norm(token), vit(images(), adaptation))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_give_float32_features_near_the_exact_ones(dtype: torch.dtype) -> None:
    exact, vit = tiny_vit(config=FULL)(images()), tiny_vit(config=FULL).to(dtype)
    features = vit(images(), Adaptation())
    assert features.dtype == torch.float32
    assert float((features - exact).norm() / exact.norm()) < (0.05 if dtype is torch.bfloat16 else 0.01)


def test_positions_without_the_class_token_are_interpolated() -> None:
    vit = tiny_vit(config=FULL)
    vit.pos_embed.data.fill_(0.7)
    torch.testing.assert_close(vit.interpolate_positions(6, 3), torch.full((1, 18, TINY.width), 0.7))
    assert vit.encode(images(2, 24)).shape == (2, 1 + 3 + 36, TINY.width)


def test_registers_have_no_position() -> None:
    vit = tiny_vit(config=FULL)
    torch.testing.assert_close(vit.embed(images(1))[:, 1:4], vit.reg_token)


def test_recompute_gives_the_same_gradient_and_saves_less() -> None:
    gradients, saved = [], []
    for recompute in (False, True):
        vit = tiny_vit()
        vit.recompute = recompute
        rows = torch.randn(3, 2, TINY.width, generator=torch.Generator().manual_seed(3)).requires_grad_()
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.append(t.numel()) or t, lambda t: t):  # type: ignore[misc]
            vit(images(), PrefixAdaptation(rows, rows, layer=1)).square().sum().backward()
        gradients.append(rows.grad)
        saved.append(sum(sizes))
    torch.testing.assert_close(*gradients)
    assert saved[1] < saved[0]


needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler for the CPU, and there is none here"
)


def test_trainable_bias_gets_a_gradient_in_a_compact_mlp() -> None:
    vit = tiny_vit().requires_grad_(True)
    for block in vit.blocks:
        block.mlp.compact = True
    vit(images()).square().sum().backward()
    assert all(block.mlp.fc1.bias.grad is not None for block in vit.blocks)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_of_compiled_passes_are_equal_up_to_rounding(recompute: bool) -> None:
    gradients = []
    for compiled in (False, True):
        vit = tiny_vit(config=FULL).requires_grad_(False)
        vit.recompute = recompute
        vit.set_compiled(compiled)
        rows = torch.randn(2 * len(images()), 2, FULL.width, generator=torch.Generator().manual_seed(3)).requires_grad_()
        features = vit(vit.stem(images()).repeat(2), PrefixAdaptation(rows, rows, layer=0))
        (features * torch.linspace(-1, 1, FULL.width)).sum().backward()
        assert rows.grad is not None
        gradients.append(rows.grad)
    assert float((gradients[0] - gradients[1]).norm() / gradients[0].norm()) < 3e-2  # norms and GELUs save one byte per value
    assert not torch.equal(*gradients)


@pytest.mark.slow
@needs_compiler
def test_compiled_features_are_equal_up_to_rounding() -> None:
    plain, compiled = tiny_vit(config=FULL), tiny_vit(config=FULL)
    compiled.set_compiled(True)
    compiled.set_compiled(True)
    for adaptation in (Adaptation(), AllHooks()):
        torch.testing.assert_close(compiled(images(), adaptation), plain(images(), adaptation), rtol=1e-4, atol=1e-5)


# -- batches that threads divide -----------------------------------------------------------------------------------------------


class CountingAdaptation(Adaptation):
    """Adds nothing, and records the numbers of images that it sees."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def mlp(self, layer: int, x: Tensor) -> Tensor | None:
        self.sizes.append(len(x))
        return None


class DivisibleAdaptation(CountingAdaptation):
    def select(self, images: slice) -> Adaptation:
        return self


@pytest.mark.parametrize("num_blocks", [1, 2])
@pytest.mark.parametrize("count", [1, 7, 8, 33])
def test_threads_compute_the_features_of_the_whole_batch(count: int, num_blocks: int) -> None:
    vit = tiny_vit()
    with torch.no_grad():
        whole = vit(images(count), num_blocks=num_blocks)
        with use_threads(2):
            divided, of_stem = (vit(each, num_blocks=num_blocks) for each in (images(count), vit.stem(images(count))))
    torch.testing.assert_close(divided, whole, rtol=0, atol=1e-5)
    assert torch.equal(of_stem, divided)


@pytest.mark.parametrize(
    ("count", "sizes"), [(1, [1]), (2, [1, 1]), (7, [3, 4]), (20, [10, 10]), (50, [25, 25]), (88, [22, 22, 22, 22])]
)
def test_every_thread_gets_parts_of_about_the_same_number_of_images(count: int, sizes: list[int]) -> None:
    adaptation = DivisibleAdaptation()
    with torch.no_grad(), use_threads(2):
        tiny_vit()(images(count), adaptation)
    assert sorted(adaptation.sizes) == sorted(sizes * TINY.depth)


def test_a_batch_is_not_divided_for_gradients_or_for_an_adaptation_that_cannot_be() -> None:
    vit, adaptation, divisible = tiny_vit(), CountingAdaptation(), DivisibleAdaptation()
    with use_threads(2):
        with torch.no_grad():
            vit(images(20), adaptation)
        vit(images(20), divisible)
    assert adaptation.sizes == divisible.sizes == [20] * TINY.depth


class LongAdaptation(CountingAdaptation):
    """One that can be selected for some parts of a batch only."""

    def select(self, images: slice) -> Adaptation | None:
        return self if images.stop - images.start > 3 else None


def test_a_batch_is_not_divided_if_any_of_its_parts_cannot_be_selected() -> None:
    adaptation = LongAdaptation()
    with torch.no_grad(), use_threads(2):
        features = tiny_vit()(images(7), adaptation)  # parts of four and three
    assert len(features) == 7
    assert adaptation.sizes == [7] * TINY.depth


def test_a_function_of_images_is_applied_to_parts_with_what_belongs_to_them() -> None:
    vit, adaptation, others = tiny_vit(), DivisibleAdaptation(), torch.arange(20.0)

    def compute(some: Tensor, rows: Tensor) -> Tensor:
        features: Tensor = vit(vit.stem(some), adaptation)
        return features + rows.unsqueeze(1)

    with torch.no_grad():
        expected = vit(images(20)) + others.unsqueeze(1)
        with use_threads(2):
            torch.testing.assert_close(vit.map_images(compute, images(20), others), expected, rtol=0, atol=1e-4)
        assert adaptation.sizes == [10] * 2 * TINY.depth, "a part is not divided again"
        with use_threads(1):
            torch.testing.assert_close(vit.map_images(compute, images(20), others), expected, rtol=0, atol=1e-4)
        assert adaptation.sizes[2 * TINY.depth :] == [20] * TINY.depth


def test_repeated_images_are_divided_as_well() -> None:
    vit = tiny_vit()
    with torch.no_grad(), use_threads(2):
        stem = vit.stem(images(8))
        torch.testing.assert_close(vit(stem.repeat(2)), vit(stem).repeat(2, 1), rtol=0, atol=1e-5)


BATCH, ROWS, RANK = 19, 3, 4
LAYERS = tuple(range(TINY.depth))


def draw_normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def make_adapter() -> Adaptation:
    adapter = Adapter(TINY, AdapterOptions(bottleneck=RANK))
    nn.init.normal_(adapter.up, generator=torch.Generator().manual_seed(0))
    nn.init.normal_(adapter.down, generator=torch.Generator().manual_seed(1))
    return adapter.branches()


def make_task_adapter() -> Adaptation:
    adapters = TaskAdapters(TINY, AdapterOptions(bottleneck=RANK))
    adapters.begin_task(torch.Generator().manual_seed(0))
    nn.init.normal_(adapters.up.newest, generator=torch.Generator().manual_seed(1))
    return adapters.newest_branches()


def make_update(kind: type[KeyValueUpdate] = KeyValueUpdate) -> KeyValueUpdate:
    depth, width = TINY.depth, TINY.width
    merged, down = draw_normal(depth, 2 * width, width) / width, draw_normal(depth, RANK, width) / width
    return kind(merged, draw_normal(depth, 2 * width, RANK), down)


ADAPTATIONS: dict[str, Callable[[], Adaptation]] = {
    "prefix": lambda: Prefix(draw_normal(TINY.depth, 2, BATCH, ROWS, TINY.width), LAYERS),
    "modulated prefix": lambda: ModulatedPrefix(draw_normal(TINY.depth, 2, BATCH, ROWS + len(PLACES), TINY.width), LAYERS, 0.1),
    "tokens": lambda: Tokens(draw_normal(TINY.depth, BATCH, ROWS, TINY.width), LAYERS),
    "adapter": make_adapter,
    "task adapter": make_task_adapter,
    "update of keys and values": make_update,
}


def extract_in_threads(vit: ViT, adaptation: Adaptation, threads: int) -> Tensor:
    images = draw_normal(BATCH, 3, TINY.image_size, TINY.image_size)
    with torch.no_grad(), use_threads(threads):
        features: Tensor = vit(images, adaptation)
    return features


@pytest.mark.parametrize("name", ADAPTATIONS)
def test_adaptations_are_divided_with_their_images(name: str) -> None:
    vit, make = tiny_vit(), ADAPTATIONS[name]
    assert make().select(slice(0, 4)) is not None
    whole = extract_in_threads(vit, make(), threads=1)
    torch.testing.assert_close(extract_in_threads(vit, make(), threads=2), whole, rtol=0, atol=1e-4)
    assert not torch.allclose(extract_in_threads(vit, Adaptation(), threads=1), whole, atol=1e-2), "the adaptation changes nothing"


def test_an_adaptation_that_adds_up_what_it_sees_is_not_divided() -> None:
    vit, (one, two) = tiny_vit(), (make_update(InputMomentRecorder) for _ in range(2))
    assert isinstance(one, InputMomentRecorder)
    assert isinstance(two, InputMomentRecorder)
    extract_in_threads(vit, one, threads=1)
    extract_in_threads(vit, two, threads=2)
    torch.testing.assert_close(one.sums, two.sums)


def test_a_graph_with_any_number_of_images_can_be_exported_with_several_threads() -> None:
    vit = tiny_vit().eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    with torch.no_grad(), use_threads(2):
        program = torch.export.export(vit, (images(20),), dynamic_shapes={"images": {0: batch}}, strict=False)
        torch.testing.assert_close(program.module()(images(9)), vit(images(9)), rtol=0, atol=1e-5)
