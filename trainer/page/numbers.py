"""How numbers are written on the page: never without their unit, and no more digits than they are worth."""

from __future__ import annotations

from trainer.units import DAY, GIB, HOUR, MINUTE


def gib(count: float) -> str:
    """Bytes of a GPU, as data sheets of GPUs are read."""
    return f"{count / GIB:,.2f} GiB"


def seconds(number: float) -> str:
    """As seconds, or the unit below in which there is something before the point."""
    if number == 0:
        return "0 s"
    units = ((0.1, 1, "s"), (1e-4, 1e3, "ms"), (0, 1e6, "µs"))
    factor, unit = next((factor, unit) for least, factor, unit in units if number >= least)
    return f"{ratio(factor * number)} {unit}"


def duration(number: float) -> str:
    """Seconds, in the largest unit of which there are at least two."""
    for unit, name in ((DAY, "days"), (HOUR, "h"), (MINUTE, "min")):
        if number >= 2 * unit:
            return f"{number / unit:,.1f} {name}"
    return seconds(number)


def percent(part: float) -> str:
    return f"{part:.1%}"


def ratio(number: float) -> str:
    """Three digits, or all before the point."""
    return f"{number:,.0f}" if number >= 99.95 else f"{number:#.3g}"


def short(number: float) -> str:
    """Four digits at most, with a letter for thousands from 10,000 on, and a power of ten below a thousandth."""
    size = abs(number)
    for least, factor, letter in ((1e15, 1, ""), (1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if size >= least:
            return f"{number / factor:.4g}{letter}"
    if 0 < size < 1e-3:
        digits, _, power = f"{number:.2e}".partition("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{number:.4g}"


def count(number: float) -> str:
    """Of tokens and parameters, in words from a million on."""
    for least, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if number >= least:
            return f"{number / least:.4g} {name}"
    return f"{number:,.0f}"


def rate(flops: float) -> str:
    """FLOP/s."""
    return f"{ratio(flops / 1e12)} TFLOP/s"


def mesh(sizes: dict[str, int]) -> str:
    """The axes along which there are several devices."""
    return " × ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) or "one device"


ALL = (gib, seconds, duration, percent, ratio, short, count, rate, mesh)
