"""A colour for each kind of memory and of time that a plan tells of; one hue for what belongs together."""

from __future__ import annotations

from trainer.page.bars import AMBER, BLUE, BROWN, GREEN, GREY, LILAC, ORANGE, PINK, PURPLE, RED, TEAL

MEMORY = {
    "weights": BLUE,
    "gradients": GREEN,
    "master": PURPLE,
    "optimizer": LILAC,
    "activations": ORANGE,
    "logits": AMBER,
    "gathered": TEAL,
    "pipeline": PINK,
    "collectives": BROWN,
    "overhead": GREY,
}
SECONDS = {
    "matmul": BLUE,
    "attention": TEAL,
    "elementwise": GREEN,
    "accumulation": LILAC,
    "optimizer": PURPLE,
    "tensor": ORANGE,
    "stages": AMBER,
    "data": PINK,
    "host": BROWN,
    "host_update": RED,
    "bubble": GREY,
}
