"""`Trainer`: a config made to run. Everything a script, a notebook or the command line does goes through it."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import jax

from trainer import logical
from trainer.checkpoint import Checkpoints
from trainer.config import Config
from trainer.config_source import Overrides
from trainer.data.batches import TrainBatches, prefetch
from trainer.data.packing import PackedSequences
from trainer.data.prepare import Corpus, prepare
from trainer.devices import find_mesh, put_batch, use_compile_cache
from trainer.display import Display
from trainer.errors import ConfigError
from trainer.evaluate import evaluate
from trainer.generate import generate
from trainer.program import Program
from trainer.run_folder import version
from trainer.step import Metrics, TrainState


class Trainer:
    """Trains, evaluates, generates and saves what `config` describes.

    Making one touches no device: they are looked for when something first needs them. Where the run's folder already
    holds a checkpoint, the trainer goes on from the newest, whatever mesh or ZeRO stage saved it.

    Args:
      devices: the devices to use, instead of all that JAX finds; for `lower_step` they need not exist.
    """

    def __init__(self, config: Config, devices: Sequence[jax.Device] | None = None) -> None:
        self._asked = config
        self._devices = devices
        self._state: TrainState | None = None
        self.step = 0
        """Steps finished, by this run and those it goes on from."""
        self.tokens = 0
        """Targets trained on since the start of the run, as far as they have been counted."""
        self.display = Display()
        """Where notes for the user go; silent unless replaced, as `train` does."""
        self.stopped_by: signal.Signals | None = None
        """The signal that ended `train` early, if one did."""

    @classmethod
    def from_run(cls, folder: str | Path, overrides: Overrides = ()) -> Trainer:
        """The trainer of a run's folder, with its config, its tokenizer and its newest checkpoint."""
        folder = Path(folder)
        if not (folder / "config.yaml").exists():
            raise ConfigError(
                f"{folder} holds no config.yaml, so it is no run's folder; name one, such as runs/quickstart"
            )
        config = Config.load(folder / "config.yaml", [f"run.dir={folder}", *_as_texts(overrides)])
        trainer = cls(config)
        if trainer.checkpoints.newest() is None:
            raise ConfigError(f"{folder} holds no complete checkpoint yet; train it first")
        return trainer

    @cached_property
    def config(self) -> Config:
        """The config with every mesh axis filled in."""
        return self._asked.resolve(self.program.mesh.size)

    @cached_property
    def program(self) -> Program:
        """What runs on the devices, from shapes alone."""
        use_compile_cache(self._asked.run.compile_cache)
        mesh = find_mesh(self._asked.mesh, self._devices)
        return Program(self._asked.resolve(mesh.size), mesh)

    @cached_property
    def corpus(self) -> Corpus:
        """The tokenised text."""
        return prepare(self._asked.data, self._asked.model.vocab, self.display.say)

    @cached_property
    def folder(self) -> Path:
        return Path(self._asked.run.folder)

    @cached_property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder / "checkpoints", self._asked.train.keep_checkpoints)

    def lower_step(self) -> jax.stages.Lowered:
        """The very step that trains, lowered from shapes alone, for devices that exist or not."""
        program = self.program
        with jax.set_mesh(program.mesh):
            return program.step.lower(program.abstract_state(), program.abstract_batch())

    @property
    def state(self) -> dict[str, jax.Array]:
        """Everything that training changes, as logical arrays by name."""
        return logical.to_logical(self.program, self.restored_state)

    def steps(self, num: int | None = None) -> Iterator[Metrics]:
        """Trains `num` steps (to the end of the run, unless given), yielding each one's metrics.

        They are scalars on the devices: reading one waits for its step, so read few to keep the devices busy.
        """
        state = self.restored_state
        config, program = self.config, self.program
        packed = PackedSequences(self.corpus.indexed, self.corpus.train_documents, config.batch.sequence)
        batches = TrainBatches(packed, config.seed, config.batch.global_)

        def get(step: int):  # type: ignore[no-untyped-def]
            return put_batch(
                program.mesh,
                program.batch_specs,
                config.batch.global_,
                lambda low, high: batches.rows(step, low, high),
            )

        last = config.train.steps if num is None else self.step + num
        with contextlib.closing(prefetch(get, self.step, max(self.step, last), config.data.prefetch)) as ready:
            for batch in ready:
                self._state, metrics = program.step(state, batch)
                state = self._state
                self.step += 1
                yield metrics

    def train(self, steps: int | None = None) -> None:
        """Trains to the end of the run, or `steps` steps, with display, logs, evaluations and checkpoints in its folder.

        SIGINT and SIGTERM end it after the step, with a checkpoint; `stopped_by` tells.
        """
        from trainer.loop import Loop

        Loop(self, steps).run()

    def evaluate(self, everything: bool = False) -> dict[str, float]:
        """Loss (nats per token), perplexity, and bits per byte where the tokenizer tells bytes, on held-out text.

        Args:
          everything: on all documents of the corpus, instead of those held out.
        """
        return evaluate(self, self.restored_state.parameters, everything)

    def generate(
        self, prompt: str, max_tokens: int = 100, temperature: float = 1.0, top_k: int | None = None, seed: int = 0
    ) -> str:
        """The prompt and what the model makes of it, up to the end of the document or `max_tokens` tokens."""
        return generate(self, self.restored_state.parameters, prompt, max_tokens, temperature, top_k, seed)

    def save(self) -> None:
        """Writes a checkpoint of this step in the background; it counts once `checkpoints.wait()` returns."""
        meta = {"tokens": self.tokens, "data_hash": self.corpus.hash, "meshwright": version("meshwright")}
        self.checkpoints.save(self.step, self.state, meta)

    @property
    def restored_state(self) -> TrainState:
        """The state on the devices: where training stands, else the newest checkpoint, else the start."""
        if self._state is None:
            newest = self.checkpoints.newest()
            if newest is None:
                self._state = self.program.init()
            else:
                arrays = self.checkpoints.restore(newest, logical.abstract_logical(self.program))
                self._state = logical.from_logical(self.program, arrays)
                self.step, self.tokens = newest, int(self.checkpoints.meta(newest)["tokens"])
        return self._state


def _as_texts(overrides: Overrides) -> list[str]:
    if isinstance(overrides, dict):
        return [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    return list(overrides)
