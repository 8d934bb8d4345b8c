"""HyperParallel's search configuration (`model`, `cluster`, `parallelism`, `constraint`) as constraints of our search.

Keys and defaults as read by its auto_parallel/config_adapter/_config_loader.py (August 2026).  A degree is a number, a
list of candidates, or `auto`.  Data (`dp` · `fsdp`), context and tensor degrees become meshes of three axes, x, y, z in
this order: x splits samples wherever there are any, y the positions of the first input, z is left to the search.  What
the job is (devices, memory, batch, stages) goes with them as a `JobDescription`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Final, Literal, NoReturn

from planner.errors import InputError
from planner.planning.constraints.parse import Lines
from planner.planning.constraints.values import Constraints, Degrees, JobDescription

__all__ = ["constraints_of_search", "is_search"]

_MOST: Final = 1 << 16
_DEGREES: Final = ("dp", "fsdp", "tp", "pp", "cp", "ep", "etp", "micro_batch_num")
_DEVICES: Final = {"A2": "ascend-910b", "A3": "ascend-910c"}
_SECTIONS: Final = {
    "model": None,  # what the graph says itself
    "cluster": (
        "num_nodes", "cards_per_node", "device_memory_gb", "device_type", "intra_node_bandwidth_gbps",
        "inter_node_bandwidth_gbps",
    ),
    "parallelism": _DEGREES,
    "constraint": ("global_batch_size", "memory_limit_gb"),
    "pp_config": (
        "pp_degree", "stage_partition_mode", "stage_partition", "layer_offset_range", "layer_recompute_layers",
        "micro_batch_num", "pp_interleave_num", "pipeline_schedule",
    ),
    "recompute": (),
}  # fmt: skip


def is_search(data: object) -> bool:
    """Whether a document has the keys of such a configuration, and no schema of ours."""
    return isinstance(data, dict) and "schema" not in data and bool({"parallelism", "train_yaml"} & set(data))


def constraints_of_search(data: Mapping[str, Any], name: str, lines: Lines) -> Constraints:
    """InputError naming the line and key that is not understood, or that no search here can hold to."""
    return _Reader(data, name, lines).constraints()


class _Reader:
    def __init__(self, data: Mapping[str, Any], name: str, lines: Lines) -> None:
        self.data, self.name, self.lines = data, name, lines
        self.notes: list[str] = []

    def refuse(self, path: str, what: str) -> NoReturn:
        where = self.lines.where(self.name, tuple(path.split(".")))
        raise InputError(f"constraints {where}: {path}: {what}")

    def constraints(self) -> Constraints:
        self.check_keys()
        devices = self.devices()
        degrees = {key: self.degree(key) for key in _DEGREES}
        self.check_experts(degrees["ep"], degrees["etp"])
        self.check_shards(degrees["dp"], degrees["fsdp"])
        self.check_pipeline()
        stages = self.both("pp", "pp_degree", degrees["pp"])
        micro_batches = self.both("micro_batch_num", "micro_batch_num", degrees["micro_batch_num"])
        meshes = self.meshes(degrees, stages, devices)
        uniform = self.section("pp_config").get("stage_partition_mode") == "uniform"
        job = JobDescription(
            where=self.name,
            devices=devices,
            hardware=self.hardware(),
            memory_limit=self.memory(),
            batch=self.count("constraint.global_batch_size", 0) or None,
            stages=tuple(stages or ()),
            micro_batches=tuple(micro_batches or ()),
            recompute=self.recompute(),
            uniform_stages=uniform,
            notes=tuple(self.notes),
        )
        where = self.lines.where(self.name, ("parallelism",))
        return Constraints(self.name, meshes, degrees=Degrees(where) if meshes else None, job=job)

    def section(self, key: str) -> Mapping[str, Any]:
        found = self.data.get(key)
        return found if isinstance(found, dict) else {}

    def check_keys(self) -> None:
        if "train_yaml" in self.data:
            self.refuse("train_yaml", "is not read here; write `model` and `parallelism` into this file")
        for key, value in self.data.items():
            if key not in _SECTIONS:
                self.refuse(key, f"is not a key that is known here; they are {', '.join(_SECTIONS)}")
            known = _SECTIONS[key]
            if known == ():
                continue
            if not isinstance(value, dict):
                self.refuse(key, f"expected a mapping, found {value!r:.60}")
            for inner in value:
                if known is not None and inner not in known:
                    self.refuse(f"{key}.{inner}", f"is not a key that is known here; they are {', '.join(known)}")
        ignored = [k for k in self.section("model") if k != "name"]
        if ignored:
            self.notes.append(f"model: {', '.join(map(str, ignored))}: the graph says what the model is")
        for key in ("intra_node_bandwidth_gbps", "inter_node_bandwidth_gbps"):
            if key in self.section("cluster"):
                self.notes.append(f"cluster.{key}: links are those of the --hardware profile")
        if self.degree("fsdp") not in (None, [1]):
            self.notes.append(
                "parallelism.fsdp: counts data-parallel ranks; which of them share a parameter is searched"
            )

    def check_shards(self, data: list[int] | None, shards: list[int] | None) -> None:
        """Shards alone say nothing that a mesh could have: which ranks share a parameter is searched."""
        if data is None and shards not in (None, [1]):
            self.refuse(
                "parallelism.fsdp",
                "which ranks share a parameter is searched: it counts data-parallel ranks beside dp alone, and dp is "
                "left open; give dp as well (dp: 1 where all are to share), and --pin rest=zero to have them share",
            )

    def count(self, path: str, default: int | None = None) -> int:
        """A whole number of at least 1, or the default."""
        section, _, key = path.partition(".")
        value = self.section(section).get(key, default)
        if value == default and default is not None:
            return default
        if type(value) is not int or not 1 <= value <= _MOST:
            self.refuse(path, f"expected a whole number of at least 1, found {value!r:.60}")
        return value

    def devices(self) -> int:
        if not self.section("cluster"):
            self.refuse("cluster", "expected num_nodes and cards_per_node")
        return self.count("cluster.num_nodes", 1) * self.count("cluster.cards_per_node", 8)

    def hardware(self) -> str | None:
        device_type = self.section("cluster").get("device_type")
        if device_type is not None and (not isinstance(device_type, str) or device_type not in _DEVICES):
            self.refuse(
                "cluster.device_type",
                f"expected {' or '.join(_DEVICES)}, found {device_type!r:.60}; or leave it to --hardware",
            )
        return None if device_type is None else _DEVICES[device_type]

    def memory(self) -> int | None:
        """The smaller of limit and device, in bytes; 0 is none, as there."""
        found = []
        for path in ("constraint.memory_limit_gb", "cluster.device_memory_gb"):
            section, _, key = path.partition(".")
            value = self.section(section).get(key, 0)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
                self.refuse(path, f"expected GiB per device, found {value!r:.60}")
            if value:
                found.append(int(value * 2**30))
        return min(found, default=None)

    def degree(self, key: str) -> list[int] | None:
        """Candidates; None: left to the search."""
        value = self.section("parallelism").get(key)
        if value is None or (isinstance(value, str) and value.strip().lower() == "auto"):
            return None
        found = value if isinstance(value, list) else [value]
        least = 0 if key == "etp" else 1
        if not found or not all(type(n) is int and least <= n <= _MOST for n in found):
            self.refuse(f"parallelism.{key}", f"expected a degree, a list of them, or auto, found {value!r:.60}")
        return sorted(set(found))

    def both(self, key: str, other: str, degrees: list[int] | None) -> list[int] | None:
        """The degree as `parallelism` has it, or `pp_config`, which may repeat it."""
        value = self.section("pp_config").get(other)
        if value is None:
            return degrees
        found = value if isinstance(value, list) and value else [value]
        if not all(type(n) is int and 1 <= n <= _MOST for n in found):
            self.refuse(f"pp_config.{other}", f"expected a number of at least 1, or a list, found {value!r:.60}")
        if degrees is not None and degrees != sorted(set(found)):
            self.refuse(f"pp_config.{other}", f"says {value}, and parallelism.{key} {degrees}; keep one")
        return sorted(set(found))

    def check_experts(self, ep: list[int] | None, etp: list[int] | None) -> None:
        if etp is not None and not set(etp) <= {0, 1}:
            self.refuse("parallelism.etp", "how single experts are divided is searched; leave it out, or pin them")
        model = self.section("model")
        experts = model.get("moe_enabled") or (type(model.get("num_experts")) is int and model["num_experts"] > 1)
        if ep is not None and (experts or ep != [1]):
            self.refuse(
                "parallelism.ep",
                "among how many ranks experts are divided is searched: write auto, and pin them where it matters "
                "(--pin 'reads=*.experts.* e=4')",
            )

    def check_pipeline(self) -> None:
        section = self.section("pp_config")
        expected: tuple[tuple[str, Sequence[Any], str], ...] = (
            ("stage_partition_mode", ("uniform", "auto"), "stages are cut where they take the same time"),
            ("stage_partition", ([],), "stages are cut where they take the same time"),
            ("layer_offset_range", ([0, 0],), "stages are cut where they take the same time"),
            ("layer_recompute_layers", ([],), "layers that are recomputed are searched, all of them or none"),
            ("pp_interleave_num", (1,), "a stage is one run of layers"),
        )
        for key, values, why in expected:
            if key in section and section[key] not in values:
                self.refuse(f"pp_config.{key}", f"{why}; leave it out")
        schedule = section.get("pipeline_schedule", "1F1B")
        if not isinstance(schedule, str) or schedule.lower() != "1f1b":
            self.refuse("pp_config.pipeline_schedule", f"expected 1F1B, found {schedule!r:.60}")

    def recompute(self) -> Literal["none", "blocks"] | None:
        recompute = self.data.get("recompute")
        kinds: dict[object, Literal["none", "blocks"] | None] = {
            None: None,
            "none": "none",
            "off": "none",
            False: "none",
            "full": "blocks",
            True: "blocks",
        }
        if isinstance(recompute, list | dict) or recompute not in kinds:
            self.refuse(
                "recompute",
                f"expected none or full, found {recompute!r:.60}: plans run whole equal layers again, or none",
            )
        return kinds[recompute]

    def meshes(
        self, degrees: Mapping[str, list[int] | None], stages: list[int] | None, devices: int
    ) -> tuple[tuple[int, ...], ...]:
        """Data x context x tensor for every count of stages; none where only those of the search are left."""
        data, tensor, context = degrees["dp"], degrees["tp"], degrees["cp"] or [1]
        if data is None and tensor is None and context == [1]:
            return ()
        shards = degrees["fsdp"] or [1]
        found = []
        for pp in stages or _divisors(devices):
            if devices % pp:
                continue
            for cp in context:
                left, rest = divmod(devices // pp, cp)
                if rest:
                    continue
                for tp in _divisors(left):
                    dp = left // tp
                    wanted = data is None or any(a * b == dp for a, b in product(data, shards))
                    if wanted and (tensor is None or tp in tensor):
                        found.append((dp, cp, tp))
        if not found:
            degrees_text = ", ".join(f"{k} {degrees[k]}" for k in ("dp", "fsdp", "cp", "tp") if degrees[k] is not None)
            self.refuse("parallelism", f"{degrees_text}, pp {stages or 'auto'}: no product is {devices} devices")
        return tuple(dict.fromkeys(found))


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
