"""A training state of which master weights and moments are kept and updated by the host.

The devices hold copies of the weights in the dtype they compute with. After each step their gradients come down a
bucket at a time, the host's cores update that bucket, and its new weights go up again: three lanes that work side by
side. Each process has the shards that its own devices hold.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np

from models.inputs import Batch
from sharding.streamed import DEVICE, HOST, moved
from trainer import logical
from trainer.checkpoint import Later, Read
from trainer.keeper import Limits
from trainer.logical import Arrays
from trainer.offload.buckets import Bucket, cut
from trainer.offload.exchange import Exchange
from trainer.offload.lanes import NO_LANES, Lanes
from trainer.offload.layers import Layers
from trainer.offload.outbox import Outbox, Parts, ToDevices, ToFile, ToHostMemory
from trainer.offload.records import Records
from trainer.offload.tiers import Tier
from trainer.offload.update import HostUpdate
from trainer.program import Program
from trainer.step import Due, Metrics, TrainState
from trainer.weights import abstract_saved

AHEAD = 2  # buckets that have come down before they are worked at, and that wait to go up


class Offloaded:
    """Keeps a training state; see `trainer.keeper.Keeper`.

    Args:
        make_tier: the sizes of records in bytes -> where they are kept.
        make_layers: who keeps layers whose weights and gradients are in files, where the program has some.
        lanes: where it is noted what takes when: `compute`, `down`, `update` and `up`.

    Raises:
        ConfigError: what the update needs is not installed, or the tier or those files cannot be had.
    """

    state: TrainState

    def __init__(
        self,
        program: Program,
        make_tier: Callable[[Sequence[int]], Tier],
        lanes: Lanes = NO_LANES,
        make_layers: Callable[[Exchange, int], Layers] | None = None,
    ) -> None:
        config = program.config
        self.program = program
        self.lanes = lanes
        self.update = HostUpdate(config.optimizer)
        self.kinds = ("parameters", *(f"optimizer.{moment}" for moment in self.update.moments))
        layouts = {name: layout for name, layout in program.layouts.items() if name in program.offloaded}
        self.exchange = Exchange(program.mesh, layouts, sees_all=program.on_cpu)
        shards = {name: layout.shard_shape for name, layout in layouts.items()}
        buckets = list(cut(shards, config.offload.bucket, by_row=program.in_file))
        num_groups = {name: len(groups) for name, groups in self.exchange.groups.items()}
        self.records = Records(buckets, num_groups, len(self.kinds), make_tier)
        weakref.finalize(self, self.records.tier.close)  # as the process ends, at the latest
        dtype, most = jnp.dtype(config.precision.compute), max(bucket.size for bucket in buckets)
        self.to_devices = ToDevices(self.exchange, dtype, most, waiting=AHEAD + 1)
        self.to_host = ToHostMemory(self.exchange, dtype)
        self.layers: Layers | None = None
        if program.outside is not None:
            assert make_layers is not None, "somebody keeps the layers that are not in the state"
            most = max(bucket.size for bucket in buckets if bucket.name in program.in_file)
            self.layers = make_layers(self.exchange, most)
            weakref.finalize(self, self.layers.close)
            program.outside.serve(self.layers)
            self.to_file = ToFile(self.layers, most, waiting=AHEAD + 1)
        self._is_torn = False
        """A step has begun and not ended, so that some weights may be new and others old."""

    def initialise(self) -> None:
        weights = {}

        def rows_of(name: str, layer: int | None) -> list[list[np.ndarray]]:
            master = self.program.initial_master(name, layer)
            shards = self.exchange.shards(name, master)
            if layer is None:
                weights[name] = self._weight(name, master)
            elif self.layers is not None:
                self.layers.set(name, layer, shards)
            return [shards, *([np.zeros_like(shard) for shard in shards] for _ in self.update.moments)]

        self.records.fill(rows_of, by_layer=self.program.in_file)
        self._start(self.program.init_here(), weights)

    def restore(self, read: Read) -> None:
        weights = {}

        def rows_of(name: str, _: int | None) -> list[list[np.ndarray]]:
            arrays = read([f"{kind}.{name}" for kind in self.kinds])
            rows = [self._shards(name, arrays[f"{kind}.{name}"]) for kind in self.kinds]
            if self.layers is not None and name in self.program.in_file:
                self.layers.set_all(name, rows[0])
            else:
                master = moved(arrays[f"parameters.{name}"], DEVICE)
                weights[name] = self._weight(name, logical.as_stored(self.program, name, master))
            return rows

        self.records.fill(rows_of)
        here = [name for name in logical.names(self.program) if name not in self._names]
        self._start(logical.from_logical(self.program, read(here)), weights)

    def _start(self, state: TrainState, weights: Arrays) -> None:
        self.state = state._replace(parameters=state.parameters | weights)
        if self.layers is not None:
            self.layers.begin()

    def abstract(self) -> dict[str, jax.ShapeDtypeStruct]:
        """See `Keeper`. What the host keeps is asked for in its memory."""
        whole = dict(self._abstract_whole)
        for name in self._names:
            whole[name] = whole[name].update(sharding=whole[name].sharding.with_memory_kind(HOST))
        return whole

    def step(self, batch: Batch, *limits: Limits) -> Metrics:
        """See `Keeper`. Returns when the new weights are on the devices.

        Raises:
            OffloadError: the tier could not be read or written. What is kept is then of no more use.
            RuntimeError: a step before has failed.
        """
        self._require_whole()
        self._is_torn = True
        try:
            metrics = self._train(batch, *limits)
        except BaseException:
            self._close()  # for a trainer that goes on in its place
            raise
        self._is_torn = False
        return metrics

    def _train(self, batch: Batch, *limits: Limits) -> Metrics:
        with self.lanes.span("compute", "step"):
            self.state, metrics, due = self.program.step(self.state, batch, *limits)
            is_good = bool(due.good)  # waits for the devices
        if self.program.outside is not None:
            self.program.outside.settle()
        if is_good:
            weights = self._update(due, np.float32(metrics.learning_rate))
            self.state = self.state._replace(parameters=self.state.parameters | weights)
            if self.layers is not None:
                self.layers.begin()
        return metrics

    def _close(self) -> None:
        self.records.tier.close()
        if self.layers is not None:
            self.layers.close()

    def logical(self) -> dict[str, jax.Array | Later]:
        """See `Keeper`. What the host keeps is copied within its memory, an array at a time.

        Raises:
            RuntimeError: a step has failed.
        """
        self._require_whole()
        here = [name for name in logical.names(self.program) if name not in self._names]
        arrays: dict[str, jax.Array | Later] = {**logical.to_logical(self.program, self.state, here)}
        for row, kind in enumerate(self.kinds):
            for name in self.program.offloaded:
                array = f"{kind}.{name}"
                arrays[array] = Later(self._abstract_whole[array], partial(self._logical, name, row))
        return arrays

    def _require_whole(self) -> None:
        if self._is_torn:
            raise RuntimeError(
                "a step was broken off half way, and the training state with it; make a new Trainer, which goes on "
                "from the newest checkpoint"
            )

    def _weight(self, name: str, master: jax.Array) -> jax.Array:
        """What the train step computes with of a master weight, on the devices or, of one that is streamed, beside."""
        weight = master.astype(self.program.zero.compute)
        return moved(weight, HOST) if name in self.program.streamed else weight

    def _update(self, due: Due, rate: np.float32) -> Arrays:
        """The new weights on the devices; uses up the gradients and the old weights."""
        weights = {name: x for name, x in self.state.parameters.items() if name in self.program.offloaded}
        buckets, layers = self.records.buckets, self.layers
        clip = None if self.program.config.optimizer.clip is None else np.float32(due.clip)
        count = int(due.updates)

        def down(bucket: Bucket) -> list[np.ndarray]:
            with self.lanes.span("down", bucket.name):
                if layers is not None and bucket.name in self.program.in_file:
                    return layers.gradient(bucket)
                return self.exchange.down(due.gradients[bucket.name], bucket)

        def up(outbox: Outbox, bucket: Bucket, new: Parts) -> None:
            with self.lanes.span("up", bucket.name):
                outbox.send(weights, bucket, new)

        with ThreadPoolExecutor(1) as downs, ThreadPoolExecutor(1) as ups:
            sent: list[Future[None]] = []
            arriving = _ahead(downs, down, buckets)
            with closing(self.records.visit()) as visit:
                for bucket, group, (master, *moments) in visit:
                    outbox = self._outbox(bucket.name)
                    if group == 0:
                        gradients, new = next(arriving), outbox.open(bucket)
                    with self.lanes.span("update", bucket.name):
                        self.update(
                            master,
                            moments,
                            gradients[group],
                            new[group],
                            decays=self.program.model.declarations[bucket.name].decays,
                            count=count,
                            rate=rate,
                            factor=clip,
                        )
                    if group == self.records.num_groups[bucket.name] - 1:
                        sent.append(ups.submit(up, outbox, bucket, new))
            for one in sent:
                one.result()
        return weights

    def _outbox(self, name: str) -> Outbox:
        """Where a parameter's new weights go."""
        if name in self.program.in_file:
            return self.to_file
        return self.to_host if name in self.program.streamed else self.to_devices

    def _shards(self, name: str, array: jax.Array) -> list[np.ndarray]:
        """Of a logical array in host memory."""
        if not self.program.layouts[name].is_logical:
            array = logical.as_stored(self.program, name, moved(array, DEVICE))
        return self.exchange.shards(name, array)

    def _logical(self, name: str, row: int) -> jax.Array:
        """A row of a parameter's records as a logical array in host memory."""
        array = self.exchange.on_host(name, self.records.shards(name, row))
        if self.program.layouts[name].is_logical:
            return array
        return moved(logical.as_logical(self.program, name, moved(array, DEVICE)), HOST)

    @cached_property
    def _names(self) -> frozenset[str]:
        """The logical arrays that the host keeps."""
        return frozenset(f"{kind}.{name}" for kind in self.kinds for name in self.program.offloaded)

    @cached_property
    def _abstract_whole(self) -> dict[str, jax.ShapeDtypeStruct]:
        """What the state would be if the devices kept it all: the same arrays."""
        return abstract_saved(self.program)


def _ahead(
    executor: ThreadPoolExecutor, get: Callable[[Bucket], list[np.ndarray]], buckets: Sequence[Bucket]
) -> Iterator[list[np.ndarray]]:
    """What `get` makes of each bucket, of some before they are asked for."""
    due: deque[Future[list[np.ndarray]]] = deque()
    for bucket in buckets:
        due.append(executor.submit(get, bucket))
        if len(due) > AHEAD:
            yield due.popleft().result()
    while due:
        yield due.popleft().result()
