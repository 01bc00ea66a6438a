"""A process in which JAX has not started, forked once for each thing that a script may ask of a `Trainer` first.

    python -m tests.trainer.first_calls NEW_CONFIG RUN

Says on standard error, a line each: what was asked first, and "well" or the error. Importing costs seconds, and is
shared; starting JAX is not.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable

from jax._src import xla_bridge

from trainer import Config, Trainer

NEW: dict[str, Callable[[Trainer], object]] = {
    "config": lambda trainer: trainer.config,
    "program": lambda trainer: trainer.program,
    "corpus": lambda trainer: trainer.corpus,
    "tokenizer": lambda trainer: trainer.tokenizer,
    "folder": lambda trainer: trainer.folder,
    "check_folder": lambda trainer: trainer.check_folder(),
    "open_folder": lambda trainer: trainer.open_folder(),
    "checkpoints": lambda trainer: trainer.checkpoints.remove_after(0),
    "rollbacks": lambda trainer: trainer.rollbacks.done,
    "guard": lambda trainer: trainer.guard,
    "origin": lambda trainer: trainer.origin,
    "first_step": lambda trainer: trainer.first_step,
    "what_is_measured": lambda trainer: trainer.what_is_measured(),
    "has_state": lambda trainer: trainer.has_state,
    "step": lambda trainer: trainer.step,
    "tokens": lambda trainer: trainer.tokens,
    "lower_step": lambda trainer: trainer.lower_step(),
    "plan": lambda trainer: trainer.plan("h100"),
    "state": lambda trainer: trainer.state,
    "restored_state": lambda trainer: trainer.restored_state,
    "parameters": lambda trainer: trainer.parameters,
    "keeper": lambda trainer: trainer.keeper,
    "steps": lambda trainer: next(trainer.steps(1)),
    "train": lambda trainer: trainer.train(1),
    "evaluate": lambda trainer: trainer.evaluate(),
    "baselines": lambda trainer: trainer.baselines(),
    "generate": lambda trainer: trainer.generate("def", max_tokens=2),
    "logits": lambda trainer: trainer.logits([[1, 2]]),
    "save": lambda trainer: trainer.save(),
    "close": lambda trainer: trainer.close(),
}
"""What is asked of a new run's trainer, by the name of the member; training goes on from there."""
OLD = ("step", "tokenizer", "state", "evaluate", "generate", "train", "rollbacks")
"""What is asked of a trainer from a run's folder."""
TOUCHES_NOTHING = {
    "folder",
    "checkpoints",
    "close",
    "guard",
    "origin",
    "has_state",
    "first_step",
    "what_is_measured",
    "step",
    "tokens",
    "plan",
    "rollbacks",
    "corpus",
    "tokenizer",
    "baselines",
}
"""What starts no device: there is text to prepare, and there are files to read, without any."""


def main() -> None:
    new, run = sys.argv[1:]
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # nothing of JAX runs yet
    for name, ask in NEW.items():
        in_a_fork(name, lambda ask=ask, name=name: first(of_new(new), ask, name))
    for name in OLD:
        in_a_fork(f"{name} of a run", lambda name=name: first(Trainer.from_run(run), NEW[name], name))


def of_new(config: str) -> Trainer:
    return Trainer(Config.load(config, {"run.dir": tempfile.mkdtemp()}))


def first(trainer: Trainer, ask: Callable[[Trainer], object], name: str) -> None:
    ask(trainer)
    if name in TOUCHES_NOTHING:  # and so settles nothing for what comes after it
        assert not xla_bridge.backends_are_initialized(), "JAX has started"
        return
    assert len(trainer.program.mesh.devices.flat) == 2
    assert float(next(trainer.steps(1)).loss) > 0


def in_a_fork(name: str, case: Callable[[], None]) -> None:
    sys.stdout.flush()
    child = os.fork()
    if not child:
        said = "well"
        try:
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 1)
            case()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(2, f"{name}: {said}\n".encode())
        os._exit(0)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
