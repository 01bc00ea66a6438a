"""What a training step will need and take on GPUs that are not there, from closed forms.

    estimate(Arrangement.of(config), load("h100"))

Knows configs and what the trainer does, and starts no device. Only `plan` and `search` trace the step, for what can be
exact.
"""

from trainer.planner.arrangement import Arrangement
from trainer.planner.estimate import Estimate, estimate
from trainer.planner.gpu import KINDS, Gpu, load
from trainer.planner.plan import Plan, plan
from trainer.planner.ranking import Choice
from trainer.planner.search import Faster, Found, search

__all__ = [
    "KINDS",
    "Arrangement",
    "Choice",
    "Estimate",
    "Faster",
    "Found",
    "Gpu",
    "Plan",
    "estimate",
    "load",
    "plan",
    "search",
]
