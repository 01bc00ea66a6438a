"""What hides behind what, in programs small enough to time by hand, and in one that XLA scheduled."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest

from tests.trainer.planner import scheduled
from trainer.planner.gpu import load
from trainer.planner.hlo import HloError, read
from trainer.planner.links import Cluster
from trainer.planner.overlap import Overlap, overlap

# 1 byte a nanosecond, on the link and in memory: an array of n floats is copied in 8n ns, and gathered to 2n in 4n.
H100 = load("h100")
GPU = dataclasses.replace(
    H100,
    memory_bandwidth=1e9,
    nvlink=dataclasses.replace(H100.nvlink, bandwidth=1e9, latency=0),
    efficiency=dataclasses.replace(H100.efficiency, memory=1, matmul=1),
    matmul_flops=1e9,
)
NS = 1e-9
START = (
    "%{0}.s = (f32[100]{{0}}, f32[200]{{0}}) all-gather-start(%x), channel_id=1, replica_groups={{{{0,1}}}}, "
    'dimensions={{0}}, use_global_device_ids=true, backend_config={{"collective_backend_config":{{"is_sync":{1}}}}}'
)
DONE = "%{0} = f32[200]{{0}} all-gather-done(%{0}.s)"
NEVER = """%never (x: f32[100]) -> pred[] {
  %x = f32[100]{0} parameter(0)
  ROOT %no = pred[] constant(false)
}
"""
LOOP = (
    '%loop = f32[100]{{0}} while(%x), condition=%never, body=%body, backend_config={{"known_trip_count":{{"n":"{0}"}}}}'
)


def start(name: str, synchronous: bool = False) -> str:
    """A gather that takes 400 ns."""
    return START.format(name, "true" if synchronous else "false")


def done(name: str) -> str:
    return DONE.format(name)


def copy(name: str, floats: int) -> str:
    """Work of 8 ns for each float."""
    return f"%{name} = f32[{floats}]{{0}} copy(%{'x' if floats == 100 else f'x{floats}'})"


def computation(name: str, lines: list[str]) -> str:
    parameters = ["%x = f32[100]{0} parameter(0)", *(f"%x{n} = f32[{n}]{{0}} constant({{...}})" for n in (25, 50))]
    body = [f"  {line}" for line in (*parameters, *lines, "ROOT %end = f32[100]{0} bitcast(%x)")]
    return "\n".join([f"{name} (x: f32[100]) -> f32[100] {{", *body, "}", ""])


def measure(entry: list[str], body: tuple[str, ...] = ()) -> Overlap:
    never = (
        "%never (x: f32[100]) -> pred[] {\n  %x = f32[100]{0} parameter(0)\n  ROOT %no = pred[] constant(false)\n}\n"
    )
    parts = [never, computation("%body", [*body]), computation("ENTRY %main", entry)]
    text = "HloModule step, is_scheduled=true\n\n" + "\n".join(parts)
    return overlap(read(text), {"data": 1, "tensor": 2}, {}, Cluster(GPU, 8), {})


@pytest.mark.parametrize(
    ("entry", "share"),
    [
        ([start("a"), copy("w", 50), done("a")], 1),
        ([start("a"), copy("w", 25), done("a")], 0.5),
        ([start("a"), copy("w", 25), copy("v", 25), done("a")], 1),
        ([copy("v", 50), start("a"), done("a"), copy("w", 50)], 0),
        ([start("a", synchronous=True), done("a"), copy("w", 50)], 0),
    ],
    ids=["behind as much", "behind half", "behind two", "only beside", "synchronous"],
)
def test_what_is_between_start_and_end_hides(entry: list[str], share: float) -> None:
    found = measure(entry)
    assert found.share == pytest.approx(share)
    assert found.waiting == pytest.approx((1 - share) * 400 * NS)
    (gathered,) = found.sent
    assert (gathered.kind, gathered.axes, gathered.messages) == ("all_gather", ("tensor",), 1)
    assert (gathered.link_bytes, gathered.seconds) == (400, pytest.approx(400 * NS))


def test_the_same_work_never_hides_two() -> None:
    found = measure([start("a"), start("b"), copy("w", 50), done("a"), done("b")])
    assert (found.share, found.waiting) == (pytest.approx(0.5), pytest.approx(400 * NS))


def test_waiting_for_one_brings_the_next_no_further() -> None:
    """All are on one link: the second begins when the first is there, and then needs work of its own."""
    entry = [start("a"), start("b"), copy("w", 25), done("a"), copy("v", 25), done("b")]
    assert measure(entry).share == pytest.approx(0.5)


def test_loops_count_as_often_as_they_run() -> None:
    found = measure([LOOP.format(3), copy("w", 50)], (start("a"), copy("v", 25), done("a")))
    assert (found.sent[0].messages, found.share) == (3, pytest.approx(0.5))
    assert found.waiting == pytest.approx(3 * 200 * NS)
    assert found.work == pytest.approx((3 * 200 + 400) * NS)


def test_a_loop_that_sends_itself_hides_that_much_less() -> None:
    """Two rounds of 200 ns of work hide 400 ns; while the link is busy with what the loop sends, they hide nothing."""
    beside = [start("a"), LOOP.format(2), done("a")]
    assert measure(beside, (copy("v", 25),)).share == pytest.approx(1)
    busy = measure(beside, (copy("v", 25), start("b"), done("b")))
    assert busy.waiting == pytest.approx(2 * 400 * NS)
    assert busy.share == pytest.approx(1 / 3)


def test_a_loop_of_unknown_length_is_said() -> None:
    unknown = LOOP.format(1).replace("known_trip_count", "other")
    with pytest.raises(HloError, match="loop"):
        measure([unknown], (copy("v", 25),))


def test_a_program_for_h100s() -> None:
    """As recorded: nothing to speak of is between its collectives."""
    mesh = {"pipeline": 2, "data": 2, "tensor": 2}
    shares = {"pipeline_forward_0": Fraction(4, 5)}
    found = overlap(read(scheduled.recorded()), mesh, shares, Cluster(H100, 8), {})
    messages = {(one.kind, one.axes): one.messages for one in found.sent}
    layers = scheduled.LAYERS * (scheduled.TICKS - 1)
    assert messages == {
        ("all_gather", ("data",)): 1,
        ("all_gather", ("tensor",)): layers,
        ("all_reduce", ("pipeline", "data")): 1,
        ("permute", ("pipeline",)): scheduled.TICKS,
        ("reduce_scatter", ("tensor",)): layers,
    }
    assert 0 <= found.share < 0.1
    assert found.waiting <= found.seconds
