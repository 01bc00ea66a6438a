"""What a run comes to, in words: one sentence, the facts it rests on, its starts, and what happened."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from trainer.page import numbers
from trainer.page.facts import Fact
from trainer.report.folder import Event, Run, began
from trainer.report.goodput import Goodput, last_sign
from trainer.report.kills import kills, lost_steps, was_killed
from trainer.secrets import hide, without_secrets

MOST_TOLD, MOST_STARTS = 40, 20
"""Events, and starts, that are listed: the newest."""
COUNTED = ("compile", "save", "evaluation")
"""Events that are too many and too common to be listed."""
ALIVE = 600
"""Seconds without a sign, after which a run is not thought to train any more."""
_CORPUS = {"documents": "documents", "documents held out": "held_out", "tokens": "tokens", "vocabulary": "vocab"}
"""What is shown of the data's sizes -> its name in environment.json."""


class Story(NamedTuple):
    """How a run stands."""

    sentence: str
    good: bool | None
    """Whether all is well; None where that cannot be said."""


class Start(NamedTuple):
    """One start of a run, as it is shown."""

    when: str
    step: int | None
    devices: str
    host: str
    software: str
    commit: str


class Happened(NamedTuple):
    """An event, as it is shown."""

    when: str
    what: str
    step: int
    more: str


def story(run: Run, now: float) -> Story:
    """One sentence. `now`: Unix seconds, to tell a run that trains from one that was killed."""
    if not len(run.training):
        return Story(f"{run.name} has not trained a step yet.", None)
    steps = run.get("train.steps")
    steps = steps if isinstance(steps, int) else 0
    at = f"step {run.step:,} of {steps:,}" if steps else f"step {run.step:,}"
    loss = run.training["loss"][-1]
    at += f", loss {loss:.3f}" if np.isfinite(loss) else ", loss not finite"
    last = run.events[-1] if run.events else None
    reason = str(last.more.get("reason")) if last and last.name == "end" else None
    if reason == "finished" or 0 < steps <= run.step:
        return Story(f"{run.name} is finished: {at}.", True)
    if reason is not None:
        return Story(f"{run.name} was ended by {_ending(run, reason)}: {at}.", None if reason == "signal" else False)
    if last and last.name == "watchdog":
        return Story(f"{run.name} hung and was ended by its watchdog: {at}.", False)
    if was_killed(run):
        return Story(f"{run.name} was killed, or its machine failed: {at}.", False)
    silent = now - (last_sign(run) if run.events else run.seen or 0)
    if run.held or silent < ALIVE:
        return Story(f"{run.name} trains: {at}.", True)
    return Story(f"{run.name} was last seen {numbers.duration(silent)} ago: {at}.", None)


def facts(run: Run, spent: Goodput | None) -> Iterator[Fact]:
    """What is asked first."""
    training = run.training
    loss = training["loss"][-1]
    written_loss = f"{loss:.4f}" if np.isfinite(loss) else "not finite"
    yield Fact("loss", written_loss, "nats per token, of the last step that was logged")
    if (heldout := run.evaluations.last("eval_loss")) is not None:
        per_byte = run.evaluations.last("eval_bits_per_byte")
        bits = "" if per_byte is None else f"; {per_byte:.4f} bits per byte"
        yield Fact(
            "loss on held-out text", f"{heldout:.4f}", f"nats per token, at step {run.evaluations.step[-1]:,}{bits}"
        )
    if (tokens := training.last("tokens")) is not None:
        yield Fact("tokens trained on", numbers.count(tokens), _epochs(run, tokens))
    if (speed := _usual(run, "tokens_per_second")) is not None:
        yield Fact("tokens per second", f"{speed:,.0f}", "the median of all that is logged")
    if (mfu := _usual(run, "mfu")) is not None:
        yield Fact("MFU", numbers.percent(mfu), "the median; causal attention halved, recomputation not counted")
    if spent is not None:
        yield Fact("goodput", numbers.percent(spent.share), f"of {numbers.duration(spent.wall)} trained new steps")
    if was_killed(run):
        saved = f"the checkpoint of step {run.checkpoints[-1]:,}" if run.checkpoints else "the start, as none is saved"
        yield Fact("lost steps", f"{lost_steps(run):,}", f"of the process that was killed: it goes on from {saved}")
    yield Fact("skipped steps", f"{training.last('skipped_steps') or 0:,.0f}", "a loss or gradient was not finite")
    if num_starts := max(len(run.starts), len(run.environments)):
        yield Fact("starts", f"{num_starts:,}", _saved(run))


