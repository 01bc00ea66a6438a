"""Draws a pipeline schedule: stages down, time across, and how much each stage keeps for its backward units.

In a terminal, or as a picture. Time is lockstep: each half of a tick is as wide as its unit takes, and has no width
where no stage has a unit, so that the bubble is seen as it is paid. `T` ticks, `P` stages.
Reads the table of a schedule, and nothing else: neither how it was made nor how it is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

from sharding.pipeline import schedule_file
from sharding.pipeline.schedule import BACKWARD, IDLE, WHAT, Schedule
from trainer.errors import ConfigError
from trainer.output_file import refusal
from trainer.picture import Area, Label, Picture, Rect, Shape

DURATION = (1, 2)  # of a forward, of a backward
MARK = ("{}>", "{}<")  # which way the data goes, for terminals without colours
# Of the first chunk and of the last one; black numbers can be read on all of them.
SHADES = (("#a8d1ff", "#3f8ff0"), ("#ffd3a1", "#e8863a"))
PHASES = {(True, False): "warm-up", (True, True): "steady", (False, True): "drain"}
RULER = 5  # each so many ticks, one has its number written


def draw(schedule: Schedule, console: Console) -> None:
    """Prints as many ticks of the schedule as the console is wide, and what the whole of it costs."""
    stages = [f"stage {stage}" for stage in range(schedule.num_stages)]
    margin = len(stages[-1]) + 1
    cell = 1 + len(str(max(schedule.num_micro_batches - 1, schedule.peak_live)))
    widths = cell * _durations(schedule)
    widths = widths[widths.sum(axis=1).cumsum() <= console.width - margin]

    lines = [Text(_title(schedule), "bold"), _ruler(widths, margin)]
    lines += [_units(schedule, stage, widths, name.ljust(margin)) for stage, name in enumerate(stages)]
    if left_out := schedule.num_ticks - len(widths):
        lines.append(Text(f"ticks left out, for lack of width: {left_out}", "italic"))
    lines += [_legend(schedule), Text(), Text("live chunk activations", "bold")]
    lines += [_live(live, widths, name.ljust(margin)) for live, name in zip(schedule.live().T, stages, strict=True)]
    console.print(*lines, Text(), sep="\n", no_wrap=True, overflow="crop")
    for name, fact in _facts(schedule).items():
        console.print(f"{name:<10} {fact}", highlight=False)


def save(schedule: Schedule, path: Path) -> None:
    """Writes a picture of the whole schedule, or its table (`sharding.pipeline.schedule_file`), as `path` ends.

    Raises:
        ConfigError: `path` ends in none of FORMATS or cannot be written, or what a PNG needs is not installed.
    """
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise ConfigError(f"{path}: a schedule is written as a file that ends in {', '.join(FORMATS)}")
    try:
        FORMATS[kind](schedule, path)
    except OSError as error:
        raise ConfigError(refusal(path, error.strerror)) from None


FORMATS: dict[str, Callable[[Schedule, Path], None]] = {
    ".svg": lambda schedule, path: picture(schedule).write_svg(path),
    ".png": lambda schedule, path: picture(schedule).write_png(path),
    ".csv": schedule_file.write,
}


def _durations(schedule: Schedule) -> np.ndarray:
    """int [T, 2]: how long each half of each tick lasts; 0 where no stage has a unit."""
    return np.any(schedule.runs, axis=1) * np.array(DURATION)


def _shade(what: int, chunk: int, num_chunks: int) -> str:
    """#rrggbb, in even steps from the first chunk to the last one."""
    first, last = (np.array(list(bytes.fromhex(colour[1:]))) for colour in SHADES[what])
    colour = first + (last - first) * chunk // max(num_chunks - 1, 1)
    return "#" + bytes(colour.tolist()).hex()


def _title(schedule: Schedule) -> str:
    numbers = f"stages {schedule.num_stages}, chunks {schedule.num_chunks}, micro-batches {schedule.num_micro_batches}"
    return f"{schedule.name}: {numbers}"


