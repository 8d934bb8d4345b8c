"""What is asked of a search: one value, of which the options of the command line are made, those of the service, the
key of the cache and what a plan says of itself."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args

from planner.errors import UsageError
from planner.requests.options import default_of, option, options_of, read, refuse_others, sent_of
from planner.requests.values import byte_size, plan_file, positive, seconds
from planner.search.solvers import SOLVERS, SolverName, solver_help
from planner.targets import Target

__all__ = ["BINDINGS", "MOST_DEVICES", "SENT", "Optimizer", "Precision", "SearchRequest"]

MOST_DEVICES: Final = 16384  # ranks are listed in the plan, group by group

# What a service says of `bind`, and accepts.
BINDINGS: Final[Mapping[str, Any]] = {
    "description": "Sizes of symbolic dimensions, DIM=SIZE; may be repeated.",
    "pattern": r"^[^= \x00-\x1f\x7f]{1,100}=[1-9][0-9]{0,8}$",
    "max_length": 50,
}

Mode = Literal["training", "inference"]
Optimizer = Literal["adam", "momentum", "sgd"]
Precision = Literal["bf16", "fp16", "fp32"]
Recompute = Literal["auto", "none", "blocks"]
Risk = Literal["expected", "upper"]
Space = Literal["whole", "operators"]


@dataclass
class SearchRequest:
    """A model, devices, and what is wanted of the plan, as `planner search --help` says it.

    `devices` is a number, or several with commas between; files are paths, and `bind` items such as `batch=8`.
    """

    model: Path
    devices: str
    bind: list[str] = option(
        [],
        sent=BINDINGS,
        action="append",
        metavar="DIM=SIZE",
        help="size of a symbolic dimension; may be repeated",
    )
    batch: int | None = option(
        type=positive, metavar="B", help="global batch size; it binds the batch dimension, or replaces a static one"
    )
    hardware: str = option(
        "a100-80",
        sent={"description": "A name of GET /v1/hardware."},
        metavar="NAME|FILE",
        help="the hardware profile (see `planner hardware`); for several kinds of devices: NAME:COUNT+NAME:COUNT",
    )
    nodes: int | None = option(
        type=positive, metavar="K", help="number of servers; default: as many as full servers need"
    )
    mesh: str | None = option(
        sent={"pattern": r"^[1-9][0-9]{0,4}(x[1-9][0-9]{0,4}){0,3}$", "examples": ["2x8"]},
        metavar="AxB",
        help="search this logical mesh alone; default: all meshes of one and two axes",
    )
    mode: Mode | None = option(
        choices=get_args(Mode),
        help="what the plan is for; default: training where the model has a loss, inference otherwise",
    )
    memory_limit: int | None = option(
        sent={"examples": ["64GiB"]},
        type=byte_size,
        metavar="SIZE",
        help="memory that a plan may use on each device; default: what the profile leaves usable",
    )
    optimizer: Optimizer = option(
        "adam", choices=get_args(Optimizer), help="optimizer of the training, whose state takes memory; default: adam"
    )
    precision: Precision = option(
        "bf16", choices=get_args(Precision), help="number format of the computation; default: bf16"
    )
    recompute: Recompute = option(
        "auto",
        choices=get_args(Recompute),
        help="recompute equal layers in the backward pass; auto: on meshes where no plan fits without recomputation",
    )
    stages: int = option(
        1,
        sent={"le": MOST_DEVICES},
        type=positive,
        metavar="S",
        help="number of pipeline stages, each of which runs on an S-th of the devices",
    )
    micro_batches: int | None = option(
        type=positive,
        metavar="M",
        help="number of micro-batches of the batch; default: 1, in a pipeline up to 4 a stage",
    )
    constraints: Path | None = option(
        sent=False,
        type=plan_file,
        metavar="FILE",
        help="file of constraints that the plan must satisfy: YAML, JSON, or a plan.json or its folder",
    )
    pin: list[str] = option(
        [],
        sent={"description": "As `planner search --pin`; may be repeated.", "max_length": 200},
        action="append",
        metavar="'PATTERN KEY=VALUE ...'",
        help="one constraint, as '*.fc1.* m=x n=y', '*.weight stored=[_,x]' or rest=data_parallel; may be repeated",
    )
    strategy: str | None = option(
        metavar="SCHEME[:KEY=VALUE,…]",
        help="pin a known configuration, written as for `planner evaluate`: megatron:tp=4,pp=2,micro_batch=1, fsdp, …",
    )
    risk: Risk = option(
        "expected",
        recorded=False,
        choices=get_args(Risk),
        help="which end of the predicted step time decides among uniform configurations; upper: the upper end of its "
        "interval, which is wider where no published measurement is alike",
    )
    space: Space | None = option(
        choices=get_args(Space),
        help="what is searched; whole: stages, micro-batches, ZeRO and recomputation are searched as well, the same "
        "for all layers; default: whole where the whole batch hardly fits at once, else operators; operators with "
        "--strategy: operators are laid out one by one within the strategy's micro-batches and stages where that makes "
        "the step shorter",
    )
    solver: SolverName = option("auto", choices=SOLVERS, help=lambda: f"how the search solves; {solver_help(SOLVERS)}")
    time_limit: float | None = option(
        sent={"gt": 0, "le": 86400},
        keyed=False,
        type=seconds,
        metavar="S",
        help="seconds that the whole search may take",
    )
    target: Target = option(
        "any",
        sent={"description": "Only plans that this runtime can express."},
        choices=get_args(Target),
        help="search only plans that this framework can express; default: the target of --emit, else any",
    )
    reproducible: bool = option(
        False,
        keyed=False,
        action="store_true",
        help="use no limits in seconds, so that the same request always gives the same bytes",
    )
    top_k: int = option(
        1,
        sent={"le": 16},
        recorded=False,
        type=positive,
        metavar="K",
        help="give the best plan of each of the K best meshes",
    )
    front: bool = option(
        False,
        sent=False,
        recorded=False,
        action="store_true",
        help="also list which configuration is the fastest for each smaller amount of memory per device",
    )
    warm_start: Path | None = option(
        sent=False,
        recorded=False,
        type=plan_file,
        metavar="PLAN",
        help="begin the search with a plan.json that was made before",
    )
    save_problem: Path | None = option(
        sent=False,
        recorded=False,
        keyed=False,  # it is written by a search, and changes nothing in its answer
        type=Path,
        metavar="DIR",
        help="also write problem.json.gz and certificate.json, with which `planner check` proves the objective and its "
        "bound; they describe the chosen mesh only, and the cache is not used",
    )
    save_all_meshes: bool = option(
        False,
        sent=False,
        recorded=False,
        keyed=False,
        action="store_true",
        help="also write such a pair of files for every other mesh; it goes with --save-problem",
    )

    @classmethod
    def of(cls, options: argparse.Namespace) -> SearchRequest:
        """What the options of the command line ask for, parsed by `add_options`."""
        return cls(**{f.name: getattr(options, f.name) for f in fields(cls) if hasattr(options, f.name)})

    def trains(self, has_loss: bool) -> bool:
        """Whether the plan is for training, of a model with or without a loss."""
        return has_loss if self.mode is None else self.mode == "training"

    @classmethod
    def sent(cls, model: Path, options: Mapping[str, Any], constraints: Path | None = None) -> SearchRequest:
        """What is asked of a service: values are read as the command line reads them.

        UsageError where there is no such option, or it has no such value.
        """
        refuse_others(options, {*sent_of(cls), "devices"})
        if "devices" not in options:
            raise UsageError("--devices: expected a number of devices, found none")
        given = {name: read(cls, name, value) for name, value in options.items() if name != "devices"}
        return cls(**given, devices=str(options["devices"]), model=model, constraints=constraints)

    @property
    def counts(self) -> list[int]:
        """The counts of devices.  UsageError where they are not so written, or too many."""
        try:
            counts = [positive(part) for part in self.devices.split(",")]
        except argparse.ArgumentTypeError as e:
            raise UsageError(f"--devices {self.devices}: {e}") from e
        if max(counts) > MOST_DEVICES:
            raise UsageError(f"--devices {max(counts)}: expected at most {MOST_DEVICES}; plan one replica of the job")
        return counts

    def check(self) -> None:
        """UsageError where options contradict each other."""
        counts = self.counts
        if self.mesh and len(counts) > 1:
            raise UsageError("--mesh fits one number of devices; give one --devices with it")
        if self.time_limit is not None and not 0 < self.time_limit < 10**7:
            raise UsageError(f"--time-limit {self.time_limit:g}: expected a positive number of seconds")
        if self.reproducible and self.time_limit is not None:
            raise UsageError("--reproducible forbids --time-limit: a limit in seconds gives other plans on other days")
        if self.strategy is not None and (self.stages > 1 or self.micro_batches or self.mesh):
            raise UsageError(
                "--strategy says stages, micro-batches and mesh itself (pp, micro_batch); leave the others out"
            )
        if self.strategy is not None and len(counts) > 1:
            raise UsageError("--strategy fits one number of devices; give one --devices with it")
        for devices in counts:
            if devices % self.stages:
                raise UsageError(f"--stages {self.stages}: expected a divisor of --devices {devices}")
        if self.save_all_meshes and self.save_problem is None:
            raise UsageError("--save-all-meshes says what --save-problem writes; give --save-problem DIR with it")

    @property
    def keyed(self) -> dict[str, Any]:
        """What the answer depends on beside the model and the devices, by name."""
        return {f.name: getattr(self, f.name) for f in options_of(type(self)) if f.metadata["keyed"]}

    @property
    def given(self) -> dict[str, Any]:
        """Options that are not left to their defaults, by name."""
        return {f.name: value for f in options_of(type(self)) if (value := getattr(self, f.name)) != default_of(f)}

    @property
    def service_options(self) -> dict[str, Any]:
        """Of these, those that a service is asked for."""
        return {name: value for name, value in self.given.items() if name in sent_of(type(self))}

    @property
    def decided(self) -> dict[str, bool]:
        """Options that decide on operators: whether they are given."""
        return {
            "--mesh": self.mesh is not None,
            "--constraints": self.constraints is not None,
            "--pin": bool(self.pin),
            "--solver": self.solver != "auto",
            "--warm-start": self.warm_start is not None,
            "--save-problem": self.save_problem is not None,
        }


# Beside the devices, the options of a service.
SENT: Final = sent_of(SearchRequest)
