"""What nvidia-smi, npu-smi and rocm-smi print, in the forms that public logs of several versions have.

Sources: NVIDIA/nccl#933 (A800), sgl-project/sglang#13973 (NV18), noonghunna/club-3090#1229 (RTX 5090),
InternLM/lmdeploy#2598 (npu-smi 23.0.5.1), Project-HAMi/HAMi-WebUI#47 (npu-smi 25.2.0), vllm-project/vllm-ascend#2534
(two dies to a card), ROCm/rocm_smi_lib#159 (rocm-smi).
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["MI300X", "NO_DRIVER", "NO_FIELD", "RTX_5090", "V100", "npus", "switched"]

NO_FIELD = 'Field "mig.mode.current" is not a valid field to query.\n'
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n"
)
_LEGEND = "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"


def _matrix(gpus: int, cell: Callable[[int, int], str], adapters: int = 0, underlined: bool = True) -> str:
    """`topo -m`: tabs between columns, the headings underlined by escape sequences of the terminal."""
    heads = [*(f"GPU{i}" for i in range(gpus)), *(f"NIC{i}" for i in range(adapters))]
    first = "\t".join([*heads, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    lines = ["\t" + (f"\x1b[4m{first}\x1b[0m" if underlined else first)]
    for i in range(gpus):
        cells = [" X " if i == j else cell(i, j) for j in range(gpus)]
        lines.append("\t".join([f"GPU{i}", *cells, *(["NODE"] * adapters), "0-47,96-143", "0", "N/A"]))
    lines += ["\t".join([f"NIC{k}", *(["NODE"] * gpus), *(["SYS"] * adapters), "", "", ""]) for k in range(adapters)]
    return "\n".join(lines) + _LEGEND


def switched(gpus: int, link: str, adapters: int = 0) -> str:
    """All pairs alike."""
    return _matrix(gpus, lambda i, j: link, adapters)


def _cube(i: int, j: int) -> str:
    """A hybrid cube mesh of eight: within each half one or two links, one neighbour beyond."""
    if i // 4 == j // 4:
        return "NV2" if (i ^ j) == 3 else "NV1"
    return "NV2" if abs(i - j) == 4 else "SYS"


V100 = _matrix(8, _cube, underlined=False)
RTX_5090 = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tPHB\t0-63\t0\t\tN/A\nGPU1\tPHB\t X \t0-63\t0\t\tN/A\n"
)


def npus(version: str, name: str, cards: int, used: str, dies: int = 1) -> str:
    """`npu-smi info`: two rows a chip, and a second table of processes."""
    second = "Chip  Phy-ID" if dies > 1 else "Chip        "
    rule = "+===========================+===============+====================================================+"
    lines = [
        f"| npu-smi {version:24} Version: {version:50} |",
        "+---------------------------+---------------+----------------------------------------------------+",
        "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|",
        f"| {second}              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |",
        rule,
    ]
    for card in range(cards):
        for die in range(dies):
            power = "96.0" if die == 0 else "-   "
            chip = f"{die}     {card * dies + die}" if dies > 1 else "0      "
            lines.append(
                f"| {card:<5} {name:19} | OK            | {power}        36                0    / 0             |"
            )
            lines.append(
                f"| {chip}                   | 0000:C{card % 8}:00.0  | 0           0    / 0          {used}         |"
            )
        lines.append(rule)
    processes = [
        "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |",
        rule,
    ]
    return "\n".join(
        [*lines, *processes, "| No running processes found in NPU 0                                     |"]
    )


MI300X = """\
WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status

{"card0": {"Card Series": "AMD Instinct MI300X OAM", "Card Model": "0x74a1", "Card Vendor": "Advanced Micro Devices, \
Inc. [AMD/ATI]", "VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "297480192"}, \
"card1": {"Card Series": "AMD Instinct MI300X OAM", "Card Model": "0x74a1", "Card Vendor": "Advanced Micro Devices, \
Inc. [AMD/ATI]", "VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "297480192"}, \
"system": {"Driver version": "6.8.5"}}
"""
