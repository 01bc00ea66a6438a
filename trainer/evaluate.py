"""Loss on text that was not trained on: the training model's own forward pass, on the training mesh."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import jax
import numpy as np

from trainer.data.batches import HeldOutBatches
from trainer.devices import put_batch
from trainer.errors import ConfigError
from trainer.processes.membership import current, is_first, of_first

if TYPE_CHECKING:
    from trainer.trainer import Trainer


def evaluate(trainer: Trainer, parameters: dict[str, jax.Array], everything: bool) -> dict[str, float]:
    """See Trainer.evaluate. Σ token loss / Σ counted tokens over at most train.eval_batches global batches."""
    config, corpus, program = trainer.config, trainer.corpus, trainer.program
    packed = (corpus.everything if everything else corpus.held_out)(config.batch.sequence)
    batches = HeldOutBatches(packed, config.batch.global_, config.train.eval_batches)
    loss = tokens = num_bytes = 0.0
    for index in range(len(batches)):
        batch = put_batch(program.mesh, program.batch_specs, config.batch.global_, partial(batches.rows, index))
        sums = jax.device_get(program.evaluate(parameters, batch))
        loss, tokens = loss + float(sums[0]), tokens + float(sums[1])
        trainer.phases.moved()
        if corpus.bytes_per_token is not None and (is_first() or current() is None):
            host = batches.batch(index)
            num_bytes += float(np.sum(corpus.bytes_per_token[host["targets"]] * host["weights"]))
    num_bytes = float(of_first("bytes", str(num_bytes)))
    if not tokens:
        raise ConfigError("the held-out documents hold no token after their first; give data.path longer ones")
    result = {"loss": loss / tokens, "perplexity": math.exp(min(loss / tokens, 700)), "tokens": int(tokens)}
    if num_bytes:
        result |= {"bits_per_byte": loss / math.log(2) / num_bytes, "bytes": int(num_bytes)}
    return result
