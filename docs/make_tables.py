"""Writes the tables that the docs take from the code: keys of a config, presets, activations, stages.

    python -m docs.make_tables

The meaning of a key is the text under its field. A test fails when a page is stale, or a key has no meaning.
"""

from __future__ import annotations

import ast
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, is_dataclass
from dataclasses import fields as dataclass_fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from models.presets import PRESETS, num_parameters
from models.recompute import RecomputePolicy
from trainer.config import Config
from trainer.config_errors import BOUNDS, KINDS, all_keys, fields, kinds
from trainer.config_source import dotted
from trainer.description import Description, describe
from trainer.events import EVENTS
from trainer.planner.gpu import KINDS as GPUS
from trainer.planner.gpu import Gpu, load

FOLDER = Path(__file__).parent
BEGIN, END = "<!-- made by make_tables.py: begin -->\n", "<!-- end -->\n"


def page(name: str) -> str:
    """One of PAGES with what stands between its marks made anew."""
    text, *parts = (FOLDER / name).read_text(encoding="utf-8").split(BEGIN)
    for table, part in zip(PAGES[name], parts, strict=True):
        text += "\n".join([BEGIN, *table(), END]) + part.partition(END)[2]
    return text


def events() -> Iterator[str]:
    """What stands in events.jsonl."""
    yield "| event | meaning, and what else is told |"
    yield "|---|---|"
    for name, meaning in EVENTS.items():
        yield f"| `{name}` | {meaning} |"
    yield ""


def presets() -> Iterator[str]:
    """A table of the published models."""
    yield "| preset | parameters | layers | hidden | heads | kv_heads | ffn | vocab | context | positions |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for name in PRESETS:
        model = Config.from_dict({"model": {"preset": name}}).model
        sizes = (
            num_parameters(model),
            model.layers,
            model.hidden,
            model.heads,
            model.num_kv_heads,
            model.ffn_size,
            model.vocab,
            model.context,
        )
        yield f"| `{name}` | {' | '.join(f'{size:,}' for size in sizes)} | {model.positions} |"
    yield ""


def saved() -> Iterator[str]:
    """What each recompute policy saves of the activations of docs/recompute.md's example."""
    yield "| policy | saved in a layer | in all 32 |"
    yield "|---|---|---|"
    for policy in get_args(RecomputePolicy):
        overrides = {"mesh": {"data": 8}, "batch.global": 8, "recompute": policy}
        described = describe(Config.load(FOLDER.parent / "configs/llama3-8b.yaml", overrides))
        total = described.memory.activations / 2**30
        yield f"| `{policy}` | {total / described.config['model']['layers']:.3g} GiB | {total:.3g} GiB |"
    yield ""


def kept() -> Iterator[str]:
    """What the stages of docs/pipelines.md's example keep, and what the backward passes of a chunk need besides."""
    yield "| `recompute` | `keep: residuals` | `keep: inputs` |"
    yield "|---|---|---|"
    for policy in get_args(RecomputePolicy):
        sizes = [staged(policy, keep=keep).memory.activations / 2**30 for keep in ("residuals", "inputs")]
        yield f"| `{policy}` | {' | '.join(f'{size:.3g} GiB' for size in sizes)} |"
    yield ""


def heads() -> Iterator[str]:
    """What it costs where embedding and head are: in the same example, and for BLOOM as it was trained."""
    yield "| | `head` | weights, gradients, optimizer | sent from stage to stage | reduced over all stages |"
    yield "|---|---|---|---|---|"
    for head in ("spread", "last"):
        yield f"| Llama 3 8B, 4 stages | `{head}` | {_costs_of_head(staged('full', head=head))} |"
    for head in ("spread", "last"):
        bloom = describe(Config.load(FOLDER.parent / "configs/bloom-176b.yaml", {"pipeline.head": head}))
        yield f"| BLOOM 176B, 12 stages | `{head}` | {_costs_of_head(bloom)} |"
    yield ""


def _costs_of_head(described: Description) -> str:
    """Three cells: bytes of state per device, and bytes of two kinds on its links."""
    sent: Counter[str] = Counter()
    for transfer in described.wire:
        if "pipeline" in transfer.axes:
            sent[transfer.kind] += transfer.link_bytes
    memory = described.memory
    held = memory.weights + memory.gradients + memory.optimizer
    return " | ".join(f"{size / 2**30:.3g} GiB" for size in (held, sent["permute"], sent["all_reduce"]))


@cache
def staged(recompute: str, **pipeline: str) -> Description:
    """The example of docs/pipelines.md."""
    overrides = {
        "mesh": {"pipeline": 4, "data": 2},
        "zero.stage": 1,
        "batch.global": 32,
        "recompute": recompute,
        "pipeline": pipeline,
    }
    return describe(Config.load(FOLDER.parent / "configs/llama3-8b.yaml", overrides))


