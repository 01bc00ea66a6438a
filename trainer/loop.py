"""The training loop around the steps: what is logged, evaluated, profiled and saved, and when.

The host runs ahead of the devices, by a few steps, and looks at their numbers only when something is printed or saved.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import jax

from trainer.chips import memory_in_use, memory_taken, peak_flops
from trainer.display import Display, Lines, make_display
from trainer.errors import ConfigError, NotFiniteError, OffloadError
from trainer.events import Events
from trainer.failures.board import find_board
from trainer.failures.guard import Trouble
from trainer.failures.memory import memory_told
from trainer.failures.phases import DEVICES, EVALUATION, OTHERS, SAVE, STATE
from trainer.failures.replicas import ReplicaCheck
from trainer.failures.response import Setback, respond
from trainer.failures.rollbacks import Rollback
from trainer.failures.watchdog import Watchdog
from trainer.folder_lock import last_sign
from trainer.held import held
from trainer.metrics import StepMetrics, model_flops_per_token
from trainer.pipeline import advice
from trainer.planner.here import memory_notes
from trainer.processes.membership import agreed_stop, is_first, join_others, process_count, process_index
from trainer.processes.preflight import facts_of_start, require_alike
from trainer.profile import Profile
from trainer.signals import ANSWER, StopRequest
from trainer.sinks import Sinks, last_record, open_sinks
from trainer.step import Metrics

if TYPE_CHECKING:
    from trainer.trainer import Trainer

AHEAD = 2
"""Steps that wait for the devices to be free: enough for these never to wait, and few to be done when all is to end."""


class Loop:
    """One call of `Trainer.train`."""

    def __init__(self, trainer: Trainer, steps: int | None) -> None:
        self.trainer = trainer
        self.steps = steps
        join_others()
        self.is_first = is_first()
        # A search says what takes long; all else waits for `run`.
        trainer.display = Lines() if self.is_first else Display()
        self.config = trainer.config
        self.devices = list(trainer.program.mesh.devices.flat)
        self.local = [device for device in self.devices if device.process_index == process_index()]
        self.unfetched: list[Metrics] = []
        """Of the steps that the host has not looked at."""
        self.num_done = 0
        """Of these, how many the devices are known to have done."""
        self.unlogged: list[Metrics] = []
        """Of those it has, since the last line."""
        self.logged_at = self.step_seconds = 0.0
        self.is_compiled = False
        self.replicas = ReplicaCheck(trainer.program, self.config.check.replicas_every)
        self.failed_save: OSError | None = None
        """The last one that was told."""
        self.events = Events(trainer.folder if self.is_first else None)

    def run(self) -> None:
        trainer, config = self.trainer, self.config
        title = f"{config.run.name} on {len(self.devices)} x {self.devices[0].device_kind}"
        trainer.display = (
            make_display(title, config.train.steps, partial(memory_in_use, self.local)) if self.is_first else Display()
        )
        with trainer.display as display:
            kinds = [device.device_kind for device in self.local]
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
            self._require_text()
            trainer.open_folder()
            self._tell_start(first)
            try:
                with memory_told(trainer):
                    self._train_all(first, last, display)
            except BaseException as error:
                at = trainer.step if trainer.has_state else first  # the others may not be there to agree
                self.events.tell("end", at, reason=str(error) or type(error).__name__)
                if isinstance(error, Exception):  # what is being written is worth waiting for; Ctrl-C does not
                    self._try_to_save(trainer.checkpoints.wait)
                raise
            self.events.tell("end", trainer.step, reason="finished" if trainer.stopped_by is None else "signal")
        self._report()

    def _train_all(self, first: int, last: int, display: Display) -> None:
        trainer, config = self.trainer, self.config
        with Watchdog(config.watchdog, trainer.phases, find_board(), trainer.folder):
            with trainer.phases(STATE):
                jax.block_until_ready(trainer.restored_state)
            if first:
                display.say(f"goes on from step {first}")
            self._say_what_runs(display)
            with StopRequest(self._wished) as self.stop:
                while not self._train(trainer.step, last, display):
                    pass
            del self.stop  # knows this loop, which would keep its trainer, and the run's folder, until Python collects

    def _wished(self, number: signal.Signals) -> None:
        """A signal has come; told by a thread of its own."""
        self.events.tell("signal", self.trainer.step, signal=number.name)
        self.trainer.display.say(f"{number.name}: {ANSWER}")

    def _obey(self, number: signal.Signals, display: Display) -> None:
        """Before the last checkpoint; says where that may come too late."""
        if self.stop.signal is None:  # another process was told
            self.events.tell("signal", self.trainer.step, signal=number.name)
        given, takes, now = self.config.train.stop_seconds, self.trainer.checkpoints.seconds, time.monotonic()
        left = None if given is None else given - (now - (self.stop.since or now))
        if left is not None and takes is not None and left < takes:
            display.say(
                f"WARNING: {max(left, 0):.1f} s are left of train.stop_seconds={given:g}, and the last checkpoint took "
                f"{takes:.1f} s. If the process is killed before this one is written, the run goes on from that one"
            )

    def _tell_start(self, first: int) -> None:
        """Before the numbers of steps that are trained again are taken back."""
        around: dict[str, Any] = {"devices": len(self.devices), "processes": process_count()}
        metrics = self.trainer.folder / "metrics.jsonl"
        before, sign = last_record(metrics), last_sign(self.trainer.folder)
        if before is None and sign is None and (not first or self.trainer.origin is not None):
            self.events.tell("start", first, **around)
            return
        told = [(int(before["step"]), metrics.stat().st_mtime)] if before is not None else []
        told += [(sign.step, sign.time)] if sign is not None else []
        if told:
            lost = max(max(step for step, _ in told) - first, 0)
            around |= {"lost_steps": lost, "seconds_lost": lost * (before["step_seconds"] if before else 0.0)}
            around |= {"last_seen": max(time for _, time in told)}
        self.events.tell("restart", first, **around)

    def _train_nothing(self, first: int, last: int, display: Display) -> None:
        """Saves what no checkpoint holds yet, such as the initial values; a run that is saved stays as it is."""
        trainer = self.trainer
        if (newest := trainer.checkpoints.newest()) is not None:
            trainer.checkpoints.meta(newest)  # a damaged one is nothing to end with
        if newest != first:
            trainer.save()
            display.say(f"nothing to train: step {first} is saved in {trainer.folder}")
        elif first > last:
            display.say(
                f"nothing to do: the run is at step {first}, past train.steps={last}, and stays as it is; "
                f"give more than {first} to go on"
            )
        else:
            display.say(f"nothing to do: the run is at step {first} of {last}; raise train.steps to go on")

    def _train(self, first: int, last: int, display: Display) -> bool:
        """Whether it was trained to the end; otherwise it has gone back, and there is more to do."""
        trainer, config = self.trainer, self.config
        try:
            with closing(
                open_sinks(config.run, trainer.folder, config.to_dict(), first, self.is_first, display.say)
            ) as sinks:
                self._train_on(first, last, display, sinks)
        except Setback as setback:
            self._go_back(setback.rollback, display)
            return False
        return True

    def _go_back(self, rollback: Rollback, display: Display) -> None:
        started = time.perf_counter()
        with self.trainer.phases(STATE):
            self.trainer.go_back(rollback)
            jax.block_until_ready(self.trainer.restored_state)
        lost = time.perf_counter() - started + self.step_seconds * (rollback.step - rollback.back_to)
        more = {name: value for name, value in asdict(rollback).items() if name not in ("step", "time")}
        self.events.tell("rollback", rollback.step, seconds_lost=lost, **more)
        done, most = len(self.trainer.rollbacks.done), self.config.failures.most_rollbacks
        batches = ", ".join(map(str, rollback.batches))
        display.say(
            f"{rollback.reason}: went back to step {rollback.back_to}, and leaves out batch {batches} from now on "
            f"(rollback {done} of {most} at most)"
        )
        self._forget()
        self.unlogged.clear()

    def _forget(self) -> None:
        self.unfetched.clear()
        self.num_done = 0

    def _say_what_runs(self, display: Display) -> None:
        trainer = self.trainer
        if (pipeline := trainer.program.pipeline) and (said := advice(trainer.config, pipeline.schedule)):
            display.say(said)
        display.say(f"attention: {trainer.program.attention.name} ({trainer.program.attention.why})")
        for note in (*trainer.program.gpu_settings.notes, *memory_notes(self.config, self.local)):
            display.say(note)
        display.say("compiling the train step")

    def _train_on(self, first: int, last: int, display: Display, sinks: Sinks) -> None:
        trainer, train = self.trainer, self.config.train
        self.logged_at = started = time.perf_counter()
        with (
            Profile(train.profile, trainer.folder / "profile", first) as profile,
            closing(trainer.steps(last - first)) as steps,
        ):
            for metrics in steps:
                self.unfetched.append(metrics)
                step = trainer.step
                self._wait_for_devices(but=AHEAD)
                trainer.lock.sign(step - self._num_waiting())
                with trainer.phases(OTHERS):
                    stopped_by = self.all_stop.after(step, self.stop.signal)
                ends = step == last or stopped_by is not None
                saves = ends or (train.checkpoint_every is not None and step % train.checkpoint_every == 0)
                self.replicas.after(step, trainer.restored_state, saves)
                profile.after(step, metrics)
                # The first step's speed is that of the compiler: told alone, it spoils no other's.
                if step % train.log_every == 0 or not self.is_compiled or ends:
                    self._log(display, sinks)
                if not self.is_compiled:
                    self.is_compiled = True
                    self.events.tell("compile", step, seconds_lost=self.logged_at - started)
                measured: dict[str, float] = {}
                if train.eval_every is not None and (step == last or (step % train.eval_every == 0 and not ends)):
                    measured = self._evaluate_or_save(metrics, display, sinks)
                if saves:
                    self._require_range(metrics)
                    if stopped_by is not None:
                        self._obey(stopped_by, display)
                    self._save(metrics, measured)
                if ends:
                    break
        with trainer.phases(SAVE):
            trainer.checkpoints.wait()
        if trainer.guard.skips:
            display.say(
                f"WARNING: the last {trainer.guard.skips} steps changed nothing (gradient not finite, or a spike)"
            )
        trainer.stopped_by = stopped_by if trainer.step < last else None
        if trainer.stopped_by is not None:
            display.say(
                f"{trainer.stopped_by.name}: stopped after step {trainer.step}, saved; "
                "the same command goes on from there"
            )

    def _save(self, metrics: Metrics, measured: Mapping[str, float]) -> None:
        """Begins to; where that fails, training goes on, and the next one is tried. The last one has to succeed.

        Raises:
            Setback: the state is not finite, and training is to go back.
            TrainingError: the state is not finite.
        """
        self._fetch()
        started = time.perf_counter()
        with self.trainer.phases(SAVE):
            self._try_to_save(self.trainer.checkpoints.wait)  # the one before
            try:
                is_begun = self._try_to_save(partial(self.trainer.save, wait=False, measured=measured))
            except NotFiniteError as error:
                why = f"its state is not finite: {error}"
                numbers = float(metrics.loss), float(metrics.grad_norm)
                respond(self.trainer, [Trouble(self.trainer.step, *numbers, "nonfinite", why)])
                raise  # to skip a step is no help
            if is_begun:
                self.events.tell("save", self.trainer.step, seconds_lost=time.perf_counter() - started)

    def _try_to_save(self, done: Callable[[], None]) -> bool:
        """Whether `done` raises nothing; a checkpoint that could not be written is told, once."""
        try:
            done()
        except OffloadError:  # the state itself is lost
            raise
        except OSError as error:
            if error is not self.failed_save:
                self.failed_save = error
                self.trainer.display.say(f"WARNING: {error} The next save tries again.")
                self.events.tell("failed_save", self.trainer.step, reason=str(error))
            return False
        return True

    def _require_text(self) -> None:
        """Text that cannot be trained on, or measured, makes no folder and costs no step."""
        sequence, every = self.config.batch.sequence, self.config.train.eval_every
        self.trainer.corpus.train(sequence)
        if every is None:
            return
        try:
            held_out = self.trainer.corpus.held_out(sequence)
        except ConfigError as error:
            raise ConfigError(f"train.eval_every={every}, but {error}, or use train.eval_every=null") from error
        if held_out.num_targets < sequence:
            self.trainer.display.say(
                f"WARNING: {held_out.num_targets} tokens are held out, less than one sequence of {sequence}: their "
                "loss says little; raise data.holdout, or give data.path more text"
            )

    def _log(self, display: Display, sinks: Sinks) -> None:
        """Waits for the devices, and says where training stands. Speeds are means since the last time."""
        self._fetch()
        count, latest = len(self.unlogged), self.unlogged[-1]
        self.unlogged.clear()
        now = time.perf_counter()
        seconds, self.logged_at = now - self.logged_at, now
        self.step_seconds = seconds / count
        late, self.trainer.data_seconds = self.trainer.data_seconds, 0.0
        config = self.config
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
            step_seconds=self.step_seconds,
            model_flops_per_second=flops,
            loss_scale=float(latest.loss_scale),
            skipped_steps=int(latest.skipped_steps),
            mfu=None if peak is None else flops / (peak * len(self.devices)),
            data_seconds=late,
            **memory_taken(self.local),
        )
        self._try_to_save(self.trainer.checkpoints.look)
        display.step(metrics)
        sinks.write(metrics.step, metrics.to_dict())

    def _wait_for_devices(self, but: int = 0) -> None:
        """Until they have done all steps that were sent off, `but` the last few."""
        with self.trainer.phases(DEVICES):
            for metrics in self.unfetched[self.num_done : len(self.unfetched) - but]:
                jax.block_until_ready(metrics)
                self.trainer.phases.moved()
                self.num_done += 1

    def _num_waiting(self) -> int:
        """Steps that were sent off, and that the devices have not done."""
        return sum(not metrics.loss.is_ready() for metrics in self.unfetched[self.num_done :])  # type: ignore[attr-defined]

    def _fetch(self) -> None:
        """Waits for the devices, and looks whether all went well. Nothing is saved without: so a checkpoint is good.

        Raises:
            Setback: it did not, and training is to go back.
            PermanentError: it did not, and training is to end.
        """
        first = self.trainer.step - len(self.unfetched) + 1
        self._wait_for_devices()
        fetched: list[Metrics] = jax.device_get(self.unfetched)
        self._forget()
        self.unlogged += fetched
        looks = [
            self.trainer.guard.look(step, float(metrics.loss), float(metrics.grad_norm))
            for step, metrics in enumerate(fetched, first)
        ]
        troubles = [trouble for trouble in looks if trouble is not None]
        for trouble in troubles:
            self._tell(trouble)
        self.replicas.look()
        respond(self.trainer, troubles)

    def _tell(self, trouble: Trouble) -> None:
        wanted = self.config.failures.wanted(trouble.kind)
        event = "skip" if trouble.kind == "nonfinite" or wanted == "skip" else "spike"
        lost = {"seconds_lost": self.step_seconds} if wanted == "skip" else {}  # else a rollback counts it
        values = {"loss": trouble.loss, "grad_norm": trouble.grad_norm, "reason": trouble.why}
        self.events.tell(event, trouble.step, **values, **lost)

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

    def _evaluate_or_save(self, metrics: Metrics, display: Display, sinks: Sinks) -> dict[str, float]:
        """What was measured. Where that fails, the steps before are saved, and it is raised.

        One process of several saves nothing alone: the others may be well, and would not come to it.
        """
        self._fetch()  # the steps before are training's time, and what went wrong with them is not saved
        try:
            return self._evaluate(display, sinks)
        except Exception:
            if process_count() == 1:
                self._save(metrics, {})
            raise

    def _evaluate(self, display: Display, sinks: Sinks) -> dict[str, float]:
        started = time.perf_counter()
        with self.trainer.phases(EVALUATION):
            values = self.trainer.evaluate()
        display.evaluation(values)
        measured = {f"eval_{name}": value for name, value in values.items()}
        sinks.write(self.trainer.step, measured)
        seconds = time.perf_counter() - started
        self.events.tell("evaluation", self.trainer.step, seconds_lost=seconds, **values)
        self.logged_at += seconds  # not counted as training
        return measured

    def _report(self) -> None:
        """What each device held, measured from the arrays it holds, and where the run's files are."""
        if self.is_first:
            held(self.trainer)
