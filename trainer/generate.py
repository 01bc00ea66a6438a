"""Text from a trained model, and its logits: prompts in, what the model makes of them out.

Several prompts are read side by side, padded on the left, and each is written on as it would be alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import jax
import numpy as np

from models.float32 import Float32
from trainer.data.tokenizer import Tokenizer
from trainer.decoding import Sampling, space
from trainer.errors import ConfigError
from trainer.step import Arrays

if TYPE_CHECKING:
    from trainer.trainer import Trainer

TEMPERATURE = Float32(ge=0, le=1e30)
"""Times the noise it is still finite."""
MOST_ROWS = 16
"""Texts that are worked at side by side."""
_LONGEST_CHARACTER = 4  # bytes of UTF-8, and so tokens, at most


def generate(
    trainer: Trainer,
    parameters: Arrays,
    prompts: Sequence[str],
    max_tokens: int,
    temperature: float,
    top_k: int | None,
    seed: int,
) -> list[str]:
    """See Trainer.generate."""
    _require(max_tokens >= 0, f"max_tokens={max_tokens}: use 0 or more")
    held = TEMPERATURE.becomes(temperature)
    wanted = f"use 0 for the likeliest token, or more, up to {TEMPERATURE.le:g}"
    _require(TEMPERATURE.allows(temperature), f"temperature={temperature}: {wanted}{(held and f'; {held}') or ''}")
    _require(top_k is None or top_k >= 1, f"top_k={top_k}: use 1 or more, or None for the whole vocabulary")
    _require(0 <= seed < 2**32, f"seed={seed}: use one from 0 to 2**32 - 1")
    tokenizer, model = trainer.tokenizer, trainer.config.model
    tokenizer.check_fits(model.vocab)
    read = [_read(tokenizer, prompt, model.context) for prompt in prompts]
    sampling = Sampling(
        temperature=np.float32(temperature),
        top_k=np.int32(model.vocab if top_k is None else min(top_k, model.vocab)),
        seed=np.uint32(seed),
        end=tokenizer.eod,
        words=_words(tokenizer, model.vocab),
    )
    texts = []
    for some in range(0, len(read), MOST_ROWS):
        part = read[some : some + MOST_ROWS]
        written = _write(trainer, parameters, part, max_tokens, sampling)
        texts += [
            prompt + continuation(tokenizer, ids, new)
            for prompt, ids, new in zip(prompts[some:], part, written, strict=False)
        ]
    return texts


def continuation(tokenizer: Tokenizer, ids: np.ndarray, new: np.ndarray) -> str:
    """What `new` tokens add to the text of `ids`: the end of the text of both, as tokens alone may read otherwise.

    Where the last character is cut, so that its bytes would change those before them, it is U+FFFD, and they stay.
    """
    before = tokenizer.decode(ids)
    for cut in range(min(_LONGEST_CHARACTER, len(new) + 1)):
        kept, rest = np.split(new, [len(new) - cut])
        whole, broken = tokenizer.decode(np.concatenate([ids, kept])), tokenizer.decode(rest)
        if whole.startswith(before) and set(broken) <= {"\ufffd"}:
            return whole[len(before) :] + broken[:1]
    whole = tokenizer.decode(np.concatenate([ids, new]))
    return whole[sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(before, whole, strict=False))) :]


def logits(trainer: Trainer, parameters: Arrays, tokens: np.ndarray) -> np.ndarray:
    """See Trainer.logits."""
    model = trainer.config.model
    _require(tokens.ndim == 2 and tokens.dtype.kind in "iu", "tokens: give whole numbers, [texts, tokens of each]")
    _require(tokens.shape[1] <= model.context, f"tokens: the model's context holds {model.context}")
    _require(
        not tokens.size or (tokens.min() >= 0 and tokens.max() < model.vocab),
        f"tokens: the model knows those from 0 to {model.vocab - 1}",
    )
    found = np.empty((*tokens.shape, model.vocab), np.float32)
    for some in range(0, len(tokens) if tokens.size else 0, MOST_ROWS):
        part = tokens[some : some + MOST_ROWS]
        for first, chunk in _read_on(trainer, parameters, part.astype(np.int32)):
            at = found[some : some + MOST_ROWS, first : first + chunk.shape[1]]
            at[...] = chunk[: len(part), : at.shape[1]]
    return found


def _read(tokenizer: Tokenizer, prompt: str, context: int) -> np.ndarray:
    """The tokens of a prompt that leaves room for an answer."""
    _require(_is_text(prompt), "the prompt is not UTF-8 text; convert it first")
    ids = tokenizer.encode_prompt(prompt)
    if len(ids) >= context:
        raise ConfigError(
            f"the prompt has {len(ids)} tokens, and the model's context holds {context}; use at most "
            f"{context - 1}, so that there is room for an answer"
        )
    return ids


def _words(tokenizer: Tokenizer, vocab: int) -> np.ndarray:
    """bool [vocab]: the ids that stand for a token. A model may have rows for more."""
    words = np.zeros(vocab, bool)
    words[[*tokenizer.inner.get_vocab(with_added_tokens=True).values()]] = True
    return words


def _write(
    trainer: Trainer, parameters: Arrays, prompts: Sequence[np.ndarray], max_tokens: int, sampling: Sampling
) -> list[np.ndarray]:
    """The tokens that come behind each prompt, up to the end of the document, which is left out."""
    context = trainer.config.model.context
    sizes = np.array([len(ids) for ids in prompts])
    new = np.minimum(context - sizes, max_tokens)
    room = space(len(prompts), int(sizes.max() + new.max()), context)
    read = room.read(int(sizes.max()))
    tokens = np.zeros((room.rows, room.places), np.int32)
    first, last = np.full((2, room.rows), read, np.int32)  # a row too many writes nothing
    first[: len(sizes)] -= sizes
    last[: len(sizes)] += new
    for row, ids in enumerate(prompts):
        tokens[row, first[row] : read] = ids
    chunks = tokens.reshape(room.rows, room.chunks, room.chunk)
    out = trainer.program.generate(parameters, chunks, first, np.int32(read), last, sampling)
    rows = np.asarray(out)[: len(prompts)]
    return [_before(row[read : last[k]], sampling.end) for k, row in enumerate(rows)]


def _before(ids: np.ndarray, end: jax.typing.ArrayLike) -> np.ndarray:
    """Those before the first `end`."""
    return ids[: np.argmax(ids == end)] if (ids == end).any() else ids


def _read_on(trainer: Trainer, parameters: Arrays, tokens: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(first place, logits [B, C, V]) of a chunk after the other."""
    programs = trainer.program.logits
    room = space(len(tokens), tokens.shape[1], trainer.config.model.context)
    padded = np.zeros((room.rows, room.places), np.int32)
    padded[: len(tokens), : tokens.shape[1]] = tokens
    cache = programs.empty(room.rows, room.places)
    for first in range(0, tokens.shape[1], room.chunk):
        chunk = padded[:, first : first + room.chunk]
        found, cache = programs.read(parameters, chunk, np.int32(first), cache)
        yield first, np.asarray(found.addressable_data(0))[0]


def _is_text(prompt: str) -> bool:
    """False for bytes that a shell passed on without being able to decode them."""
    return not any("\ud800" <= character <= "\udfff" for character in prompt)


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ConfigError(otherwise)