def starts(run: Run) -> list[Start]:
    """The newest of them, from environment.json and, where there are events, with the step each began at."""
    return [_start(run, record) for record in run.environments[-MOST_STARTS:]]


def happened(run: Run) -> list[Happened]:
    """What is worth a line each, the newest last."""
    told = sorted([event for event in _all(run) if event.name not in COUNTED], key=attrgetter("time"))
    return [
        Happened(written(event.time), event.name.replace("_", " "), event.step, _more(event.more))
        for event in told[-MOST_TOLD:]
    ]


def counted(run: Run) -> dict[str, int]:
    """How often each kind of event came."""
    return dict(Counter(event.name.replace("_", " ") for event in _all(run)))


def _all(run: Run) -> list[Event]:
    """What is told, and what is to be seen from it."""
    return [*run.events, *kills(run)]


def data(run: Run) -> list[tuple[str, str]]:
    """(what, as it is written) of the text that is trained on."""
    newest: Mapping[str, Any] = run.environments[-1] if run.environments else {}
    corpus = newest.get("data")
    corpus = corpus if isinstance(corpus, Mapping) else {}
    path, tokenizer, holdout = (run.get(f"data.{key}") for key in ("path", "tokenizer", "holdout"))
    rows = [("path", ", ".join(map(str, path)) if isinstance(path, list) else path)]
    rows += [(name, numbers.count(corpus[key])) for name, key in _CORPUS.items() if _is_number(corpus.get(key))]
    rows += [("tokenizer", tokenizer), ("held out", f"{holdout:.3g} of the documents" if _is_number(holdout) else None)]
    rows += [("tokens in a sequence", run.get("batch.sequence")), ("sequences in a step", run.get("batch.global"))]
    rows.append(("hash", newest.get("data_hash")))
    return [(name, hide(str(told))) for name, told in rows if told is not None]


def _start(run: Run, record: Mapping[str, Any]) -> Start:
    packages = record.get("packages")
    packages = packages if isinstance(packages, Mapping) else {}
    software = [f"Python {record.get('python', '-')}"]
    software += [f"{name} {packages[name]}" for name in ("jax", "jaxlib", "meshwright") if packages.get(name)]
    devices = record.get("devices")
    kinds = Counter(map(str, devices if isinstance(devices, list) else []))
    at = began(record)
    after = [start.step for start in run.starts if at is not None and start.time >= at]
    return Start(
        when=str(record.get("start", "-")).replace("T", " "),
        step=after[0] if after else None,
        devices=", ".join(f"{count:,} × {kind}" for kind, count in kinds.items()) or "-",
        host=str(record.get("host", "-")),
        software=", ".join(software),
        commit=str(record.get("git_commit") or "-")[:12],
    )


def _ending(run: Run, reason: str) -> str:
    if reason != "signal":
        return f"an error ({hide(reason.splitlines()[0] if reason else 'unknown')})"
    signals = run.told("signal")
    return str(signals[-1].more.get("signal", "a signal")) if signals else "a signal"


def _usual(run: Run, name: str) -> float | None:
    numbers_ = run.training[name]
    finite = numbers_[np.isfinite(numbers_)]
    return float(np.median(finite)) if len(finite) else None


def _epochs(run: Run, tokens: float) -> str:
    corpus = run.environments[-1].get("data") if run.environments else None
    size = corpus.get("tokens") if isinstance(corpus, Mapping) else None
    return f"{tokens / size:.3g} times the corpus" if _is_number(size) and size else f"in {run.step:,} steps"


def _saved(run: Run) -> str:
    return f"checkpoint at step {run.checkpoints[-1]:,}" if run.checkpoints else "no checkpoint"


def written(time: float) -> str:
    """A time (Unix seconds) as clocks here show it."""
    try:
        return datetime.fromtimestamp(time).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "-"


def _more(more: Mapping[str, Any]) -> str:
    """The fields of an event in one line."""
    return ", ".join(f"{_field(name)} {_short(name, value)}" for name, value in without_secrets(more).items())


def _field(name: str) -> str:
    return name.replace("seconds", "time", 1).replace("_", " ")


def _short(name: str, value: Any) -> str:
    if name == "last_seen" and _is_number(value):
        return written(value)
    if name.startswith("seconds") and _is_number(value):
        return numbers.duration(value)
    if isinstance(value, float):
        return f"{value:.4g}{' nats per token' * (name == 'loss')}"
    return value if isinstance(value, str) else json.dumps(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
