"""A parameter's layout: legal for jax, told truly, the least padding, and nothing lost between logical and stored."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from sharding.layout import RULES, Layout, plan
from sharding.mesh import AXES, ZERO_AXES
from tests.sharding.regions import make, sizes

AXIS_SIZES = st.integers(1, 8)
ZERO_CHOICES = st.sampled_from([(), ("data",), ("data", "context")])


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Layout, dict[str, int]]:
    """Any parameter on any mesh."""
    mesh = sizes(**{axis: draw(AXIS_SIZES) for axis in ("pipeline", "data", "context", "tensor")})
    names = draw(st.lists(st.sampled_from(["embed", "head_dim"]), min_size=1, max_size=3))
    stacked = draw(st.sampled_from([True, True, False]))
    # One dim at most is cut over `tensor` or `pipeline`, as a weight has one: a PartitionSpec names an axis once.
    names[0] = draw(st.sampled_from(["heads", "kv_heads", "ffn", "embed", *([] if stacked else ["vocab"])]))
    names = draw(st.permutations(names))
    if stacked:
        names = ["layers", *names]
    shape = draw(st.lists(st.integers(1, 13), min_size=len(names), max_size=len(names)))
    order = draw(orders(shape[0], mesh["pipeline"])) if stacked else ()
    persist = draw(st.sampled_from([0, 40]))
    return plan(shape, names, mesh, layer_order=order, zero_axes=draw(ZERO_CHOICES), persist_below=persist), mesh


@st.composite
def orders(draw: st.DrawFn, layers: int, stages: int) -> tuple[int, ...]:
    """Any order of the layers, with padding anywhere among them, or none."""
    padding = -layers % stages + stages * draw(st.integers(0, 2))
    return tuple(draw(st.sampled_from([[], draw(st.permutations([*range(layers), *[-1] * padding]))])))


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    """1, 2, 3, ...: no entry is mistaken for another, nor for padding."""
    return np.arange(1, 1 + math.prod(shape), dtype=np.float32).reshape(shape)


def store(layout: Layout, x: np.ndarray) -> np.ndarray:
    """`Layout.store`, written anew: each logical entry goes to its device's shard."""
    stored = np.zeros(layout.stored_shape, x.dtype)
    for index in itertools.product(*map(range, layout.shape)):
        place = []
        for i, dim in zip(index, layout.dims, strict=True):
            i = dim.order.index(i) if dim.order else i
            block, in_block = divmod(i, dim.block)
            shard, in_shard = divmod(in_block, dim.shard)
            place.append((block * dim.zero_shards + shard) * dim.shard + in_shard)
        stored[tuple(place)] = x[index]
    return stored


# The same examples every time: each shape is compiled, and kept.
@settings(deadline=None, max_examples=35, derandomize=True)
@given(layouts())
def test_what_is_stored_is_what_was_given(case: tuple[Layout, dict[str, int]]) -> None:
    layout, _ = case
    x = numbered(layout.shape)
    stored = np.asarray(layout.store(jnp.asarray(x)))
    np.testing.assert_array_equal(stored, store(layout, x))
    np.testing.assert_array_equal(layout.logical(jnp.asarray(stored)), x)


@settings(deadline=None, max_examples=200)
@given(layouts())
def test_specs_are_legal_and_shards_are_as_told(case: tuple[Layout, dict[str, int]]) -> None:
    layout, mesh = case
    abstract = AbstractMesh(tuple(mesh.values()), AXES)
    at_rest = NamedSharding(abstract, layout.spec)
    assert at_rest.shard_shape(layout.stored_shape) == layout.shard_shape  # raises where it does not divide
    NamedSharding(abstract, layout.logical_spec).shard_shape(layout.shape)
    whole = Layout(tuple(replace(dim, zero_axes=(), zero_shards=1) for dim in layout.dims), layout.stacked)
    assert NamedSharding(abstract, whole.spec).shard_shape(whole.stored_shape) == layout.block_shape
    assert all(mesh[axis] > 1 for axis in layout.sharded_axes)
    assert len(set(layout.sharded_axes)) == len(layout.sharded_axes)