def _facts(schedule: Schedule) -> dict[str, str]:
    bubble = schedule.bubble(*DURATION)
    phases = (f"{PHASES[phase.forward, phase.backward]} {phase.stop - phase.start}" for phase in schedule.phases)
    return {
        "ticks": f"{schedule.num_ticks}: {', '.join(phases)}",
        "bubble": f"{bubble:.1%} of the time at work; a backward takes {DURATION[BACKWARD]} forwards",
        "peak live": f"{schedule.peak_live} (chunk activations of one stage)",
    }


def _ruler(widths: np.ndarray, margin: int) -> Text:
    groups = [int(group.sum()) for group in np.split(widths, range(RULER, len(widths), RULER))]
    ticks = "".join(f"{RULER * i:<{width}}"[:width] for i, width in enumerate(groups))
    return Text(f"{'tick':<{margin}}{ticks}", "dim")


def _units(schedule: Schedule, stage: int, widths: np.ndarray, label: str) -> Text:
    line = Text(label)
    for tick, what in np.argwhere(widths).tolist():
        chunk, micro_batch, _ = schedule.units[tick, stage, what].tolist()
        width = int(widths[tick, what])
        if chunk == IDLE:
            line.append("·".ljust(width), "dim")
        else:
            line.append(MARK[what].format(micro_batch).ljust(width), _style(schedule, what, chunk))
    return line


def _live(live: np.ndarray, widths: np.ndarray, label: str) -> Text:
    cells = (f"{number or '·':<{width}}"[:width] for number, width in zip(live, widths.sum(axis=1), strict=False))
    return Text(f"{label}{''.join(cells)}".rstrip())


def _legend(schedule: Schedule) -> Text:
    line = Text()
    for what, name in enumerate(WHAT):
        line.append(f"{MARK[what].format(name)} of chunk ")
        for chunk in range(schedule.num_chunks):
            line.append(f" {chunk} ", _style(schedule, what, chunk))
        line.append("  ")
    return line.append("· idle", "dim")


def _style(schedule: Schedule, what: int, chunk: int) -> str:
    return f"black on {_shade(what, chunk, schedule.num_chunks)}"


# The picture, in pixels, y down.
LEFT, TOP, RIGHT, BOTTOM = 76, 124, 70, 46  # of the chart; more on the sides where names are long
NAME = 20  # where they begin
BOX, CHART, ROW = 26, 20, 58  # heights: of a unit, of the live activations at their peak, of a stage
# Widths: of a forward of all chunks of a stage, so that schedules can be compared; of one chunk at least; of a digit,
# and of a letter of a name.
STAGE_WIDTH, CHUNK_WIDTH, DIGIT, LETTER = 22, 8, 7, 8
MIN_WIDTH, MAX_WIDTH = 640, 16_000
CUT = 150  # width of the gap where ticks are left out


