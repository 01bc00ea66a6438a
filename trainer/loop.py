"""The training loop around the steps: what is logged, evaluated, profiled and saved, and when.

The host runs ahead of the devices and waits for them only when something is printed.
"""

from __future__ import annotations

import math
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import jax

from trainer.chips import memory_in_use, peak_flops
from trainer.display import Display, Lines, make_display
from trainer.errors import ConfigError
from trainer.events import Events
from trainer.held import held
from trainer.metrics import StepMetrics, model_flops_per_token
from trainer.pipeline import advice
from trainer.processes.membership import agreed_stop
from trainer.processes.preflight import facts_of_start, require_alike
from trainer.profile import Profile
from trainer.signals import StopRequest
from trainer.sinks import Sinks, last_record, open_sinks
from trainer.step import Metrics

if TYPE_CHECKING:
    from trainer.trainer import Trainer


class Loop:
    """One call of `Trainer.train`."""

    def __init__(self, trainer: Trainer, steps: int | None) -> None:
        self.trainer = trainer
        self.steps = steps
        self.is_first = jax.process_index() == 0
        # A search says what takes long; all else waits for `run`.
        trainer.display = Lines() if self.is_first else Display()
        self.config = trainer.config
        self.devices = list(trainer.program.mesh.devices.flat)
        self.unlogged: list[Metrics] = []
        self.logged_at = 0.0
        self.events = Events(trainer.folder if jax.process_index() == 0 else None)

    def run(self) -> None:
        trainer, config = self.trainer, self.config
        local = [device for device in self.devices if device.process_index == jax.process_index()]
        title = f"{config.run.name} on {len(self.devices)} x {self.devices[0].device_kind}"
        trainer.display = (
            make_display(title, config.train.steps, lambda: memory_in_use(local)) if self.is_first else Display()
        )
        with trainer.display as display:
            kinds = [device.device_kind for device in local]
            require_alike("start", facts_of_start(config.to_dict(), kinds))
            trainer.check_folder()
            if trainer.taken:
                display.say(trainer.taken)
            first = trainer.step
            self.all_stop = agreed_stop(first)
            last = config.train.steps if self.steps is None else first + self.steps
            if first >= last:
                self._train_nothing(first, last, display)
                return
            trainer.open_folder()
            self._tell_start(first)
            jax.block_until_ready(trainer.restored_state)
            if first:
                display.say(f"goes on from step {first}")
            self._require_text_to_evaluate()
            with (
                closing(open_sinks(config.run, trainer.folder, config.to_dict(), first, writes=self.is_first)) as sinks,
                StopRequest(self._wished) as stop,
            ):
                try:
                    self._train(first, last, display, sinks, stop)
                except BaseException as error:
                    self.events.tell("end", trainer.step, reason=str(error) or type(error).__name__)
                    if isinstance(error, Exception):  # what is being written is worth waiting for; Ctrl-C does not
                        trainer.checkpoints.wait()
                    raise
            self.events.tell("end", trainer.step, reason="finished" if trainer.stopped_by is None else "signal")
        self._report()

    def _wished(self, text: str) -> None:
        """A signal has come; told by a thread of its own."""
        self.events.tell("signal", self.trainer.step, signal=text.partition(":")[0])
        self.trainer.display.say(text)

    def _tell_start(self, first: int) -> None:
        """Before the numbers of steps that are trained again are taken back."""
        around: dict[str, Any] = {"devices": len(self.devices), "processes": jax.process_count()}
        metrics = self.trainer.folder / "metrics.jsonl"
        before = last_record(metrics)
        if before is None and not first:
            self.events.tell("start", first, **around)
            return
        if before is not None:
            lost = max(before["step"] - first, 0)
            around |= {"lost_steps": lost, "seconds_lost": lost * before["step_seconds"]}
            around |= {"last_seen": metrics.stat().st_mtime}
        self.events.tell("restart", first, **around)

    def _train_nothing(self, first: int, last: int, display: Display) -> None:
        """Saves what no checkpoint holds yet, such as the initial values; a run that is saved stays as it is."""
        trainer = self.trainer
        if trainer.checkpoints.newest() != first:
            trainer.save()
            display.say(f"nothing to train: step {first} is saved in {trainer.folder}")
        elif first > last:
            display.say(
                f"nothing to do: the run is at step {first}, past train.steps={last}, and stays as it is; "
                f"give more than {first} to go on"
            )
        else:
            display.say(f"nothing to do: the run is at step {first} of {last}; raise train.steps to go on")

    def _train(self, first: int, last: int, display: Display, sinks: Sinks, stop: StopRequest) -> None:
        trainer, train = self.trainer, self.config.train
        if (pipeline := trainer.program.pipeline) and (said := advice(trainer.config, pipeline.schedule)):
            display.say(said)
        display.say(f"attention: {trainer.program.attention.name} ({trainer.program.attention.why})")
        for note in trainer.program.gpu_settings.notes:
            display.say(note)
        display.say("compiling the train step")
        self.logged_at = started = time.perf_counter()
        with (
            Profile(train.profile, trainer.folder / "profile", first) as profile,
            closing(trainer.steps(last - first)) as steps,
        ):
            for metrics in steps:
                self.unlogged.append(metrics)
                step = trainer.step
                stopped_by = self.all_stop.after(step, stop.signal)
                ends = step == last or stopped_by is not None
                profile.after(step, metrics)
                # The first step's speed is that of the compiler: told alone, it spoils no other's.
                if step % train.log_every == 0 or step == first + 1 or ends:
                    self._log(display, sinks)
                if step == first + 1:
                    self.events.tell("compile", step, seconds_lost=self.logged_at - started)
                if ends or (train.checkpoint_every is not None and step % train.checkpoint_every == 0):
                    self._require_range(metrics)
                    self._save()
                if train.eval_every is not None and (step % train.eval_every == 0 or step == last):
                    self._evaluate(display, sinks)
                if ends:
                    break
        trainer.checkpoints.wait()
        trainer.stopped_by = stopped_by if trainer.step < last else None
        if trainer.stopped_by is not None:
            display.say(
                f"{trainer.stopped_by.name}: stopped after step {trainer.step}, saved; "
                "the same command goes on from there"
            )

    def _save(self) -> None:
        started = time.perf_counter()
        self.trainer.save(wait=False)
        self.events.tell("save", self.trainer.step, seconds_lost=time.perf_counter() - started)

    def _require_text_to_evaluate(self) -> None:
        """Before anything is paid for, not when the first evaluation is due."""
        if self.config.train.eval_every is not None and not self.trainer.corpus.heldout_documents:
            num_documents = self.trainer.corpus.indexed.num_documents
            raise ConfigError(
                f"train.eval_every={self.config.train.eval_every}, but of {num_documents} documents none is held out; "
                "give data.path more documents, or use train.eval_every=null"
            )

    def _log(self, display: Display, sinks: Sinks) -> None:
        """Waits for the devices, and says where training stands. Speeds are means since the last time."""
        count = len(self.unlogged)
        fetched: list[Metrics] = jax.device_get(self.unlogged)
        self.unlogged.clear()
        now = time.perf_counter()
        seconds, self.logged_at = now - self.logged_at, now
        self._tell_skipped(fetched, seconds / count)
        config, latest = self.config, fetched[-1]
        self._require_range(latest)
        tokens = count * config.batch.global_ * config.batch.sequence
        flops = tokens * model_flops_per_token(config.model, config.batch.sequence) / seconds
        peak = peak_flops(self.devices[0].device_kind, config.precision.compute)
        metrics = StepMetrics(
            step=self.trainer.step,
            loss=float(latest.loss),
            grad_norm=float(latest.grad_norm),
            learning_rate=float(latest.learning_rate),
            tokens=self.trainer.tokens,
            tokens_per_second=tokens / seconds,
            step_seconds=seconds / count,
            model_flops_per_second=flops,
            loss_scale=float(latest.loss_scale),
            skipped_steps=int(latest.skipped_steps),
            mfu=None if peak is None else flops / (peak * len(self.devices)),
        )
        display.step(metrics)
        sinks.write(metrics.step, metrics.to_dict())

    def _tell_skipped(self, fetched: list[Metrics], step_seconds: float) -> None:
        for step, metrics in enumerate(fetched, self.trainer.step - len(fetched) + 1):
            loss, norm = float(metrics.loss), float(metrics.grad_norm)
            if not (math.isfinite(loss) and math.isfinite(norm)):
                self.events.tell("skip", step, loss=loss, grad_norm=norm, seconds_lost=step_seconds)

    def _require_range(self, metrics: Metrics) -> None:
        """Before anything is saved, too: what is exhausted stays so, and could not be gone on from."""
        if metrics.exhausted:
            newest = self.trainer.checkpoints.newest()
            kept = "nothing is saved yet" if newest is None else f"the newest checkpoint is that of step {newest}"
            raise ConfigError(
                f"step {self.trainer.step}: gradients overflow float16 even at the smallest loss scale, "
                f"{float(metrics.loss_scale):g}; use precision.compute=bfloat16, or a lower optimizer.learning_rate "
                f"({kept})"
            )

    def _evaluate(self, display: Display, sinks: Sinks) -> None:
        jax.block_until_ready(self.unlogged)  # the steps before are training's time
        started = time.perf_counter()
        values = self.trainer.evaluate()
        display.evaluation(values)
        sinks.write(self.trainer.step, {f"eval_{name}": value for name, value in values.items()})
        seconds = time.perf_counter() - started
        self.events.tell("evaluation", self.trainer.step, seconds_lost=seconds, **values)
        self.logged_at += seconds  # not counted as training

    def _report(self) -> None:
        """What each device held, measured from the arrays it holds, and where the run's files are."""
        if jax.process_index() == 0:
            held(self.trainer)
