"""Which packaged profile describes a device, by the name that its vendor's program prints."""

from __future__ import annotations

import re
from typing import Final

from planner.cost_models import HardwareProfile, load_profile

from .found import Device, Links

__all__ = ["memory_differs", "notes_on", "profile_name", "profile_of", "usable_gibibytes"]

# The first that matches; None: there is no profile, though the name looks like one that has.
_NVIDIA: Final[tuple[tuple[str, str | None], ...]] = (
    (r"\bGB300\b", "gb300"),
    (r"\bGB200\b", "gb200"),
    (r"\bB200\b", "b200"),
    (r"\bGH200\b|\bNVL\b|Laptop|Mobile|Max-Q", None),
    (r"\bH200\b", "h200"),
    (r"\bH20\b", "h20"),
    (r"\b[AH]800\b.*PCI", None),
    (r"\bH800\b", "h800"),
    (r"\bH100\b.*PCI", None),
    (r"\bH100\b", "h100"),
    (r"\bA800\b", "a800"),
    (r"\bA100\b.*PCI", "a100-pcie"),
    (r"\bA100\b.*40GB", "a100-40"),
    (r"\bA100\b", "a100-80"),
    (r"\bV100\b.*PCI|\bV100S\b", None),
    (r"\bV100\b", "v100"),
    (r"\bL40S\b", "l40s"),
    (r"\bL4\b", "l4"),
    (r"\bA10G\b", "a10g"),
    (r"RTX 5090\b", "rtx-5090"),
    (r"RTX 4090\b", "rtx-4090"),
)
_ASCEND: Final[tuple[tuple[str, str | None], ...]] = (
    (r"910B1", "ascend-910b1"),
    (r"910B2", "ascend-910b2"),
    (r"910B3", "ascend-910b3"),
    (r"910B4", "ascend-910b4"),
    (r"910C|910_93\d\d", "ascend-910c"),
    # The first generation is sold in classes A and B, too, which have 32 GB; of the second, names end in a number.
    (r"^910(Pro|Premium)?[AB]?$", "ascend-910a"),
)
_AMD: Final[tuple[tuple[str, str | None], ...]] = (
    (r"\bMI300X\b|^0x74a1$|^0x74b5$", "mi300x"),  # physical, and handed to a virtual machine
)
_BY_VENDOR: Final = {"nvidia": _NVIDIA, "ascend": _ASCEND, "amd": _AMD}
# Variants that a profile is near to, and what they differ in.
_DIFFERENT: Final = (
    (r"RTX (4090|5090) D\b", "is a variant with fewer cores"),
    (r"910B2C", "stands in servers of 16, whose links differ from those of the profile"),
)
_APART: Final = 0.1  # by how much a device's memory may differ from the profile's: ECC and the driver take some percent


def profile_name(device: Device) -> str | None:
    """The name of the packaged profile of that device; None where there is none."""
    found = next((p for pattern, p in _BY_VENDOR[device.vendor] if re.search(pattern, device.name)), None)
    large = device.memory_bytes is not None and device.memory_bytes > 90e9
    if found == "h100" and large:
        return "h100-96"
    if found == "ascend-910a" and device.memory_bytes is not None and device.memory_bytes > 40e9:
        return "ascend-910b"  # the first generation has 32 GB
    return found


def memory_differs(device: Device, profile: HardwareProfile) -> bool:
    """Whether a plan has to be made for another memory than the profile's."""
    known, found = profile.memory_bytes, device.memory_bytes
    return bool(known and found and abs(found / known - 1) > _APART)


def usable_gibibytes(device: Device, profile: HardwareProfile) -> int:
    """What the driver leaves of the device's memory, or of the profile's where the device's is unknown."""
    return max(1, ((device.memory_bytes or profile.memory_bytes or 0) - profile.allocator.reserve_bytes) >> 30)


def notes_on(device: Device, count: int, profile: HardwareProfile, links: Links | None) -> list[str]:
    """In which the machine differs from the profile, in sentences."""
    notes = [f"{device.name} {what}" for pattern, what in _DIFFERENT if re.search(pattern, device.name)]
    if memory_differs(device, profile) and device.memory_bytes and profile.memory_bytes:
        notes.append(
            f"the device has {device.memory_bytes / 2**30:.1f} GiB, the profile {profile.memory_bytes / 2**30:.1f} "
            f"GiB: plan with --memory-limit {usable_gibibytes(device, profile)}GiB"
        )
    kinds = {kind for kind, _ in links.pairs} if links is not None else set()
    wired = profile.nccl is not None and profile.nccl.wire == "nvlink"
    if wired and kinds and not any(kind.startswith("NV") for kind in kinds):
        notes.append("the profile has NVLink and this machine has none: communication takes longer than predicted")
    if not wired and profile.nccl is not None and any(kind.startswith("NV") for kind in kinds):
        notes.append("this machine has NVLink and the profile has none: communication takes less than predicted")
    per_server = profile.devices_per_server
    if per_server is not None and count > per_server:
        notes.append(f"the machine has {count} devices, a server of the profile {per_server}")
    if count == 1 and profile.name == "h200":
        notes.append("the profile h200-one is fitted to steps that were measured on one H200")
    return notes


def profile_of(device: Device) -> HardwareProfile | None:
    """The packaged profile of that device."""
    name = profile_name(device)
    return None if name is None else load_profile(name)