def picture(schedule: Schedule, ends: int | None = None) -> Picture:
    """The schedule: all of it, or no more than its first and its last `ends` ticks.

    One of as many stages and micro-batches has the same scale, up to two chunks a stage.
    """
    ticks = np.arange(schedule.num_ticks)
    drawn = np.minimum(ticks, ticks[::-1]) < (ends or schedule.num_ticks)
    times = np.concatenate([[0], (_durations(schedule) * drawn[:, None]).cumsum()])
    scale = min(max(STAGE_WIDTH / schedule.num_chunks, CHUNK_WIDTH), MAX_WIDTH / times[-1])
    # [T, 3]: where each tick begins, where its backward half begins, and where it ends.
    left = max(LEFT, NAME + LETTER * len(f"stage {schedule.num_stages - 1}"))
    edges = left + scale * times[2 * ticks[:, None] + np.arange(3)]
    left_out = ticks[~drawn]
    edges[ticks > len(ticks) // 2] += CUT if len(left_out) else 0
    right = max(RIGHT, NAME + LETTER * len(f"{schedule.peak_live} live"))
    width = round(max(edges[-1, -1] + right, MIN_WIDTH))
    height = TOP + ROW * schedule.num_stages + BOTTOM
    shapes = [*_heading(schedule), *_ticks(edges, drawn, height - BOTTOM)]
    for stage, live in enumerate(schedule.live().T):
        y = TOP + ROW * stage
        shapes += _boxes(schedule, stage, edges, drawn, y)
        shapes += _chart(live, schedule.peak_live, edges, drawn, y + BOX + 4)
    if len(left_out):
        shapes += _gap(len(left_out), edges[left_out[0], 0], height - BOTTOM)
    return Picture(_title(schedule), width, height, [*shapes, *_key(schedule, height - 30)])


def _heading(schedule: Schedule) -> Iterator[Shape]:
    yield Label("ink", 20, 29, _title(schedule), bold=True)
    for i, (name, fact) in enumerate(_facts(schedule).items()):
        yield Label("faint", 20, 49 + 17 * i, f"{name}: {fact}")


def _ticks(edges: np.ndarray, drawn: np.ndarray, bottom: float) -> Iterator[Shape]:
    for tick in range(0, len(edges), RULER):
        if not drawn[tick]:
            continue
        yield Rect("edge", edges[tick, 0] - 0.5, TOP - 6, 1, bottom - TOP)
        yield Label("faint", edges[tick, 0], TOP - 11, f"tick {tick}" if tick == 0 else f"{tick}")


def _boxes(schedule: Schedule, stage: int, edges: np.ndarray, drawn: np.ndarray, y: float) -> Iterator[Shape]:
    """The units of a stage, on a bar that is seen where it is idle."""
    yield Label("ink", NAME, y + BOX / 2 + 4, f"stage {stage}")
    yield Rect("idle", edges[0, 0], y, edges[-1, -1] - edges[0, 0], BOX)
    for tick, what in np.argwhere(schedule.runs[:, stage] & drawn[:, None]).tolist():
        chunk, micro_batch, _ = schedule.units[tick, stage, what].tolist()
        begin, end = edges[tick, what], edges[tick, what + 1]
        yield Rect(_shade(what, chunk, schedule.num_chunks), begin, y, end - begin - 1, BOX)
        if DIGIT * len(str(micro_batch)) < end - begin:
            yield Label("number", (begin + end - 1) / 2, y + BOX / 2 + 4, str(micro_batch), centred=True)


def _chart(live: np.ndarray, highest: int, edges: np.ndarray, drawn: np.ndarray, y: float) -> Iterator[Shape]:
    """The live activations [T] of a stage: a step for each tick, and their peak as a number."""
    steps = zip(edges[drawn][:, [0, 2]].ravel(), (y + CHART * (1 - live[drawn] / highest)).repeat(2), strict=True)
    yield Area("live", [(edges[0, 0], y + CHART), *steps, (edges[-1, -1], y + CHART)])
    yield Label("live", edges[-1, -1] + 8, y + CHART, f"{live.max()} live")


def _gap(left_out: int, x: float, bottom: float) -> Iterator[Shape]:
    """In the place of ticks that are not drawn, how many they are."""
    yield Rect("card", x, TOP - 6, CUT, bottom - TOP + 6)
    yield Label("faint", x + CUT / 2, TOP - 11, f"{left_out:,} ticks left out", centred=True)


def _key(schedule: Schedule, y: float) -> Iterator[Shape]:
    x = 20
    for what, name in enumerate(WHAT):
        yield Label("faint", x, y + 11, f"{name} of chunk")
        x += 122
        for chunk in range(schedule.num_chunks):
            yield Rect(_shade(what, chunk, schedule.num_chunks), x, y, 18, 14)
            yield Label("number", x + 9, y + 11, str(chunk), centred=True)
            x += 20
        x += 24
    yield Label("faint", x, y + 11, "idle")
    yield Rect("idle", x + 28, y, 18, 14)
