"""Model FLOPs utilisation: the share of a device's peak that training turns into useful products.

Useful are the FLOPs of `arch.describe`: triangles and causal attention count half of their square,
and nothing that is computed twice counts twice (Chowdhery et al., 2204.02311, appendix B).
"""

import torch

PEAKS: dict[str, tuple[float, float]] = {
    "GH200": (989e12, 67e12),
    "H200 NVL": (835e12, 60e12),
    "H200": (989e12, 67e12),
    "H100 NVL": (835e12, 60e12),
    "H100 PCIe": (756e12, 51e12),
    "H100": (989e12, 67e12),
    "A100": (312e12, 19.5e12),
    "A40": (150e12, 37e12),
    "A10": (125e12, 31.2e12),
    "L40S": (362e12, 91.6e12),
    "L4": (121e12, 30.3e12),
    "RTX 4090": (165e12, 82.6e12),
    "RTX 3090": (71e12, 35.6e12),
}
"""FLOP/s of dense products in bfloat16 with fp32 sums, and in fp32 without tensor cores, from the
vendor's data sheets; the first name that a device's name contains counts."""


def utilisation(
    flops_per_second: float, device: torch.device, precision: str, stated: float | None = None
) -> float | None:
    """Achieved FLOP/s of one device over its peak, None where the peak is not known.

    Args:
        flops_per_second: of forward and backward, on this device.
        device: what it runs on.
        precision: Lightning's name of it, for example `bf16-mixed`.
        stated: the peak, where the table has no entry for the device.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    peak = stated or peak_flops(name, precision)
    return None if peak is None else flops_per_second / peak


def peak_flops(name: str, precision: str) -> float | None:
    """Peak FLOP/s by a device's name, None where it is not known."""
    for part, (bfloat16, float32) in PEAKS.items():
        # Whole words: an "L4" is no "L40".
        if f" {part} " in f" {name.replace('-', ' ')} ":
            if precision.startswith(("bf16", "16")):
                return bfloat16
            return float32 if precision.startswith("32") else None
    return None
