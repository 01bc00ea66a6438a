"""How much of what a compiled step sends is hidden: which work XLA has put between the start and the end of each
collective, and how long both take.

The device works through its instructions in order and waits where one ends what is still on its way. All collectives
have one stream, as XLA runs them: each begins when the one before is done, so that no work hides two of them. What is
not asynchronous hides nothing. Knows nothing of plans, and compiles and prints nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby

from trainer.planner.compiled import CompiledStep
from trainer.planner.compiled_wire import messages
from trainer.planner.executed import Executed, executed
from trainer.planner.hlo import COLLECTIVES, HloError, Instruction, Module
from trainer.planner.links import Cluster
from trainer.planner.roofline import work
from trainer.trace import KERNEL, Trace, visits
from trainer.wire import Kind, Transfer


@dataclass(frozen=True)
class Hidden:
    """All that a step sends of one kind over the same axes, on one GPU."""

    kind: Kind
    axes: tuple[str, ...]
    messages: int
    link_bytes: float
    """That the GPU puts on the link."""
    hidden_bytes: float
    """Those of them that are on their way while it works: of each message as much as of its seconds."""
    seconds: float
    """On the way."""
    waiting: float
    """Of those, while it does nothing else."""

    @property
    def share(self) -> float:
        """Of the bytes that are hidden, 0 to 1."""
        return self.hidden_bytes / self.link_bytes


@dataclass(frozen=True)
class Overlap:
    """Of one step, on one GPU."""

    sent: tuple[Hidden, ...]
    work: float
    """Seconds of everything else, by a roofline."""

    @property
    def link_bytes(self) -> float:
        return sum(one.link_bytes for one in self.sent)

    @property
    def share(self) -> float:
        """Of all bytes that are hidden; 1 where nothing is sent."""
        return sum(one.hidden_bytes for one in self.sent) / self.link_bytes if self.sent else 1.0

    @property
    def seconds(self) -> float:
        """On the way."""
        return sum(one.seconds for one in self.sent)

    @property
    def waiting(self) -> float:
        """Seconds of a step in which the GPU waits for what is on its way."""
        return sum(one.waiting for one in self.sent)


def step_overlap(step: CompiledStep, cluster: Cluster) -> Overlap:
    """That of a compiled step, on the pipeline stage that sends most.

    Raises:
        HloError: see `overlap`.
    """
    mesh = dict(step.program.mesh.shape)
    distinct = {tuple(shares.items()): shares for shares in step.trace.shares}.values()
    found = (overlap(step.module, mesh, shares, cluster, _kernels(step.trace)) for shares in distinct)
    return max(found, key=lambda one: one.link_bytes)


def _kernels(trace: Trace) -> dict[str, float]:
    """The FLOPs of one run of each Pallas kernel, as the kernels themselves tell."""
    equations = (visit.equation for visit in visits(trace.program, {}))
    return {one.params["name"]: one.params["cost_estimate"].flops for one in equations if one.primitive.name == KERNEL}


def overlap(
    module: Module,
    mesh: Mapping[str, int],
    shares: Mapping[str, Fraction],
    cluster: Cluster,
    kernels: Mapping[str, float],
) -> Overlap:
    """That of a scheduled program.

    Args:
        mesh: axis -> size, of the mesh that it is compiled for.
        shares: see `trainer.planner.executed.executed`.
        kernels: FLOPs of one run of each Pallas kernel.

    Raises:
        HloError: a collective that has no rule, or something of which it is known only when the program runs how often.
    """
    sent = {_path(message.executed): message.transfers for message in messages(module, mesh, shares)}
    run = _Run(module, mesh, cluster, kernels, sent)
    for one in executed(module, shares):
        run.inside[id(one.caller)].append(one)
    clock = run.through(run.inside[id(None)])
    return Overlap(tuple(run.alike()), clock.now - sum(hidden.waiting for hidden in run.found))


@dataclass
class _Flight:
    """A collective on its way: when it begins, when it is there, and how much of that the device has waited."""

    begin: float
    end: float
    waited: float = 0.0


@dataclass
class _Clock:
    """Seconds of one computation: the device's, and those of what is on its way."""

    now: float = 0.0
    sending: float = 0.0
    """In all, waited for or not."""
    flights: dict[str, _Flight] = field(default_factory=dict)

    def work(self, seconds: float, sending: float = 0.0) -> None:
        """The device works; within that it sends, for which what is on its way already makes room."""
        for flight in self.flights.values():
            if flight.end > self.now:
                flight.end += sending
        self.now += seconds
        self.sending += sending

    def start(self, name: str, seconds: float) -> None:
        begin = max([self.now, *(flight.end for flight in self.flights.values())])
        self.flights[name] = _Flight(begin, begin + seconds)
        self.sending += seconds

    def done(self, name: str) -> float:
        """The seconds that the device has waited while it was on its way."""
        until = max(self.now, self.flights[name].end)
        for flight in self.flights.values():
            flight.waited += max(0.0, min(flight.end, until) - max(flight.begin, self.now))
        self.now = until
        return self.flights.pop(name).waited