@settings(deadline=None, max_examples=100)
@given(layouts())
def test_a_layers_slice_is_laid_out_as_in_the_stack(case: tuple[Layout, dict[str, int]]) -> None:
    layout, _ = case
    if layout.stacked:
        assert layout.layer.shape == layout.shape[1:]
        assert layout.layer.shard_shape == layout.shard_shape[1:]
        assert not layout.dims[0].zero_axes, "ZeRO never cuts the dim that is scanned over"


def test_devices_hold_the_entries_the_layout_says() -> None:
    mesh = make(data=2, tensor=3)
    layout = plan((7,), ("vocab",), dict(mesh.shape), zero_axes=ZERO_AXES)
    x = numbered((7,))
    stored = jax.device_put(layout.store(jnp.asarray(x)), NamedSharding(mesh, layout.spec))
    assert layout.spec == PartitionSpec(("tensor", "data"))
    for shard in stored.addressable_shards:
        data, tensor = (int(i[0]) for i in np.where(mesh.devices == shard.device)[2::3])
        # Blocks of 3, 3 and 1 entries, each in shards of 2 and 1.
        entries = [(0, 2), (2, 3), (3, 5), (5, 6), (6, 7), (7, 7)][2 * tensor + data]
        expected = np.zeros(2, np.float32)
        expected[: entries[1] - entries[0]] = x[slice(*entries)]
        np.testing.assert_array_equal(shard.data, expected)


def test_devices_hold_the_layers_of_their_stage() -> None:
    """5 layers on 2 stages of 2 chunks each, of which only the first has two layers."""
    mesh = make(pipeline=2, data=2)
    order = (0, 1, 3, -1, 2, -1, 4, -1)
    layout = plan((5, 3), ("layers", "embed"), dict(mesh.shape), layer_order=order, zero_axes=ZERO_AXES)
    assert not layout.is_logical
    x = numbered((5, 3))
    stored = jax.device_put(layout.store(jnp.asarray(x)), NamedSharding(mesh, layout.spec))
    padded = np.pad(x, [(0, 1), (0, 1)])  # the last entry of each dim is 0
    for shard in stored.addressable_shards:
        stage, data = (int(i[0]) for i in np.where(mesh.devices == shard.device)[0:3:2])
        layers = [[0, 1, 3, 5], [2, 5, 4, 5]][stage]
        np.testing.assert_array_equal(shard.data, padded[layers][:, 2 * data : 2 * data + 2])
    np.testing.assert_array_equal(layout.logical(stored), x)


def test_an_order_alone_is_not_the_logical_array() -> None:
    """Nothing is padded, and yet the layers must be put in their place before they are saved."""
    layout = plan((4, 3), ("layers", "embed"), sizes(pipeline=2), layer_order=(0, 2, 1, 3))
    assert layout.stored_shape == layout.shape
    assert not layout.is_logical


@pytest.mark.parametrize(
    ("shape", "axes", "mesh", "dim", "why"),
    [
        ((512, 100), ("embed", "head_dim"), sizes(data=8), 0, "100 would need padding"),
        ((100, 512), ("embed", "head_dim"), sizes(data=8), 1, "100 would need padding"),
        ((64, 512), ("embed", "head_dim"), sizes(data=8), 1, "both divide, and it is the larger"),
        ((64, 512), ("embed", "ffn"), sizes(data=8, tensor=2), 0, "the larger is cut over tensor already"),
        ((60, 512), ("embed", "ffn"), sizes(data=8, tensor=2), 1, "cut twice, but nothing is padded"),
        ((3, 5), ("embed", "head_dim"), sizes(data=8), 1, "5 to 8 is less padding than 3 to 8"),
        ((8, 3, 5), ("layers", "embed", "head_dim"), sizes(data=8), 2, "never the layers, though they divide"),
    ],
)
def test_the_dim_that_zero_cuts(
    shape: tuple[int, ...], axes: tuple[str, ...], mesh: dict[str, int], dim: int, why: str
) -> None:
    assert plan(shape, axes, mesh, zero_axes=ZERO_AXES).zero_dim == dim, why