def gpus() -> Iterator[str]:
    """The kinds of GPUs that are described."""
    columns = ("memory, GB", "that may be filled", "16 bits, TFLOP/s", "memory, GB/s", "in a node, GB/s")
    yield f"| `--gpu` | what JAX calls it | {' | '.join(columns)} | `--compile` |"
    yield "|---|---|---|---|---|---|---|---|"
    for kind in GPUS:
        gpu = load(kind)
        sizes = (gpu.memory_bytes, gpu.limit_bytes, gpu.peak_flops / 1e3, gpu.memory_bandwidth, gpu.nvlink_bandwidth)
        numbers = " | ".join(f"{size / 1e9:,.4g}" for size in sizes)
        yield f"| `{kind}` | {gpu.device_kind} | {numbers} | {'yes' if gpu.xla_target else 'no'} |"
    yield ""


def gpu_keys() -> Iterator[str]:
    """The keys of a GPU's file."""
    yield "| key | type | unless given | meaning |"
    yield "|---|---|---|---|"
    for key in all_keys(Gpu):
        section: Any = Gpu
        for part in key[:-1]:
            section = _section(fields(section)[part])
        info = fields(section)[key[-1]]
        default = "needed" if info.is_required() else _default(section, key[-1])
        yield f"| `{dotted(key)}` | {_type(info)} | {default} | {_texts(section)[key[-1]]} |"
    yield ""


def tables(section: Any, prefix: str = "") -> Iterator[str]:
    """A heading, the section's own text and a table of its keys; then those of the sections in it."""
    own = {name: info for name, info in fields(section).items() if prefix or not _section(info)}
    inner = {name: kind for name, info in fields(section).items() if (kind := _section(info))}
    if prefix:
        yield f"### {prefix.removesuffix('.')}\n"
        yield from _about(section)
        yield from _table(section, prefix, own)
    for name, kind in inner.items():
        yield from tables(kind, f"{prefix}{name}.")
    if not prefix:
        yield "### Top level\n"
        yield from _table(section, prefix, own)


def _about(section: type) -> Iterator[str]:
    text = inspect.getdoc(section)
    if text and not text.startswith(f"{section.__name__}("):  # what dataclass writes where nothing is said
        yield " ".join(text.split()) + "\n"


def _table(section: Any, prefix: str, keys: dict[str, FieldInfo]) -> Iterator[str]:
    said = _texts(section)
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for name, info in keys.items():
        key = f"{prefix}{name}"
        attribute = next(f.name for f in dataclass_fields(section) if f.name.rstrip("_") == name)
        meaning = said.get(attribute) or (
            f"See [{key}](#{key.replace('.', '')})." if _section(info) else said[attribute]
        )
        yield f"| `{key}` | {_type(info)} | {_default(section, attribute)} | {meaning} |".replace("\n", " ")
    yield ""


def _texts(section: type) -> dict[str, str]:
    """Field -> the string that stands under it."""
    body = ast.parse(inspect.getsource(section)).body[0].body  # type: ignore[attr-defined]
    return {
        field.target.id: " ".join(text.value.value.split()).replace("|", "\\|")
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def _type(info: FieldInfo) -> str:
    words = " or ".join(_word(kind) for kind in kinds(info.annotation))
    bounds = [
        f"{word} {limit}"
        for item in info.metadata
        for name, word in BOUNDS.items()
        if (limit := getattr(item, name, None)) is not None
    ]
    return words + (f", {' and '.join(bounds)}" if bounds else "").replace("|", "\\|")


def _word(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    return "a section" if is_dataclass(kind) else KINDS[get_origin(kind) or kind]


def _default(section: type, attribute: str) -> str:
    """As YAML writes it."""
    field = next(f for f in dataclass_fields(section) if f.name == attribute)  # type: ignore[arg-type]
    value = field.default
    if isinstance(value, FieldInfo):
        value = value.default
    assert value is not MISSING, f"{attribute} has no default, and the empty file must train"
    if value is None or isinstance(value, bool):
        return f"`{str(value).lower().replace('none', 'null')}`"
    return "its defaults" if is_dataclass(value) else f"`{value}`"


def _section(info: FieldInfo) -> Any:
    return next((kind for kind in kinds(info.annotation) if is_dataclass(kind)), None)


PAGES: dict[str, list[Callable[[], Iterable[str]]]] = {
    "config.md": [lambda: tables(Config)],
    "models.md": [presets],
    "pipelines.md": [kept, heads],
    "planning.md": [gpus, gpu_keys],
    "recompute.md": [saved],
    "running.md": [events],
}


if __name__ == "__main__":
    for name in PAGES:
        (FOLDER / name).write_text(page(name), encoding="utf-8")
