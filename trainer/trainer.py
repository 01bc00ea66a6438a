"""`Trainer`: a config made to run. Everything a script, a notebook or the command line does goes through it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import signal
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, overload

import jax
import numpy as np
from numpy.typing import ArrayLike

from models.inputs import Batch
from pallas_kernels.attention import Choice
from sharding.mesh import make_mesh
from trainer.attention_check import check_here
from trainer.checkpoint import Checkpoints, Keep, Origin, find_origin, made
from trainer.checkpoint.foreign import refusal
from trainer.config import ANYWHERE, TRAINED, Config
from trainer.config_source import Overrides
from trainer.data.batches import Ahead, TrainBatches
from trainer.data.config import DataConfig
from trainer.data.indexed import find_pair
from trainer.data.prepare import Corpus, prepare
from trainer.data.tokenizer import Tokenizer
from trainer.data.tokenizer_files import TOKENIZER
from trainer.devices import find_devices, put_batch, use_compile_cache
from trainer.display import Display
from trainer.errors import ConfigError
from trainer.evaluate import evaluate
from trainer.extras import require_extras
from trainer.failures.guard import Guard
from trainer.failures.memory import memory_told
from trainer.failures.phases import DATA, STEP, Phases
from trainer.failures.rollbacks import Rollback, Rollbacks, batch_of
from trainer.folder_lock import FolderLock
from trainer.generate import generate, logits
from trainer.jax_start import prepare_jax
from trainer.keeper import Keeper
from trainer.loop import Loop
from trainer.measured import data_to_measure, in_words, is_another_text
from trainer.offload.make import make_keeper
from trainer.paths import local
from trainer.planner.auto import fill_in_here
from trainer.planner.plan import Plan, plan
from trainer.processes.elastic import fit_here
from trainer.processes.membership import first_alone, is_first, join_others
from trainer.processes.preflight import require_alike
from trainer.program import Program
from trainer.run_folder import RunFolder, describe_environment, version
from trainer.step import Arrays, Metrics, TrainState
from trainer.weights import restore_weights

_MOST_UNCOUNTED = 1000  # steps


class Trainer:
    """Trains, evaluates, generates and saves what `config` describes.

    Making one touches no device: they are looked for when something first needs them. Where the run's folder already
    holds a checkpoint, the trainer goes on from the newest, whatever mesh or ZeRO stage saved it.

    What trains or saves has the run's folder for itself, from then on until `close`, the end of a `with`, or until
    nothing refers to the trainer any more. Others may evaluate and generate meanwhile.

    Args:
      devices: the devices to use, instead of all that JAX finds; for `lower_step` they need not exist.
    """

    def __init__(self, config: Config, devices: Sequence[jax.Device] | None = None) -> None:
        prepare_jax()
        self._asked = config
        self._devices = devices
        self._keeper: Keeper | None = None
        self._weights: tuple[int, Arrays] | None = None  # of a checkpoint's step, until there is a keeper
        self._step = self._tokens = 0  # of the state, once there is one
        self._uncounted: list[jax.Array] = []  # the tokens of steps that nobody has waited for
        self._course = 0
        """How often a state was taken up: batches made ahead of it are of another."""
        self.lock = FolderLock(self.folder)
        """The right to write there."""
        self._is_open = False
        weakref.finalize(self, self.lock.close)
        self.display = Display()
        """Where notes for the user go; silent unless replaced, as `train` does."""
        self._attention: Choice | None = None
        """What was found to compute attention best, where that was tried."""
        self._trained: DataConfig | None = None
        """What the run was trained on, where it may be measured on something else."""
        self.taken: str | None = None
        """What an `auto` mesh has taken, and why, once the program is there."""
        self.data_seconds = 0.0
        """How long devices had nothing to do as a batch was late, at most; whoever logs it sets it back."""
        self.stopped_by: signal.Signals | None = None
        """The signal that ended `train` early, if one did."""
        self.phases = Phases()
        """What the trainer is doing now: the watchdog reads it."""

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the run's folder to others, once what is being saved is written. Training and saving end for good.

        Steps since the last `save` are lost.

        Raises:
            OSError: it could not be written.
        """
        try:
            if "checkpoints" in self.__dict__:  # asking for them joins other processes
                self.checkpoints.wait()
        finally:
            self.lock.close()

    @classmethod
    def from_run(cls, folder: str | Path, overrides: Overrides = ()) -> Trainer:
        """The trainer of a run's folder, with its config, its tokenizer and its newest checkpoint.

        Raises:
            ConfigError: the folder holds no run or no checkpoint, or an override does not fit what was trained.
        """
        folder = local(Path(folder))
        if folder.is_file():
            raise ConfigError(f"{folder} is a file; give the folder of a run that it made, such as runs/quickstart")
        file = folder / "config.yaml"
        if not file.exists():
            if foreign := refusal(folder):
                raise ConfigError(foreign)
            raise ConfigError(
                f"{folder} holds no config.yaml, so it is no run's folder; name one, such as runs/quickstart"
            )
        trained = Config.load(file, ANYWHERE).data
        config = Config.load(file, [f"run.dir={json.dumps(str(folder))}", *TRAINED, *_as_texts(overrides)])
        trainer = cls(dataclasses.replace(config, data=data_to_measure(config.data, trained, folder)))
        trainer._trained = trained
        if trainer.checkpoints.newest() is None:
            raise ConfigError(f"{folder} holds no complete checkpoint yet; train it first")
        return trainer

    @cached_property
    def config(self) -> Config:
        """The config with every mesh axis filled in, and all that an `auto` mesh leaves open."""
        return self.program.config

    @cached_property
    def program(self) -> Program:
        """What runs on the devices, from shapes alone."""
        use_compile_cache(self._asked.run.compile_cache)
        devices = find_devices(self._asked.mesh) if self._devices is None else self._devices
        asked, devices = fit_here(self._asked, devices)
        config, self.taken = fill_in_here(asked, devices, self.display.say)
        config = config.resolve(len(devices))
        if self._devices is None:  # those that are given need not exist
            kept = partial(RunFolder(self.folder).last_said, "attention")
            self._attention = check_here(config, devices, kept, self.display.say)
        return Program(config, make_mesh(config.mesh, devices), self._attention)

    @cached_property
    def corpus(self) -> Corpus:
        """The tokenised text."""
        join_others()
        data, origin = self._data, self.origin
        with first_alone("corpus"):
            corpus = prepare(data, self._asked.model.vocab, self.display.say)
        if origin is not None and corpus.tokenizer is not None and origin.run is not None:
            known = origin.run / TOKENIZER
            if known.exists():
                corpus.tokenizer.require_entries_of(Tokenizer.load(origin.run), f"data.tokenizer={known}")
        return corpus

    @cached_property
    def _data(self) -> DataConfig:
        """What is read; in the tokens that the weights know, where those were another run's first."""
        data, origin = self._asked.data, self.origin
        if data.tokenizer is not None or find_pair(data.path) is not None:
            return data
        if origin is None and RunFolder(self.folder).origin() is None:
            return data
        known = self.folder if origin is None else origin.run
        if known is None or not (known / TOKENIZER).exists():
            raise ConfigError(
                f"init.from={self._asked.init.from_} has no tokenizer beside it, so which tokens the weights know is "
                "not known; give the one that they were trained with as data.tokenizer"
            )
        return dataclasses.replace(data, tokenizer=str(known))

    @cached_property
    def origin(self) -> Origin | None:
        """The checkpoint of another run that this one begins with; None where it has one of its own, or needs none."""
        init = self._asked.init
        if init.from_ is None or self.checkpoints.newest() is not None:
            return None
        return find_origin(init.from_, init.state == "all", RunFolder(self.folder).origin())

    @property
    def first_step(self) -> int:
        """At which the run begins, if it has no checkpoint."""
        return 0 if self.origin is None else self.origin.step

    @property
    def tokenizer(self) -> Tokenizer:
        """The run's own, from its folder once it has trained; else the corpus'."""
        if (self.folder / TOKENIZER).exists():
            return Tokenizer.load(self.folder)
        if self.corpus.tokenizer is None:
            raise ConfigError("the data has no tokenizer, so text cannot be made of tokens; give data.tokenizer")
        return self.corpus.tokenizer

    @cached_property
    def folder(self) -> Path:
        return Path(self._asked.run.folder)

    def check_folder(self) -> None:
        """Whether the run's folder can be opened, before text is tokenised for it.

        Raises:
            ConfigError: it cannot be written, or holds something else.
        """
        config = self.config.to_dict(resolved=True)
        if is_first():
            RunFolder(self.folder).check(config)

    def open_folder(self) -> None:
        """Makes the run's folder, or finds that it holds this very run; done by whatever trains or saves.

        Raises:
            ConfigError: it cannot be written, holds something else, or another trainer has it.
        """
        self.lock.require()
        if self._is_open:
            return
        require_extras(self._asked, "offload")
        self.check_folder()
        devices = [f"{device.platform}:{device.device_kind}" for device in self.program.mesh.devices.flat]
        environment = describe_environment(devices, self.corpus.hash)
        taken = self._attention or (None if self.program.on_cpu else self.program.attention)
        environment |= {"data": self.corpus.sizes, "attention": taken and taken.name}
        environment["init"] = self.origin and self.origin.record()
        environment["tokenizer_hash"] = self.corpus.tokenizer and self.corpus.tokenizer.hash
        require_alike("data", {"the hash of the text behind data.path": self.corpus.hash})
        if is_first():
            self.lock.take()
            folder = RunFolder(self.folder)
            if not folder.has_begun():
                self.display.say(f"a new run, in {self.folder}")
            for note in folder.open(self.config.to_dict(resolved=True), environment):
                self.display.say(note)
            if self.corpus.tokenizer is not None:
                self.corpus.tokenizer.save(self.folder)
        self._is_open = True

    @cached_property
    def checkpoints(self) -> Checkpoints:
        join_others()
        train = self._asked.train
        return Checkpoints(self.folder / "checkpoints", Keep(train.keep_checkpoints, train.keep_every, train.keep_best))

    @cached_property
    def guard(self) -> Guard:
        """Who tells which steps went wrong; `train` shows it every step."""
        return Guard(self._asked.failures, self._asked.train.log_every)

    @cached_property
    def rollbacks(self) -> Rollbacks:
        """How often the run has gone back to a checkpoint, and what it leaves out since."""
        join_others()
        return Rollbacks(self.folder, writes=is_first())

    @property
    def has_state(self) -> bool:
        """Whether the state is there, restored or new. Asks no other process."""
        return self._keeper is not None

    @property
    def step(self) -> int:
        """Steps finished, by this run and those it goes on from."""
        if self._keeper is not None:
            return self._step
        newest = self.checkpoints.newest()
        return self.first_step if newest is None else newest

    @property
    def tokens(self) -> int:
        """Targets trained on since the start of the run. Reading it waits for the steps taken."""
        if self._keeper is None:
            newest = self.checkpoints.newest()
            if newest is None:
                return 0 if self.origin is None else self.origin.tokens
            return int(self.checkpoints.meta(newest)["tokens"])
        self._count_tokens()
        return self._tokens

    def lower_step(self) -> jax.stages.Lowered:
        """The very step that trains, lowered from shapes alone, for devices that exist or not."""
        program = self.program
        with jax.set_mesh(program.mesh), jax.default_device(program.mesh.devices.flat[0]):
            return program.step.lower(*program.abstract_arguments())

    def plan(self, gpu: str = "h100", gpus: int | None = None, gpus_per_node: int = 8) -> Plan:
        """What a step will need and take on GPUs that need not be there: see `trainer.planner.plan.plan`.

        Raises:
            ConfigError: an unknown GPU, or the config does not fit so many.
        """
        return plan(self._asked, gpu, gpus, gpus_per_node)

    @property
    def state(self) -> dict[str, jax.Array]:
        """Everything that training changes, as logical arrays by name."""
        return made(self.keeper.logical())

    def steps(self, num: int | None = None) -> Generator[Metrics, None, None]:
        """Trains `num` steps (to the end of the run, unless given), yielding each one's metrics.

        They are scalars on the devices: reading one waits for its step, so read few to keep the devices busy. Each step
        goes on from where the trainer is, whatever was done with it since the one before.

        Raises:
            ConfigError: `num` is negative, the run's folder holds another run, or another trainer has it.
        """
        _require_number(num)
        self.open_folder()
        return self._steps(num)

    def _steps(self, num: int | None) -> Generator[Metrics, None, None]:
        with memory_told(self):
            jax.block_until_ready(self.restored_state)
        metrics: Metrics | None = None
        with memory_told(self), contextlib.closing(Ahead(self._batch_getter(), self.config.data.prefetch)) as ready:
            for done in itertools.count():
                left = self.config.train.steps - self._step if num is None else num - done
                if left <= 0:
                    return
                self.lock.require()
                started = time.perf_counter()
                with self.phases(DATA):
                    batch = ready.of(self._step, self._step + left, self._course)
                if metrics is not None and metrics.loss.is_ready():  # type: ignore[attr-defined]
                    self.data_seconds += time.perf_counter() - started
                with self.phases(STEP):
                    metrics = self.keeper.step(batch, *[self.guard.limits_of_devices] * self.program.has_limits)
                self._step += 1
                self.phases.at(self._step)
                self._uncounted.append(metrics.tokens)
                if len(self._uncounted) > _MOST_UNCOUNTED:
                    self._count_tokens()
                yield metrics

    def _batch_getter(self) -> Callable[[int], Batch]:
        """What makes the batch of a step, on the devices."""
        config, program = self.config, self.program
        batches = TrainBatches(self.corpus.train(config.batch.sequence), config.seed, config.batch.global_)
        rollbacks = self.rollbacks

        def get(step: int) -> Batch:
            rows = partial(batches.rows, batch_of(step, rollbacks.left_out(config.batch.global_)))
            return put_batch(program.mesh, program.batch_specs, config.batch.global_, rows)

        return get

    def train(self, steps: int | None = None) -> None:
        """Trains to the end of the run, or `steps` steps, with display, logs, evaluations and checkpoints.

        SIGINT and SIGTERM end it after the step, with a checkpoint; `stopped_by` tells.

        Raises:
            ConfigError: `steps` is negative, the run's folder holds another run, another trainer has it, or float16 can
                go no further.
            TrainingError: a step went wrong, and the config wants the run to end then; too many steps in a row changed
                nothing; or memory was not enough.
            OSError: a checkpoint or another of the run's files could not be written.
        """
        _require_number(steps)
        self.stopped_by = None
        require_extras(self._asked)
        self.lock.is_training = True
        try:
            with memory_told(self):
                Loop(self, steps).run()
        finally:
            self.lock.is_training = False

    def evaluate(self) -> dict[str, float]:
        """Loss (nats per token), perplexity, and bits per byte where the tokenizer tells bytes.

        On the held-out documents; on all of them where `from_run` was given a data.path with another text.

        Raises:
            ConfigError: there is nothing to measure, or the text is no longer what the run was trained on.
        """
        with memory_told(self):
            return evaluate(self, self.parameters, self._evaluates_all)

    def what_is_measured(self) -> str:
        """Which documents `evaluate` counts, in words, and how much of them."""
        config = self._asked
        most = config.train.eval_batches * config.batch.global_ * config.batch.sequence
        documents = in_words(self.corpus, self._evaluates_all, self._asked.data, self._trained)
        return f"{documents}; up to {most:,} tokens of it (train.eval_batches={config.train.eval_batches})"

    @cached_property
    def _evaluates_all(self) -> bool:
        """Whether the text is another than the run's; one that trains has compared them when it opened its folder."""
        newest = self.checkpoints.newest() if self._keeper is None else None
        known = None if newest is None else self.checkpoints.meta(newest).get("data_hash")
        return is_another_text(self.corpus, known, self._asked.data, self._trained)

    def baselines(self) -> dict[str, float]:
        """What a model must beat: the unigram entropy (nats per token) of the training text, and the bits per byte of
        `xz -9e` on the held-out text."""
        if self._evaluates_all:
            raise ConfigError("baselines compare with the run's own text; leave data.path out")
        return {"unigram_entropy": self.corpus.unigram_entropy(), "xz_bits_per_byte": self.corpus.xz_bits_per_byte()}

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts too
        self, prompt: str, max_tokens: int = ..., temperature: float = ..., top_k: int | None = ..., seed: int = ...
    ) -> str: ...

    @overload
    def generate(
        self,
        prompt: Sequence[str],
        max_tokens: int = ...,
        temperature: float = ...,
        top_k: int | None = ...,
        seed: int = ...,
    ) -> list[str]: ...

    def generate(
        self,
        prompt: str | Sequence[str],
        max_tokens: int = 100,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int = 0,
    ) -> str | list[str]:
        """The prompt and what the model makes of it, up to the end of the document, `max_tokens` tokens or the model's
        context, whichever comes first. Of several prompts, read side by side: a list, each as it would be alone.

        Args:
            temperature: 0 takes the likeliest token.
            top_k: chooses among so many likeliest tokens; among all unless given.
            seed: a token is a function of it, of its place in the text and of the model's logits there.

        Raises:
            ConfigError: a prompt fills the context, a number is out of its range, or there is no tokenizer.
        """
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        with memory_told(self):
            texts = generate(self, self.parameters, prompts, max_tokens, temperature, top_k, seed)
        return texts[0] if isinstance(prompt, str) else texts

    def logits(self, tokens: ArrayLike) -> np.ndarray:
        """What the model says of the token after each of `tokens`, [texts, tokens of each]: float32 [..., model.vocab].

        Each row is read as one document, such as `tokenizer.encode(text)` gives.

        Raises:
            ConfigError: they are not whole numbers of the vocabulary, or more in a row than the model's context.
        """
        with memory_told(self):
            return logits(self, self.parameters, np.asarray(tokens))

    def save(self, wait: bool = True, measured: Mapping[str, float] | None = None) -> None:
        """Writes a checkpoint of this step.

        Args:
            measured: numbers that tell how good it is, as `train.keep_best` wants them.
            wait: until it is written; otherwise that goes on in the background, and it counts once `checkpoints.wait()`
                has returned.

        Raises:
            ConfigError: the run's folder holds another run, or another trainer has it.
            TrainingError: the state has a number that is not finite, and no checkpoint is made of it.
            OSError: it could not be written, or one before that nobody waited for.
        """
        self.open_folder()
        meta = {
            "tokens": self.tokens,
            "compute": self.config.precision.compute,
            "data_hash": self.corpus.hash,
            "meshwright": version("meshwright"),
            "guard": self.guard.memory(),
        }
        with memory_told(self):
            self.checkpoints.save(self.step, self.keeper.logical(), meta, measured)
        if wait:
            self.checkpoints.wait()

    @property
    def restored_state(self) -> TrainState:
        """The state on the devices: where training stands, else the newest checkpoint, else the start."""
        return self.keeper.state

    @property
    def parameters(self) -> Arrays:
        """The weights that a forward pass is given: where training stands, else the newest checkpoint, else the start.

        Of a checkpoint they alone are read, in the dtype that is computed with, whatever is offloaded.
        """
        newest = self.checkpoints.newest() if self._keeper is None else None
        if newest is None:
            return self.restored_state.parameters
        if self._weights is None or self._weights[0] != newest:
            self._weights = None  # before others take its place
            self._weights = newest, restore_weights(self.program, self.checkpoints, newest)
        return self._weights[1]

    @property
    def keeper(self) -> Keeper:
        """Who keeps the state, once there is one."""
        if self._keeper is None:
            self._weights = None
            newest = self.checkpoints.newest()
            keeper = make_keeper(self.program, self.display.say, self.phases)
            self._take_up(keeper, newest)
            self._keeper = keeper
        return self._keeper

    def _take_up(self, keeper: Keeper, saved: int | None) -> None:
        """The state of the checkpoint of step `saved`, or of the start."""
        meta: dict[str, Any] = {}
        if saved is None and self.origin is not None:
            keeper.restore(partial(self.origin.restore, keeper.abstract()))
            if not self.origin.is_whole or self.origin.meta.get("compute") != self.config.precision.compute:
                keeper.state = keeper.state._replace(loss_scale=self.program.first_loss_scale())
            what = "all" if self.origin.is_whole else "the weights"
            self.display.say(f"begins with {what} of {self.origin.path}")
            meta = {"tokens": self.origin.tokens}
        elif saved is None:
            keeper.initialise()
        else:
            abstract = keeper.abstract()  # before files are read, which starts JAX
            keeper.restore(partial(self.checkpoints.restore, saved, abstract))
            meta = self.checkpoints.meta(saved)
            if meta["compute"] != self.config.precision.compute:  # one dtype's loss scale says nothing of another's
                keeper.state = keeper.state._replace(loss_scale=self.program.first_loss_scale())
        self._step, self._tokens = self.first_step if saved is None else saved, int(meta.get("tokens", 0))
        self._uncounted.clear()
        self._course += 1
        self.guard.recall(meta.get("guard", {}))

    def go_back(self, rollback: Rollback) -> None:
        """Takes up an older state of the run, and leaves batches out from there on; later checkpoints are removed.

        In this order: a process that is killed on the way goes back again when it is started again.

        Raises:
            OSError: a checkpoint that is being written could not be, or one not be removed.
        """
        self.checkpoints.remove_after(rollback.back_to)
        self.rollbacks.add(rollback)
        for array in jax.tree.leaves(self.keeper.state):
            array.delete()  # two states may have no room
        self._take_up(self.keeper, self.checkpoints.newest())

    def _count_tokens(self) -> None:
        self._tokens += sum(int(count) for count in jax.device_get(self._uncounted))
        self._uncounted.clear()


def _require_number(steps: int | None) -> None:
    if steps is not None and steps < 0:
        raise ConfigError(f"steps={steps}: a number of steps is 0 or more; leave it out to train to the end of the run")


def _as_texts(overrides: Overrides) -> list[str]:
    if isinstance(overrides, dict):
        return [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    return list(overrides)
