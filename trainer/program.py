"""The compiled programs of one config on one mesh, described from shapes alone.

Devices may be real, virtual or absent: nothing here allocates until `init` is called.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.decoder import Decoder
from models.inputs import Batch
from models.recompute import block_policy
from pallas_kernels.attention import Choice
from sharding import collectives, randomness
from sharding.layout import RULES, Layout, plan
from sharding.mesh import BATCH_AXES, ZERO_AXES, num_groups
from sharding.pipeline.executor import Pipeline
from sharding.streamed import HOST
from sharding.zero import FETCHED, Zero
from trainer import loss_scale
from trainer.attention import chosen
from trainer.config import Config
from trainer.decoding import Reader, reader, writer
from trainer.gpu_settings import GpuSettings, gpu_settings
from trainer.offload.choice import in_file, offloaded, streamed
from trainer.offload.from_file import FromFile, checked
from trainer.optimizer import make_optimizer
from trainer.pipeline import make_pipeline, make_stages, vocab_axes
from trainer.schedules import learning_rate
from trainer.step import Due, Metrics, TrainState, TrainStep

Tree = Any  # of PartitionSpecs or of shapes, in the form of a TrainState, Batch or Metrics


def plan_layouts(config: Config, mesh: dict[str, int]) -> dict[str, Layout]:
    """The layout of every parameter on a mesh with these axis sizes. Pure arithmetic: no devices."""
    stages = make_stages(config, mesh)
    return {
        name: plan(
            declaration.shape,
            declaration.axes,
            mesh,
            rules=RULES | {"vocab": vocab_axes(config)},
            layer_order=stages.order,
            zero_axes=ZERO_AXES if config.zero.stage else (),
            persist_below=config.zero.persist_below,
        )
        for name, declaration in Decoder(config.model).declarations.items()
    }


class Program:
    """What runs on the devices: initialisation, the train step, evaluation."""

    def __init__(self, config: Config, mesh: Mesh, attention: Choice | None = None) -> None:
        """`attention` is what was found to compute it best; what the config names, or seems best, unless given."""
        self.config = config
        self.mesh = mesh
        kind = mesh.devices.flat[0].device_kind if isinstance(mesh, Mesh) else ""
        gpu = None if self.on_cpu else kind
        self.attention = attention or chosen(config, gpu)
        self.model = Decoder(
            config.model,
            vocab_axes(config),
            self.attention.attend,
            config.batch.parts,
            documents=config.attention.over == "document",
        )
        self.layouts = plan_layouts(config, dict(mesh.shape))
        self.stages = make_stages(config, dict(mesh.shape))
        self.zero = Zero(config.zero.stage, jnp.dtype(config.precision.compute), jnp.dtype(config.precision.reduce))
        self.offloaded = offloaded(config)
        self.streamed = streamed(config)
        self.in_file = in_file(config)
        self.outside: FromFile | None = None
        """Where the weights of the parameters are that the state does not have."""
        if self.in_file:
            layouts = {name: self.layouts[name] for name in self.in_file}
            self.outside = FromFile(mesh, layouts, self.zero.compute, self.on_cpu)
        decays = {
            name: declaration.decays
            for name, declaration in self.model.declarations.items()
            if name not in self.offloaded
        }
        self.optimizer = make_optimizer(config.optimizer, decays)

    @property
    def on_cpu(self) -> bool:
        """A mesh that is only traced for has no devices, and is taken as one of GPUs."""
        return isinstance(self.mesh, Mesh) and self.mesh.devices.flat[0].platform == "cpu"

    @property
    def num_groups(self) -> int:
        """Groups of devices that take different sequences: replica x data x expert."""
        return num_groups(self.mesh.shape)

    @property
    def accumulation(self) -> int:
        return self.config.batch.accumulation(self.num_groups)

    @cached_property
    def pipeline(self) -> Pipeline | None:
        """What runs the layers of several stages; None where one device holds them all."""
        pipeline = make_pipeline(self.config, dict(self.mesh.shape))
        return pipeline and dataclasses.replace(pipeline, in_turn=self.on_cpu)

    @cached_property
    def state_specs(self) -> Tree:
        """One PartitionSpec for every array of the training state."""
        scalar = PartitionSpec()
        parameters = {name: layout.spec for name, layout in self.layouts.items() if name not in self.in_file}
        here = {name: spec for name, spec in parameters.items() if name not in self.offloaded}
        moments = jax.tree.map(
            lambda leaf: here if isinstance(leaf, dict) else scalar,
            self._abstract_optimizer(),
            is_leaf=lambda leaf: isinstance(leaf, dict) and leaf.keys() == here.keys(),
        )
        scale = _all(loss_scale.LossScale, scalar)
        return _tree(TrainState, scalar, scalar, scale, parameters, moments)

    @cached_property
    def init(self) -> Callable[[], TrainState]:
        """Makes the initial state on the devices, each making only its shard."""
        return jax.jit(self.manual(self._init_local, (), self.state_specs))

    @cached_property
    def init_here(self) -> Callable[[], TrainState]:
        """`init`, but for the parameters that are offloaded."""
        parameters = {n: spec for n, spec in self.state_specs.parameters.items() if n not in self.offloaded}
        return jax.jit(self.manual(self._init_here, (), self.state_specs._replace(parameters=parameters)))

    @cached_property
    def step(self) -> jax.stages.Wrapped:
        """The train step, (TrainState, Batch) -> (TrainState, Metrics), jitted; the state passed in is donated.

        Where something is offloaded, there is a third result: the `Due` of its update.
        """
        specs: tuple[Any, ...] = (self.state_specs, self.batch_specs, *[PartitionSpec()] * self.has_limits)
        results: tuple[Any, ...] = (self.state_specs, _all(Metrics, PartitionSpec()))
        local: Callable[..., Any] = self.train_step
        if self.offloaded:
            local = self.train_step.split
            gradients = {name: self.layouts[name].spec for name in self.offloaded if name not in self.in_file}
            results += (_all(Due, PartitionSpec())._replace(gradients=gradients),)
        manual = self.manual(local, specs, results)
        return jax.jit(manual, donate_argnums=0, compiler_options=self.gpu_settings.options)

    @cached_property
    def gpu_settings(self) -> GpuSettings:
        """What XLA is told for the train step; nothing on the CPU, or where the step is only traced."""
        if not isinstance(self.mesh, Mesh):
            return GpuSettings()
        return gpu_settings(self.mesh.devices.flat[0], in_parts=self.config.batch.parts > 1)

    @cached_property
    def evaluate(self) -> Callable[[dict[str, jax.Array], Batch], tuple[jax.Array, jax.Array]]:
        """(parameters, batch) -> (Σ token loss, Σ counted tokens), jitted."""
        sums = PartitionSpec(), PartitionSpec()
        return self.forward(self.train_step.evaluate, (self.batch_specs,), sums)

    @cached_property
    def generate(self) -> Callable[..., jax.Array]:
        """See `trainer.decoding.writer`."""
        return writer(self)

    @cached_property
    def logits(self) -> Reader:
        """See `trainer.decoding.reader`."""
        return reader(self)

    def forward(
        self,
        local: Callable[..., Any],
        in_specs: tuple[Tree, ...],
        out_specs: Tree,
        donate: tuple[int, ...] = (),
    ) -> Callable[..., Any]:
        """`local`, of parameters and more, jitted over the mesh. Weights that it is not given come from outside.

        The arguments numbered in `donate` are used up.
        """

        def run(parameters: dict[str, jax.Array], *others: Any) -> Any:
            weights = {name: self.layouts[name].spec for name in parameters}
            return self.manual(local, (weights, *in_specs), out_specs)(parameters, *others)

        program = jax.jit(run, donate_argnums=donate)
        return program if self.outside is None else checked(program, self.outside)

    @property
    def batch_specs(self) -> Tree:
        axes = tuple(axis for axis in BATCH_AXES if self.mesh.shape[axis] > 1)
        return _all(Batch, PartitionSpec(axes or None))

    @property
    def train_step(self) -> TrainStep:
        """The step as one device runs it."""
        config = self.config
        late = self.streamed or (config.zero.stage >= 2 and any(layout.zero_axes for layout in self.layouts.values()))
        half = config.precision.compute == "float16"
        return TrainStep(
            model=self.model,
            layouts=self.layouts,
            zero=self.zero,
            optimizer=self.optimizer,
            learning_rate=learning_rate(config.optimizer, config.train.steps),
            policy=block_policy(
                config.recompute.policy, FETCHED if late else None, config.offload.activations == "host"
            ),
            micro_batch=config.batch.micro_batch(self.num_groups),
            clip=config.optimizer.clip,
            loss_scale=config.precision.loss_scale if half else None,
            seed=config.seed,
            pipeline=self.pipeline,
            offloaded=self.offloaded,
            streamed=self.streamed,
            outside=self.outside,
            in_turn=self.on_cpu,
        )

    def abstract_state(self) -> Tree:
        """The state's shapes, dtypes and shardings."""
        shapes = jax.eval_shape(self.init)
        state = jax.tree.map(self._with_sharding, shapes, self.state_specs)
        for name in self.streamed if self.outside is None else ():
            weight, sharding = state.parameters[name], self.on_host(self.layouts[name].spec)
            state.parameters[name] = jax.ShapeDtypeStruct(weight.shape, weight.dtype, sharding=sharding)
        return state

    def on_host(self, spec: PartitionSpec) -> NamedSharding:
        """In host memory, of devices that exist or not: of these, only a mesh without devices knows it."""
        sharding = NamedSharding(self.mesh, spec, memory_kind=HOST)
        if sharding.memory_kind is None and isinstance(self.mesh, Mesh):
            sharding = NamedSharding(self.mesh.abstract_mesh, spec, memory_kind=HOST)
        return sharding

    @property
    def has_limits(self) -> bool:
        """The train step has a third argument: `limits` of `TrainStep.split`."""
        return self.config.failures.on_spike == "skip"

    def abstract_arguments(self) -> tuple[Tree, ...]:
        """Of the train step."""
        limits = jax.ShapeDtypeStruct((2,), jnp.float32, sharding=NamedSharding(self.mesh, PartitionSpec()))
        return (self.abstract_state(), self.abstract_batch(), *[limits] * self.has_limits)

    def abstract_batch(self) -> Tree:
        """The global batch's shapes, dtypes and shardings."""
        sequences, tokens = self.config.batch.global_, self.config.batch.sequence
        ints = jax.ShapeDtypeStruct((sequences, tokens), jnp.int32)
        shapes = _all(Batch, ints)._replace(
            weights=jax.ShapeDtypeStruct((sequences, tokens), jnp.float32),
            samples=jax.ShapeDtypeStruct((sequences,), jnp.uint32),
        )
        return jax.tree.map(self._with_sharding, shapes, self.batch_specs)

    def manual(self, function: Callable[..., Any], in_specs: Tree, out_specs: Tree) -> Callable[..., Any]:
        """`function` of one device's blocks, over the mesh."""
        return jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=True)

    def initial_master(self, name: str, layer: int | None = None) -> jax.Array:
        """The initial value of one parameter, float32; of one of its layers, if given, and still stacked."""
        if layer is None:
            return jax.jit(self.manual(lambda: self._initial_local(name), (), self.layouts[name].spec))()
        return self._initial_layer(name, layer)

    @cached_property
    def _initial_layer(self) -> Callable[[str, int], jax.Array]:
        """(name, layer) -> its initial value, [1, ...]; jitted for all layers of one name."""

        def local(name: str, layer: Any) -> jax.Array:
            first, *others = self.layouts[name].dims
            only = dataclasses.replace(first, order=(layer,))
            return self._initial(name, dataclasses.replace(self.layouts[name], dims=(only, *others)))

        def made(name: str, layer: Any) -> jax.Array:
            return self.manual(partial(local, name), (PartitionSpec(),), self.layouts[name].spec)(layer)

        return jax.jit(made, static_argnums=0)

    def first_loss_scale(self) -> loss_scale.LossScale:
        """Where loss scaling starts, on the devices; 1 for good unless compute is float16."""
        return jax.jit(self.manual(self._first_loss_scale, (), self.state_specs.loss_scale))()

    def _first_loss_scale(self) -> loss_scale.LossScale:
        scale = loss_scale.init(self.config.precision.loss_scale)
        return scale if self.config.precision.compute == "float16" else scale._replace(scale=jnp.float32(1))

    def _init_local(self) -> TrainState:
        """Of a parameter that is offloaded: the copy that the devices compute with."""
        state = self._init_here()
        for name in [name for name in self.offloaded if name not in self.in_file]:
            weight = self._initial_local(name).astype(self.zero.compute)
            memory = jax.memory.Space.Host if name in self.streamed else jax.memory.Space.Device
            state.parameters[name] = jax.device_put(weight, memory)
        return state

    def _init_here(self) -> TrainState:
        parameters = {name: self._initial_local(name) for name in self.layouts if name not in self.offloaded}
        optimizer = jax.tree.map(
            lambda x, spec: collectives.varying(x, [axis for entry in spec for axis in _axes(entry)]),
            self.optimizer.init(parameters),
            self.state_specs.optimizer,
        )
        return TrainState(jnp.int32(0), jnp.int32(0), self._first_loss_scale(), parameters, optimizer)

    def _initial_local(self, name: str) -> jax.Array:
        return self._initial(name, self.layouts[name])

    def _initial(self, name: str, layout: Layout) -> jax.Array:
        return _initial(name, self.model.declarations[name].init, layout, self.config.seed)

    def _abstract_optimizer(self) -> Any:
        shapes = {
            name: jax.ShapeDtypeStruct(layout.stored_shape, jnp.float32)
            for name, layout in self.layouts.items()
            if name not in self.offloaded
        }
        return jax.eval_shape(self.optimizer.init, shapes)

    def _with_sharding(self, x: jax.ShapeDtypeStruct, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(self.mesh, spec))


def _initial(name: str, init: Any, layout: Layout, seed: int) -> jax.Array:
    if init.std:
        return init.std * randomness.normal(name, layout, jnp.uint32(seed))
    value = jnp.where(randomness.mask(layout), jnp.float32(init.value), jnp.float32(0))
    return collectives.varying(value, layout.sharded_axes)


def _axes(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else entry or ()


def _tree(kind: Any, *fields: Any) -> Tree:
    """A named tuple whose fields hold something else than its arrays, such as their specs."""
    return kind(*fields)


def _all(kind: Any, value: Any) -> Tree:
    return kind(*[value] * len(kind._fields))
