"""Scheduled programs, as XLA prints them for the CPU by the jax at hand, and as recorded for H100s."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from tests.trainer.planner import scheduled
from tests.trainer.planner.scheduled import LAYERS, TICKS, WIDTH
from trainer.planner.executed import Executed, executed
from trainer.planner.hlo import COLLECTIVES, Array, HloError, Instruction, read

TEXTS = pytest.mark.parametrize("text", [scheduled.for_cpu, scheduled.recorded])
SHARES = {"pipeline_forward_0": Fraction(4, 5)}
BLOCK = 8 * WIDTH  # of the activations, on a device


def only(text: str, opcode: str) -> Executed:
    """The one instruction of a kind, without those that end others."""
    (one,) = found(text, opcode)
    return one


def found(text: str, opcode: str) -> list[Executed]:
    """In the order in which they are issued."""
    every = [one for one in executed(read(text), SHARES) if one.instruction.opcode == opcode]
    return [one for one in every if one.instruction.phase != "done"]


@TEXTS
def test_loops_and_branches_multiply(text: Callable[[], str]) -> None:
    of_weights, of_layer = found(text(), "all-gather")
    assert of_weights.computation.made(of_weights.instruction)[0].elements == LAYERS * WIDTH * WIDTH
    assert of_layer.computation.made(of_layer.instruction)[0].elements == 2 * BLOCK
    assert (of_weights.times, len(of_weights.loops)) == (1, 0)
    # 4 of 5 ticks take the branch, and it has 3 layers.
    assert (of_layer.times, len(of_layer.loops)) == (12, 2)
    assert [only(text(), kind).times for kind in ("reduce-scatter", "dot")] == [12, 12]
    assert only(text(), "collective-permute").times == TICKS


@TEXTS
def test_who_exchanges_with_whom(text: Callable[[], str]) -> None:
    groups = only(text(), "all-reduce").instruction.groups
    assert groups is not None
    assert groups.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert only(text(), "collective-permute").instruction.pairs.tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


@TEXTS
def test_what_is_given_and_what_is_made(text: Callable[[], str]) -> None:
    one = only(text(), "reduce-scatter")
    assert [array.elements for array in one.computation.taken(one.instruction)] == [2 * BLOCK]
    assert [array.elements for array in one.computation.made(one.instruction)] == [BLOCK]
    summed = only(text(), "all-reduce")
    assert sum(array.elements for array in summed.computation.taken(summed.instruction)) == 40 + 24
    dot = only(text(), "dot").instruction
    assert (dot.integers("lhs_contracting_dims"), dot.integers("lhs_batch_dims")) == ((1,), ())


@TEXTS
def test_a_branch_that_nobody_knows_is_taken_an_unknown_number_of_times(text: Callable[[], str]) -> None:
    times = {one.instruction.opcode: one.times for one in executed(read(text()), {})}
    assert (times["dot"], times["collective-permute"]) == (None, TICKS)


def test_what_is_begun_is_ended() -> None:
    """For H100s, every exchange is asynchronous."""
    begun = [one for one in executed(read(scheduled.recorded()), SHARES) if one.instruction.phase == "start"]
    kinds = {one.instruction.opcode for one in begun}
    assert kinds == {*COLLECTIVES} - {"all-to-all", "collective-broadcast"}
    for one in begun:
        order = one.computation.instructions
        assert order.index(one.instruction) < order.index(one.computation.done[one.instruction.name])


def collective(groups: str) -> Instruction:
    attributes = {"replica_groups": groups, "use_global_device_ids": "true"}
    return Instruction("one", "all-reduce", None, (), (), "", attributes, False)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("{{0,1},{2,3}}", [[0, 1], [2, 3]]),
        ("[2,2]<=[4]", [[0, 1], [2, 3]]),
        ("[2,2]<=[2,2]T(1,0)", [[0, 2], [1, 3]]),
        ("[2,4]<=[2,2,2]T(1,0,2)", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("mesh['a'=2,'b'=2,'c'=2] {'a','c'}", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("mesh['a'=2,'b'=3] {'a'}", [[0, 3], [1, 4], [2, 5]]),
    ],
)
def test_forms_of_groups(text: str, rows: list[list[int]]) -> None:
    groups = collective(text).groups
    assert groups is not None
    assert groups.tolist() == rows


@pytest.mark.parametrize("text", ["{{0,1},{2}}", "[2,2]<=[4]R", "mesh['a'=2], device_ids=(1,0) {'a'}", "2,3"])
def test_groups_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(HloError, match="groups"):
        collective(text).groups  # noqa: B018


TITLE = "HloModule one, is_scheduled=true\n\n"
ENTRY = "ENTRY %main (x: f32[2]) -> f32[2] {{\n  %x = f32[2]{{0}} parameter(0)\n  ROOT %y = {}\n}}\n"


def program(root: str) -> str:
    return TITLE + ENTRY.format(root)


def test_a_root_and_its_operands() -> None:
    module = read(
        program('(f32[2]{0}, (bf16[], s4[3])) tuple(f32[2]{0} %x, /*index=1*/ %x), metadata={op_name="a(b)/{c"}')
    )
    root = module.entry.root
    assert root.results == (Array("f32", (2,)), Array("bf16", ()), Array("s4", (3,)))
    assert [array.num_bytes for array in root.results] == [8, 2, 2]
    assert (root.operands, root.op_name) == (("x", "x"), "a(b)/{c")
    assert module.entry.parameters[0].name == "x"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (program("f32[2]{0} teleport(%x)"), "unknown kind, teleport"),
        (program("f32[2]{0} teleport-start(%x)"), "unknown kind, teleport-start"),
        (program("f3[2]{0} negate(%x)"), "unknown type, f3"),
        (program("f32[<=2]{0} negate(%x)"), "unknown shape"),
        (program("(f32[2]{0}, thing) tuple(%x, %x)"), "unknown shape, 'thing'"),
        (program("f32[2]{0} negate(%x), calls=%other"), "negate with calls=%other"),
        (program("f32[2]{0} negate(%x), whatever"), "no attributes: 'whatever'"),
        (program("f32[2]{0} negate(%x"), "not closed"),
        (program("f32[2]{0} negate(%x)")[:-2], "without an end"),
        (TITLE, "without a beginning"),
        (TITLE + "something else\n", "neither a computation nor a table"),
        ("HloModule one\n\n", "no scheduled program"),
    ],
)
def test_what_is_not_known_is_refused(text: str, error: str) -> None:
    with pytest.raises(HloError, match=error):
        read(text)


def test_branches_that_are_taken_by_different_rules_are_refused() -> None:
    scope = 'metadata={op_name="jit(f)/cond'
    branches = "".join(
        f"%{name} (x: f32[2]) -> f32[2] {{\n"
        f'  ROOT %{name}.x = f32[2]{{0}} parameter(0), {scope}/branch_{i}_fun/jit({name})/neg"}}\n}}\n\n'
        for i, name in enumerate(("one", "other"))
    )
    root = f'f32[2]{{0}} conditional(%x, %x, %x), true_computation=%other, false_computation=%one, {scope}"}}'
    module = read(program(root).replace("ENTRY", branches + "ENTRY"))
    halves = {"one": Fraction(1, 4), "other": Fraction(1, 2)}
    with pytest.raises(HloError, match="its branches run one, other"):
        list(executed(module, halves))
    times = {one.instruction.name: one.times for one in executed(module, {"other": Fraction(1, 4)})}
    assert (times["one.x"], times["other.x"]) == (Fraction(3, 4), Fraction(1, 4))