@dataclass
class _Run:
    """Goes through a program once, loops and branches included."""

    module: Module
    mesh: Mapping[str, int]
    cluster: Cluster
    kernels: Mapping[str, float]
    sent: Mapping[tuple[str, ...], tuple[Transfer, ...]]
    inside: dict[int, list[Executed]] = field(default_factory=lambda: defaultdict(list))
    """What each instruction runs, by the `id` of it."""
    found: list[Hidden] = field(default_factory=list)
    """For each collective."""

    def through(self, instructions: Sequence[Executed]) -> _Clock:
        """One run of a computation."""
        clock = _Clock()
        for one in instructions:
            instruction = one.instruction
            if instruction.opcode in COLLECTIVES:
                self._send(one, clock)
            elif instruction.opcode in ("async", "call", "conditional", "while"):
                self._enter(one, clock)
            else:
                clock.work(work(self.module, one.computation, instruction, self.cluster.gpu, self.kernels))
        return clock

    def alike(self) -> Iterator[Hidden]:
        """What was found, of each kind and over the same axes together."""
        for (kind, axes), same in groupby(sorted(self.found, key=_what), key=_what):
            every = list(same)
            yield Hidden(
                kind=kind,
                axes=axes,
                messages=sum(one.messages for one in every),
                link_bytes=sum(one.link_bytes for one in every),
                hidden_bytes=sum(one.hidden_bytes for one in every),
                seconds=sum(one.seconds for one in every),
                waiting=sum(one.waiting for one in every),
            )

    def _send(self, one: Executed, clock: _Clock) -> None:
        """A start begins, an end waits; what is synchronous does both at once."""
        instruction = one.instruction
        if instruction.phase in (None, "start"):
            clock.start(instruction.name, self._seconds(one))
        if instruction.phase is None or _is_synchronous(instruction):
            self._note(one, clock)
        elif instruction.phase == "done":
            begun = _beginning(one)
            if begun.instruction.name in clock.flights:
                self._note(begun, clock)

    def _note(self, begun: Executed, clock: _Clock) -> None:
        waited, seconds = clock.done(begun.instruction.name), self._seconds(begun)
        transfers = self.sent[_path(begun)]
        times, link_bytes = transfers[0].count, sum(transfer.link_bytes for transfer in transfers)
        hidden = link_bytes * (1 - min(1.0, waited / seconds))
        self.found.append(
            Hidden(transfers[0].kind, transfers[0].axes, times, link_bytes, hidden, seconds * times, waited * times)
        )

    def _enter(self, one: Executed, clock: _Clock) -> None:
        """A loop, a branch or a call: all that it runs, as often as it does."""
        seconds = sending = 0.0
        for _, same in groupby(self.inside[id(one)], key=lambda inner: inner.computation.name):
            inner = list(same)
            if one.times is None or inner[0].times is None:
                raise HloError(f"{one.instruction.name}: how often it runs is known only when it runs")
            if inner[0].times:
                within, times = self.through(inner), float(inner[0].times / one.times)
                seconds, sending = seconds + times * within.now, sending + times * within.sending
        clock.work(seconds, sending)

    def _seconds(self, begun: Executed) -> float:
        """On the way, each time. Arrays that XLA has combined travel as one message."""
        transfers = self.sent[_path(begun)]
        num_bytes = sum(transfer.payload / transfer.count for transfer in transfers)
        return self.cluster.along(transfers[0].axes, self.mesh).seconds(transfers[0].kind, num_bytes)


def _what(hidden: Hidden) -> tuple[Kind, tuple[str, ...]]:
    return hidden.kind, hidden.axes


def _path(one: Executed) -> tuple[str, ...]:
    """What tells an executed instruction from all others of a program."""
    return one.instruction.name, *(caller.instruction.name for caller in one.callers)


def _beginning(done: Executed) -> Executed:
    """Of what an instruction ends."""
    begun = done.computation.by_name[done.instruction.operands[0]]
    while begun.phase == "update":
        begun = done.computation.by_name[begun.operands[0]]
    return Executed(done.computation, begun, done.times, done.caller)


def _is_synchronous(start: Instruction) -> bool:
    """Whether XLA runs it among the work after all, as it does where nothing stands between start and end."""
    return bool(start.backend_config.get("collective_backend_config", {}).get("is_sync"))
