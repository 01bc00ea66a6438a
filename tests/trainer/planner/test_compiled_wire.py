"""What a compiled program sends and multiplies, in the terms of the traced one."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from tests.trainer.planner import scheduled
from trainer.planner.comparison import is_repeated
from trainer.planner.compiled_flops import kernels, matmuls
from trainer.planner.compiled_wire import mesh_axes, messages
from trainer.planner.executed import executed
from trainer.planner.hlo import HloError, Instruction, Module, read
from trainer.wire import Transfer

MESH = {"pipeline": 2, "data": 2, "tensor": 2}
SHARES = {"pipeline_forward_0": Fraction(4, 5)}


@pytest.mark.parametrize(("text", "wide"), [(scheduled.for_cpu, "float32"), (scheduled.recorded, "bfloat16")])
def test_collectives_are_counted_by_kind_axes_and_size(text: Callable[[], str], wide: str) -> None:
    """On CPU, bfloat16 is sent as float32."""
    found = [transfer for message in messages(read(text()), MESH, SHARES) for transfer in message.transfers]
    assert {transfer for transfer in found if transfer.kind != "all_reduce"} == {
        Transfer("all_gather", ("data",), 2, wide, 3 * 32 * 32, 1),
        Transfer("all_gather", ("tensor",), 2, wide, 16 * 32, 12),
        Transfer("permute", ("pipeline",), 2, wide, 8 * 32, 5),
        Transfer("reduce_scatter", ("tensor",), 2, wide, 16 * 32, 12),
    }
    sums = [transfer for transfer in found if transfer.kind == "all_reduce"]
    assert {(transfer.axes, transfer.count) for transfer in sums} == {(("pipeline", "data"), 1)}
    assert sum(transfer.elements for transfer in sums) == 40 + 24


def test_how_often_is_known_or_refused() -> None:
    with pytest.raises(HloError, match="known only when it runs"):
        list(messages(read(scheduled.recorded()), MESH, {}))
    with pytest.raises(HloError, match="some share is wrong"):
        list(messages(read(scheduled.recorded()), MESH, {"pipeline_forward_0": Fraction(1, 7)}))


def collective(opcode: str, **attributes: str) -> Instruction:
    ids = {"use_global_device_ids": "true"}
    return Instruction("one", opcode, None, (), (), "", ids | attributes, False)


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("{}", ("pipeline", "data", "tensor")),
        ("{{0,1,2,3,4,5,6,7}}", ("pipeline", "data", "tensor")),
        ("{{0,4,2,6},{1,5,3,7}}", ("pipeline", "data")),  # in another order
        ("{{0,4},{1,5},{2,6},{3,7}}", ("pipeline",)),
        ("[4,2]<=[8]", ("tensor",)),
    ],
)
def test_groups_are_mesh_axes(groups: str, axes: tuple[str, ...]) -> None:
    assert mesh_axes(collective("all-reduce", replica_groups=groups), MESH) == axes


@pytest.mark.parametrize("groups", ["{{0,3},{1,2},{4,7},{5,6}}", "{{0,1},{2,3}}", "{{0,1,2},{3,4,5}}"])
def test_groups_of_no_mesh_axes_are_refused(groups: str) -> None:
    with pytest.raises(HloError, match="no mesh axes"):
        mesh_axes(collective("all-reduce", replica_groups=groups), MESH)


@pytest.mark.parametrize("pairs", ["{{0,4},{4,2}}", "{{0,5},{1,4}}", "{{0,0}}"])
def test_a_permute_that_is_no_shift_is_refused(pairs: str) -> None:
    with pytest.raises(HloError, match="no shift"):
        mesh_axes(collective("collective-permute", source_target_pairs=pairs), MESH)


def program(*lines: str, before: str = "") -> Module:
    """The lines as a program; the last is what it makes."""
    *first, last = lines
    body = "".join(f"  {line}\n" for line in (*first, f"ROOT {last}"))
    return read(f"HloModule one, is_scheduled=true\n\n{before}ENTRY %main () -> f32[] {{\n{body}}}\n")


GEMM = """\
%gemm (a: f32[4,{k}], b: f32[{k},8]) -> f32[4,8] {{
  %a = f32[4,{k}]{{1,0}} parameter(0)
  %b = f32[{k},8]{{1,0}} parameter(1)
  ROOT %dot = f32[4,8]{{1,0}} dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}

"""
PARTS = """\
%gemm (a: f32[4,2,8], b: f32[2,8,8]) -> f32[2,4,8] {
  %a = f32[4,2,8]{2,1,0} parameter(0)
  %b = f32[2,8,8]{2,1,0} parameter(1)
  ROOT %dot = f32[2,4,8]{2,1,0} dot(%a, %b), lhs_batch_dims={1}, lhs_contracting_dims={2}, rhs_batch_dims={0}, \
rhs_contracting_dims={1}
}

"""


def test_matmuls_are_counted_within_fusions() -> None:
    module = program(
        "%x = f32[4,15] parameter(0)",
        "%y = f32[15,8] parameter(1)",
        "%z = f32[4,8] fusion(%x, %y), kind=kCustom, calls=%gemm",
        before=GEMM.format(k=15),
    )
    assert [(matmul.times, matmul.flops, matmul.padding) for matmul in matmuls(module, {})] == [(1, 2 * 4 * 15 * 8, 0)]


def test_zeros_that_a_sum_of_products_is_split_with_are_told() -> None:
    """15 products of each entry, in two parts of eight."""
    module = program(
        "%x = f32[4,15] parameter(0)",
        "%y = f32[15,8] parameter(1)",
        "%zero = f32[] constant(0)",
        "%x16 = f32[4,16] pad(%x, %zero), padding=0_0x0_1",
        "%y16 = f32[16,8] pad(%y, %zero), padding=0_1x0_0",
        "%x28 = f32[4,2,8] bitcast(%x16)",
        "%y28 = f32[2,8,8] bitcast(%y16)",
        "%z = f32[2,4,8] fusion(%x28, %y28), kind=kCustom, calls=%gemm",
        before=PARTS,
    )
    (matmul,) = matmuls(module, {})
    assert (matmul.flops, matmul.padding) == (2 * 4 * 16 * 8, 2 * 4 * 1 * 8)


def test_what_is_run_again_is_told_from_what_was_there() -> None:
    both = (
        "%x = f32[4,15] parameter(0)",
        "%y = f32[15,8] parameter(1)",
        "%z.remat = f32[4,8] fusion(%x, %y), kind=kCustom, calls=%gemm",
        "%z = f32[4,8] fusion(%x, %y), kind=kCustom, calls=%gemm",
    )
    once = (*both[:2], "%z.remat = f32[4,8] fusion(%x, %y), kind=kCustom, calls=%gemm")
    for lines, repeated in ((both, [False, True]), (once, [False])):
        dots = [
            one for one in executed(program(*lines, before=GEMM.format(k=15)), {}) if one.instruction.opcode == "dot"
        ]
        assert sorted(map(is_repeated, dots)) == repeated


def test_kernels_are_counted_by_name_and_other_calls_refused() -> None:
    call = '%x = f32[] custom-call(), custom_call_target="{}", metadata={{op_name="jit(f)/flash_forward/pallas_call"}}'
    module = program(call.format("__gpu$xla.gpu.triton"))
    assert kernels(module, {}) == {"flash_forward": 1}
    assert not list(matmuls(module, {}))
    with pytest.raises(HloError, match="no rule for the FLOPs of x, a custom-call"):
        list(matmuls(program(call.format("__cublas$gemm")), {}))
