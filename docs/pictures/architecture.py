"""One training step through the files, from the command line to the updated weights."""

from __future__ import annotations

from docs.pictures.drawing import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, Drawing

HOST = (
    ("trainer/cli.py", "meshwright train x.yaml"),
    ("trainer/config.py", "YAML → frozen Config"),
    ("trainer/trainer.py", "corpus, checkpoint, steps"),
    ("trainer/program.py", "jit(shard_map(step))"),
)
BATCH = (("trainer/data/batches.py", "rows of step k, by a thread"), ("trainer/devices.py", "onto the devices"))
AFTER = (("trainer/loop.py", "log, evaluate, save"), ("trainer/checkpoint.py", "in the background"))
# What every device does, in order: (file, what, colour).
STEP = (
    ("sharding/zero.py", "before: weights gathered, or not yet", BLUE),
    ("models/decoder.py", "embedding, blocks, head", GREEN),
    ("sharding/zero.py", "after: gradients summed, where they are not yet", BLUE),
    ("trainer/optimizer.py", "global norm, clip, elementwise update", PURPLE),
    ("trainer/step.py", "keep it, unless a gradient is not finite", PURPLE),
)
MICRO = (
    ("models/layers.py", "fetch a layer's weights, compute"),
    ("sharding/tensor.py", "enter, leave; cross entropy in chunks"),
    ("pallas_kernels/attention.py", "this device's heads"),
)


def draw() -> Drawing:
    d = Drawing(820, 560, "One step through the files")
    d.text(20, 34, "host", INK, bold=True)
    _column(d, 20, 48, 216, HOST, FAINT)
    d.line([(128, 242), (128, 283)], FAINT)
    d.line([(128, 283), (292, 283)], FAINT, arrow=True)
    _column(d, 20, 320, 216, BATCH, ORANGE)
    d.line([(236, 392), (292, 392)], ORANGE, arrow=True)
    _column(d, 20, 440, 216, AFTER, FAINT)
    d.line([(294, 480), (237, 480)], FAINT, arrow=True)
    d.text(248, 384, "batch", ORANGE, size=11)
    d.text(246, 472, "metrics", FAINT, size=11)

    d.text(296, 34, "every device, on its own blocks: trainer/step.py", INK, bold=True)
    d.box(294, 48, 506, 490, "edge", filled=0)
    y = 66.0
    for i, (file, what, colour) in enumerate(STEP):
        tall = i == 1
        height = 206 if tall else 48
        _box(d, 314, y, 466, height, file, what, colour)
        if tall:
            d.text(768, y + 20, "for each micro-batch, with its gradient", FAINT, size=11, anchor="end")
            for j, (inner, does) in enumerate(MICRO):
                _box(d, 334, y + 50 + 50 * j, 426, 42, inner, does, GREEN)
        if i < len(STEP) - 1:
            d.line([(547, y + height), (547, y + height + 15)], FAINT, arrow=True)
        y += height + 16
    return d


def _column(d: Drawing, x: float, y: float, width: float, boxes: tuple[tuple[str, str], ...], colour: str) -> None:
    for i, (file, what) in enumerate(boxes):
        _box(d, x, y + 50 * i, width, 44, file, what, colour)


def _box(d: Drawing, x: float, y: float, width: float, height: float, file: str, what: str, colour: str) -> None:
    d.box(x, y, width, height, colour, filled=0.08)
    d.text(x + 10, y + 19, file, colour, size=12, mono=True, bold=True)
    d.text(x + 10, y + 36, what, INK, size=12)
