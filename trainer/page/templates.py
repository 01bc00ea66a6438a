"""The templates of a package beside those of this one, with how numbers are written and pictures are put in.

All that is put into a template is escaped, and a name that is not there is an error.
"""

from __future__ import annotations

import base64
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from trainer.page import numbers
from trainer.picture import COLOURS, Picture
from trainer.units import binary


@cache
def templates(package: str) -> Environment:
    """Those in the folder of `package`, such as "trainer.planner.report"; shared ones by their names."""
    environment = Environment(
        loader=ChoiceLoader([_folder(package), _folder("trainer.page")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    written: dict[str, Any] = {write.__name__: write for write in (*numbers.ALL, binary)}
    environment.filters |= written | {"image": _image}
    environment.globals |= written | {"colours": COLOURS}
    return environment


def _folder(package: str) -> PackageLoader:
    parent, _, name = package.rpartition(".")
    return PackageLoader(parent, name)


def _image(picture: Picture) -> str:
    """The picture as the address of an image: so its styles do not reach the page, nor the page's reach it."""
    return "data:image/svg+xml;base64," + base64.b64encode(picture.svg().encode()).decode()