@settings(deadline=None, max_examples=100)
@given(layouts())
def test_no_other_dim_would_need_less_padding(case: tuple[Layout, dict[str, int]]) -> None:
    layout, _ = case
    if layout.zero_dim is None:
        return
    cut = layout.dims[layout.zero_dim]
    entries = [
        -(-dim.block // cut.zero_shards) * cut.zero_shards / dim.block  # how much that dim alone would grow
        for dim in layout.dims[layout.stacked :]
    ]
    assert cut.stored / (cut.block * cut.model_shards) == min(entries)


@pytest.mark.parametrize(("persist_below", "cut"), [(0, True), (20, True), (21, False)])
def test_small_parameters_stay_whole_counted_per_layer(persist_below: int, cut: bool) -> None:
    mesh = sizes(data=4)
    alone = plan((20,), ("embed",), mesh, zero_axes=ZERO_AXES, persist_below=persist_below)
    stacked = plan((100, 20), ("layers", "embed"), mesh, zero_axes=ZERO_AXES, persist_below=persist_below)
    assert [layout.zero_dim is not None for layout in (alone, stacked)] == [cut, cut]


@pytest.mark.parametrize(("kv_heads", "block", "axes"), [(8, 2, ("tensor",)), (4, 1, ("tensor",)), (2, 2, ())])
def test_kv_heads_fewer_than_devices_stay_whole(kv_heads: int, block: int, axes: tuple[str, ...]) -> None:
    layout = plan((kv_heads, 16), ("kv_heads", "head_dim"), sizes(tensor=4))
    assert layout.block_shape == (block, 16)
    assert layout.sharded_axes == axes


def test_other_dims_are_padded_where_they_are_fewer_than_devices() -> None:
    layout = plan((2, 16), ("heads", "head_dim"), sizes(tensor=4))
    assert layout.stored_shape == (4, 16)
    assert layout.sharded_axes == ("tensor",)


def test_on_one_device_nothing_is_padded_or_cut() -> None:
    for name in RULES.keys() - {"layers"}:
        layout = plan((13, 11), (name, "embed"), sizes(), zero_axes=ZERO_AXES)
        assert layout.stored_shape == (13, 11)
        assert layout.spec == PartitionSpec(None, None)


def test_a_name_without_a_rule_is_an_error() -> None:
    with pytest.raises(KeyError, match="hats"):
        plan((4, 4), ("hats", "embed"), sizes(tensor=2))


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (plan((5, 4), ("layers", "embed"), {"pipeline": 2}, layer_order=(0, 1, 2, 3, 4, -1)), (None, "pipeline")),
        (plan((4, 6), ("layers", "embed"), {"pipeline": 2}, layer_order=(0, 2, 1, 3)), (None, "pipeline")),
        (plan((4, 6), ("layers", "embed"), {"pipeline": 2}), ("pipeline", None)),
        (plan((7, 6), ("vocab", "embed"), {"tensor": 2, "pipeline": 3}), (None, ("pipeline", "tensor"))),
        (plan((8, 6), ("vocab", "embed"), {"tensor": 3, "data": 2}, zero_axes=("data",)), (None, ("data", "tensor"))),
        (plan((7, 5), ("vocab", "embed"), {"tensor": 2}), (None, None)),
    ],
    ids=["missing", "interleaved", "in order", "vocabulary", "and ZeRO", "nowhere"],
)
def test_logical_arrays_are_cut_where_a_dim_divides(layout: Layout, expected: tuple[str | None, ...]) -> None:
    assert layout.logical_spec == PartitionSpec(*expected)
