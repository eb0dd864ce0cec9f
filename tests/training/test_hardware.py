"""Peaks of devices, by the names that jax has for them."""

import pytest

from encoderjax.training.hardware import published_peak


@pytest.mark.parametrize(
    ("device_kind", "teraflops"),
    [
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5", 459),
        ("TPU v6 lite", 918),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA L4", 121),
        ("NVIDIA L40", 181),
        ("NVIDIA L40S", 362),
        ("Tesla V100-SXM2-16GB", 125),
        ("Tesla T4", 65),
        ("NVIDIA RTX A1000", None),  # no A100
        ("NVIDIA T400 4GB", None),  # no T4
    ],
)
def test_a_device_has_the_peak_of_its_own_data_sheet(device_kind, teraflops):
    expected = None if teraflops is None else teraflops * 1e12
    assert published_peak(device_kind) == expected
