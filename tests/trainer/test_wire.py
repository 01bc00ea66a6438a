"""Every byte on the wire is on purpose: the traced step sends what its parallelism promises, and no more."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from benchmarks.wire import CASES, COMPUTE, DATA, PIPELINE, PIPELINES, REDUCE, TENSOR, Case, counted, promised
from sharding.mesh import make_mesh
from trainer.config import Config
from trainer.program import Program, plan_layouts
from trainer.trace import scan_carry, trace_step
from trainer.wire import Transfer, wire


@pytest.mark.parametrize("case", [*CASES, *PIPELINES, Case(1, 4, 2, replica=2, pipeline=2, head="last")], ids=str)
def test_a_step_sends_what_is_promised(case: Case) -> None:
    assert {line: elements for line, (elements, _) in counted(case).items()} == {
        line: elements for line, (_, elements) in promised(case).items()
    }


def test_a_block_sends_two_and_two_forward_and_the_same_backward() -> None:
    x = 2 * 48 * 64  # sequences x tokens x hidden
    found = {
        (t.kind, t.axes, t.elements): t.count for t in wire(trace_step(Case(1, 1, 2, recompute="none").config).program)
    }
    assert found["all_gather", TENSOR, x] == 3 * (2 + 2) + 2  # the embedding's backward pass, and the head's forward
    assert found["reduce_scatter", TENSOR, x] == 3 * (2 + 2) + 2  # the other way round


def test_a_micro_batch_in_parts_sends_the_same_in_twice_as_many_messages() -> None:
    """Of activations; weights are gathered, and their gradients scattered, once for all parts."""
    config = Case(3, 4, 2).config
    parts = dataclasses.replace(config, batch=dataclasses.replace(config.batch, parts=2))
    found = _counts(parts)
    x = 2 * 48 * 64  # sequences x tokens x hidden
    for (kind, axes, elements), count in _counts(config).items():
        in_blocks = count - 4 * 2 if axes == TENSOR and elements == x else 0  # but for embedding and head
        assert found.get((kind, axes, elements), 0) == count - in_blocks
        if in_blocks:
            assert found[kind, axes, x // 2] == 2 * in_blocks


def _counts(config: Config) -> dict[tuple[str, tuple[str, ...], int], int]:
    return {(t.kind, t.axes, t.elements): t.count for t in wire(trace_step(config).program)}


def test_weights_travel_in_compute_and_gradients_in_reduce() -> None:
    config = Case(3, tensor=2).config
    assert _dtypes(config) == {("all_gather", COMPUTE), ("reduce_scatter", REDUCE)}
    halves = dataclasses.replace(config, precision=dataclasses.replace(config.precision, reduce="bfloat16"))
    assert _dtypes(halves) == {("all_gather", "bfloat16"), ("reduce_scatter", "bfloat16")}


def _dtypes(config: Config) -> set[tuple[str, str]]:
    return {(t.kind, t.dtype) for t in wire(trace_step(config).program) if t.axes == DATA and t.elements > 1}


def test_a_step_agrees_on_four_scalars() -> None:
    scalars = [t for t in wire(trace_step(Case(1, 4, 2).config).program) if t.elements == 1]
    # Counted tokens, loss, and the norm: of what is sharded over data, and over data and tensor.
    assert {(t.kind, t.axes, t.dtype): t.count for t in scalars} == {
        ("all_reduce", ("data",), "float32"): 3,
        ("all_reduce", ("data", "tensor"), "float32"): 1,
    }


def test_a_bias_is_gathered_once_at_stage_3() -> None:
    """Its gradient does not need its value. Sizes are those of the key's and the value's weights, and biases."""
    config = Case(3).config
    biased = dataclasses.replace(config, model=dataclasses.replace(config.model, bias=True))
    found = {t.elements: t.count for t in wire(trace_step(biased).program) if t.kind == "all_gather"}
    assert found[64 * 2 * 16] == 2 * 3 * 2  # key and value, layers, forward and backward
    assert found[2 * 16] == 2 * 3


def test_stages_send_one_activation_and_one_cotangent_a_tick() -> None:
    """Four stages, eight micro-batches: 8 + 3 ticks have forwards, and as many backwards. Two chunks: 16 + 3."""
    x = 2 * 48 * 64  # sequences x tokens x hidden
    for tensor, virtual, ticks in ((1, 1, 11), (2, 1, 11), (2, 2, 19)):
        case = Case(1, 8, tensor, pipeline=4, virtual=virtual, head="last", place=1)
        assert _over_pipeline(case.config, case.place) == {("permute", COMPUTE, x // tensor): 2 * ticks}


def test_a_spread_vocabulary_is_summed_over_the_stages() -> None:
    """Of each of 8 micro-batches the embedding and its gradient, what goes into the head and its gradient."""
    x = 2 * 48 * 64 // 2
    config = Case(1, 8, 2, pipeline=4).config
    assert _over_pipeline(config) == {("permute", COMPUTE, x): 2 * 11, ("all_reduce", COMPUTE, x): 4 * 8}


def test_an_embedding_norm_is_looked_up_for_again() -> None:
    """Its gradient needs the embedding once more: five sums of each micro-batch."""
    x = 2 * 48 * 64 // 2
    config = Case(1, 8, 2, pipeline=4).config
    bloom = dataclasses.replace(config, model=dataclasses.replace(config.model, embedding_norm=True))
    assert _over_pipeline(bloom) == {("permute", COMPUTE, x): 2 * 11, ("all_reduce", COMPUTE, x): 5 * 8}


def _over_pipeline(config: Config, stage: int = 0) -> dict[tuple[str, str, int], int]:
    """(kind, dtype, elements) -> how often it is sent along `pipeline` alone, but for what is sent once a step."""
    trace = trace_step(config)
    sent = (t for t in wire(trace.program, trace.shares[stage]) if t.axes == PIPELINE and t.count > 2)
    return {(t.kind, t.dtype, t.elements): t.count for t in sent}


def test_a_stage_gathers_weights_for_units_and_not_for_ticks() -> None:
    """Stage 3 with two chunks of three layers and 8 micro-batches: twice for each of 48 layers, in 22 ticks."""
    case = Case(3, 8, 2, pipeline=4, virtual=2)
    trace = trace_step(case.config)
    for shares in trace.shares:
        found = {t.elements: t.count for t in wire(trace.program, shares) if t.kind == "all_gather" and t.axes == DATA}
        assert found[64 * 144 // 2] == 3 * 2 * 48  # gate, up and down
        assert found[64 * 64 // 2] == 2 * 2 * 48  # query and out


def test_unrolled_layers_send_the_same() -> None:
    config = Case(3, 4, 2).config
    unrolled = dataclasses.replace(config, model=dataclasses.replace(config.model, scan_layers=False))
    assert _totals(unrolled) == _totals(config)


def _totals(config: Config) -> Counter[tuple[str, int]]:
    """(kind, devices that exchange) -> payload elements a step."""
    totals: Counter[tuple[str, int]] = Counter()
    for transfer in wire(trace_step(config).program):
        totals[transfer.kind, transfer.devices] += transfer.count * transfer.elements
    return totals


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_whole_weights_are_never_saved_for_the_backward_pass(stage: int, recompute: str) -> None:
    config = Case(stage, 1, 2, recompute=recompute).config
    layouts = [layout for layout in plan_layouts(config, config.mesh.sizes).values() if layout.stacked]
    matrices = {math.prod(layout.layer.block_shape) for layout in layouts if len(layout.layer.dims) > 1}
    saved = list(_saved_by_layer(trace_step(config).program, config.model.layers))
    assert saved, "the forward pass saves at least the input of each layer"
    assert not [array for array in saved if math.prod(array.shape[1:]) in matrices]


def _saved_by_layer(program: ClosedJaxpr, layers: int) -> Iterator[Any]:
    """Type of each array that the forward scan over the layers stacks."""
    for equation in _equations(program.jaxpr):
        params = equation.params
        if equation.primitive.name == "scan" and params["length"] == layers and not params["reverse"]:
            yield from (variable.aval for variable in equation.outvars[scan_carry(equation)[1] :])


def _equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if isinstance(inner, Jaxpr):
                yield from _equations(inner)


@pytest.mark.parametrize("case", [Case(1, 4, 2), Case(3, 1, 2)], ids=str)
def test_the_compiled_step_sends_what_the_trace_says(case: Case) -> None:
    """In kind, group and elements, after XLA's optimisation for CPU.

    Not in dtype, as that widens bfloat16 to float32 for collectives. And not at stage 3 with several micro-batches: the
    gathers of what is outside of the blocks do not depend on the micro-batch, and XLA moves them out of the loop.
    """
    config = case.config
    program = Program(config, make_mesh(config.mesh, jax.devices()[: config.mesh.num_devices]))
    step: Any = program.step
    compiled = step.lower(program.abstract_state(), program.abstract_batch()).compile()
    assert _compiled_totals(compiled.as_text()) == _totals(config)


_COLLECTIVE = re.compile(r" = (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


def _compiled_totals(text: str) -> Counter[tuple[str, int]]:
    """(kind, devices in a group) -> payload elements a run, from the text of an optimised program."""
    times = _times(text)
    found: Counter[tuple[str, int]] = Counter()
    for computation, line in _lines(text):
        if match := _COLLECTIVE.search(line):
            result, kind = match.groups()
            devices = _group_size(line)
            shapes = [dims.split(",") if dims else [] for dims in re.findall(r"\w\[([\d,]*)\]", result)]
            elements = sum(math.prod(map(int, shape)) for shape in shapes)
            elements *= devices if kind == "reduce-scatter" else 1
            found[kind.replace("-", "_"), devices] += times[computation] * elements
    return found


def _group_size(line: str) -> int:
    """Of replica_groups={{0,1},{2,3}}, or on jax 0.12 of replica_groups=mesh['data'=4,'tensor'=2] {'tensor'}."""
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return len(listed[1].split(","))
    named = re.search(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}", line)
    assert named, f"in another form: {line}"
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
    return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", named[2]))


def _times(text: str) -> Counter[str]:
    """Computation -> how often a run executes it, by the trip counts of the loops around it."""
    callers: dict[str, tuple[str, int]] = {}
    for computation, line in _lines(text):
        trips = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
        for body in re.findall(r"(?:body|to_apply|calls)=%([\w.-]+)", line):
            callers[body] = computation, int(trips[1]) if trips else 1
    times: Counter[str] = Counter()
    for computation, _ in _lines(text):
        times[computation], caller = 1, computation
        while caller in callers:
            caller, trips_here = callers[caller]
            times[computation] *= trips_here
    return times


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """(name of its computation, instruction)."""
    computation = ""
    for line in text.splitlines():
        if head := re.match(r"(?:ENTRY )?%([\w.-]+) \(", line):
            computation = head[1]
        elif line.startswith(" "):
            yield computation, line


def _manual(function: Callable[..., Any], *shapes: tuple[int, ...]) -> ClosedJaxpr:
    """`function` of blocks cut over data 4, traced."""
    mesh = AbstractMesh((4,), DATA)
    spec = PartitionSpec("data")
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=True)
    sharding = NamedSharding(mesh, spec)
    blocks = (jax.ShapeDtypeStruct((4 * shape[0], *shape[1:]), jnp.float32, sharding=sharding) for shape in shapes)
    return jax.make_jaxpr(mapped)(*blocks)


def test_payload_and_link_bytes() -> None:
    def body(x: jax.Array) -> jax.Array:
        x = jax.lax.psum_scatter(x, "data", tiled=True)
        return jax.lax.all_gather(x, "data", tiled=True) + jax.lax.psum(jnp.sum(x), "data")

    assert [(t.kind, t.elements, t.payload, t.link_bytes) for t in wire(_manual(body, (16,)))] == [
        ("all_gather", 16, 64, 48),
        ("all_reduce", 1, 4, 6),
        ("reduce_scatter", 16, 64, 48),
    ]


def test_loops_multiply_and_what_is_not_used_is_not_sent() -> None:
    def body(x: jax.Array) -> jax.Array:
        jax.lax.all_gather(x, "data")
        return jax.lax.scan(lambda y, _: (jax.lax.pmax(y, "data") * x, None), x, length=5)[0]

    assert wire(_manual(body, (2,))) == [Transfer("all_reduce", DATA, 4, "float32", 2, count=5)]


def test_what_cannot_be_counted_is_refused() -> None:
    def while_loop(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda y: jnp.sum(jax.lax.psum(y, "data")) < 9, lambda y: y + 1, x)

    def to_all(x: jax.Array) -> jax.Array:
        return jax.lax.all_to_all(x, "data", 0, 0)

    with pytest.raises(NotImplementedError, match="all_reduce in a branch or loop"):
        wire(_manual(while_loop, (2,)))
    with pytest.raises(NotImplementedError, match="no rule for what all_to_all"):
        wire(_manual(to_all, (4,)))
