"""Puts a plan, and what belongs to it, into the templates of this folder.

Reads facts and lays them out; none is made here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from sharding.mesh import PIPELINE
from trainer import timeline
from trainer.config import Config
from trainer.page.bars import stack
from trainer.page.templates import templates
from trainer.picture import Picture
from trainer.pipeline import make_schedule
from trainer.planner.arrangement import Arrangement
from trainer.planner.gpu import Gpu
from trainer.planner.plan import Plan
from trainer.planner.report import alternatives, colours, nodes, roofline, verdict
from trainer.planner.words import MEMORY, SECONDS, near, room

LINKS = {"nvlink": "NVLink", "network": "network"}
ROOM = 1.03
"""The scale of memory's bars, in what the fullest stage needs or a GPU has."""
STEADY_TICKS = 2
"""That the timeline shows at either end besides those in which stages fill up, or empty."""


def page(
    made: Plan,
    config: Config,
    gpu: Gpu,
    *,
    tokens: float | None = None,
    storage: float | None = None,
    compiled: Sequence[Table] = (),
) -> str:
    """A whole page on the plan of `config`, no mesh axis of which is -1, on GPUs of the kind `gpu`.

    Args:
        tokens: that are trained on; for days and GPU-hours.
        storage: bytes/s that a checkpoint is saved at.
        compiled: what XLA makes of the step (`trainer.planner.show_compiled`).
    """
    return _render(
        "page.html",
        _of_plan(made, config.run.name, tokens, storage)
        | _of_config(made, config, gpu)
        | {"of_config": True, "compiled": [_plain(table) for table in compiled]},
    )


def fragment(made: Plan) -> str:
    """What the plan alone tells, for a notebook; its styles are for nothing else on the page."""
    of_plan = _of_plan(made, "The config", None, None)
    return _render("fragment.html", of_plan | {"of_config": False, "compiled": []})


def _render(template: str, context: dict[str, Any]) -> str:
    environment = templates("trainer.planner.report")
    return environment.get_template(template).render(context, link=LINKS)


def _of_plan(made: Plan, name: str, tokens: float | None, storage: float | None) -> dict[str, Any]:
    """What a plan tells by itself."""
    scale = ROOM * max(made.memory.total, made.limit_bytes)
    return {
        "name": name,
        "plan": made,
        "verdict": verdict.verdict(name, made),
        "facts": verdict.facts(made, tokens, storage),
        "stages": [stack(asdict(stage), MEMORY, colours.MEMORY, scale) for stage in made.stages],
        "limit": 100 * made.limit_bytes / scale,
        "room": room(made),
        "near": near(made),
        "spent": stack(asdict(made.seconds), SECONDS, colours.SECONDS, made.seconds.total),
        "axes": nodes.axes(made.mesh, made.gpus_per_node),
        "nodes": nodes.picture(made.mesh, made.gpus_per_node),
    }


def _of_config(made: Plan, config: Config, gpu: Gpu) -> dict[str, Any]:
    """What takes the config and the GPU to tell, besides the plan."""
    arrangement = Arrangement.of(config)
    reached, peak = (roof(gpu, arrangement.itemsize) for roof in (roofline.reached, roofline.peak))
    parts = roofline.parts(arrangement, gpu, made.gpus_per_node)
    return {
        "timeline": _timeline(config),
        "roofline": {
            "reached": reached,
            "peak": peak,
            "parts": parts,
            "picture": roofline.picture(parts, reached, peak),
        },
        "micro_batches": alternatives.micro_batches(config, gpu, made.gpus_per_node),
        "meshes": alternatives.meshes(config, gpu, made.gpus_per_node),
    }


def _timeline(config: Config) -> Picture | None:
    """Of pipeline stages, where there are several."""
    if config.mesh.sizes[PIPELINE] == 1:
        return None
    schedule = make_schedule(config, config.mesh.sizes)
    first, *_ = schedule.phases
    return timeline.picture(schedule, first.stop + STEADY_TICKS)


def _plain(table: Table) -> dict[str, Any]:
    """A table for the terminal as plain texts: columns of texts first, then those of numbers."""
    texts = [column for column in table.columns if column.justify != "right"]
    columns = [*texts, *(column for column in table.columns if column.justify == "right")]
    title = _text(table.title).rstrip(": ")
    return {
        "caption": f"{title}. {_text(table.caption)}".strip(),
        "texts": [_text(column.header) for column in texts],
        "numbers": [_text(column.header) for column in columns[len(texts) :]],
        "rows": list(zip(*([_text(cell) for cell in column.cells] for column in columns), strict=True)),
    }


def _text(cell: Any) -> str:
    return cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell or "")).plain
