"""Peaks are found by the names that GPUs give themselves, and never guessed."""

import pytest

from trainer.chips import memory_in_use, memory_taken, peak_flops


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA L40", None),
        ("NVIDIA GeForce RTX 3060", None),
        ("cpu", None),
    ],
)
def test_peak_by_device_kind(kind: str, peak: float | None) -> None:
    assert peak_flops(kind, "bfloat16") == peak
    assert peak_flops(kind, "float16") == peak
    assert peak_flops(kind, "float32") is None


class FakeDevice:
    def __init__(self, used: int | None, most: int | None = None) -> None:
        self.used = used
        self.most = {} if most is None else {"peak_bytes_in_use": most}

    def memory_stats(self) -> dict[str, int] | None:
        return None if self.used is None else {"bytes_in_use": self.used, **self.most}


def test_memory_of_the_fullest_device() -> None:
    in_use = memory_in_use([FakeDevice(3), FakeDevice(7)])
    assert in_use["device"] == 7
    assert in_use["host"] > 1_000_000


def test_cpu_devices_cannot_tell() -> None:
    assert list(memory_in_use([FakeDevice(None)])) == ["host"]


def test_what_is_logged_is_the_most_that_a_device_had() -> None:
    taken = memory_taken([FakeDevice(3, 9), FakeDevice(7, 8), FakeDevice(None)])
    assert taken["device_bytes"] == 9
    assert taken["host_bytes"] > 1_000_000
    assert list(memory_taken([FakeDevice(None), FakeDevice(5)])) == ["host_bytes"]
