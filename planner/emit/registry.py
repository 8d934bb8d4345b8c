"""Every target that a plan is emitted for, and every format that is read back; an emitter is added here and in its own
package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from planner.emit.emission import Emission
from planner.emit.names import Name, NameRules
from planner.errors import InputError, UsageError
from planner.targets import IN_GROUPS, IN_PARTS, RUNS_COPIES

if TYPE_CHECKING:
    import onnx

    from planner.clock import Configuration
    from planner.emit.hosts import Server
    from planner.emit.reading import Reading
    from planner.emit.uniform import Model
    from planner.ir import Graph
    from planner.planning.document import PlanDocument

__all__ = ["FORMATS", "TARGETS", "Given", "emit", "read", "unsupported"]


@dataclass(frozen=True)
class Given:
    """What a user gave beside the plan: the files behind --names, --hosts and --model, where they did.  `named`: names
    have to be the network's; else it is only asked whether the target takes such a plan."""

    plan: PlanDocument
    names_file: Path | None = None
    hosts_file: Path | None = None
    model_file: Path | None = None
    named: bool = True

    @cached_property
    def names(self) -> Mapping[str, Name]:
        """ONNX name of every parameter → name in the network.  InputError where the network cannot have one of it."""
        from planner.emit.names import read_names
        from planner.emit.reading import places_of_plan

        rules = NameRules() if self.names_file is None else read_names(self.names_file)
        places = places_of_plan(self.plan)
        names = rules.apply({n: tuple(p.shape) for n, p in self.plan.parameters.items()}, places)
        if self.named:
            rules.check(names, places)
        return names

    @cached_property
    def servers(self) -> list[Server]:
        from planner.emit.hosts import read_hosts
        from planner.emit.mindspore import read_rank_table

        if self.hosts_file is None:
            return []
        return read_rank_table(self.hosts_file) if self.hosts_file.suffix == ".json" else read_hosts(self.hosts_file)

    @cached_property
    def graph(self) -> Graph:
        """The model as it was planned.  InputError where it is another one."""
        from planner.frontends import load_model
        from planner.planning.programs import program_of

        assert self.model_file is not None
        graph = load_model(self.model_file, bind=self.plan.model.bind, batch=self.plan.model.batch)
        program_of(self.plan, graph)
        return graph

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The model's file as it stands, external data left where it is."""
        from planner.emit.onnx.file import load_file

        assert self.model_file is not None
        return load_file(self.model_file)


@dataclass(frozen=True, slots=True)
class Target:
    """`takes`: the options that it reads; `needs`: those without which it cannot do; `orders`: of the passes of a
    pipeline, those that it can express, or leaves to the user's script; None: it says none, or takes no pipeline.
    `says`: what of how a step is run (`schedule.run`) its files say, by key, or by key and value.  `words`: the module
    whose `unsupported` says what of a uniform configuration it cannot express; empty: nothing.  `weightless`: of the
    model it reads no weights, so that the file that lies beside a plan will do."""

    emit: Callable[[Given], Emission]
    takes: frozenset[str] = field(default=frozenset({"names"}))
    needs: frozenset[str] = frozenset()
    orders: frozenset[str] | None = frozenset({"1f1b"})
    says: frozenset[str] = frozenset()
    words: str = ""
    weightless: bool = False


def _mindspore(given: Given) -> Emission:
    from planner.emit.mindspore import check_parameter_names, emit_mindspore

    if given.named:
        check_parameter_names(given.names)
    return emit_mindspore(given.plan, given.names, servers=given.servers)


def _torch(given: Given) -> Emission:
    from planner.emit.torch import emit_torch

    assert given.model_file is not None
    return emit_torch(given.plan, given.graph, given.model_file, servers=given.servers)


def _dtensor(given: Given) -> Emission:
    from planner.emit.dtensor import emit_dtensor

    return emit_dtensor(given.plan, given.names, servers=given.servers)


def _huggingface(given: Given) -> Emission:
    from planner.emit.huggingface import emit_huggingface

    return emit_huggingface(given.plan, given.names, servers=given.servers)


def _onnx(given: Given) -> Emission:
    from planner.emit.onnx import emit_onnx

    return emit_onnx(given.model, given.plan, given.graph)


def _torchtitan(given: Given) -> Emission:
    from planner.emit.torchtitan import emit_torchtitan

    return emit_torchtitan(given.plan, servers=given.servers)


def _deepspeed(given: Given) -> Emission:
    from planner.emit.deepspeed import emit_deepspeed

    return emit_deepspeed(given.plan, given.names, servers=given.servers)


def _megatron(given: Given) -> Emission:
    from planner.emit.megatron import emit_megatron

    return emit_megatron(given.plan, servers=given.servers)


def _onnx_ranks(given: Given) -> Emission:
    from planner.emit.onnx.ranks import emit_onnx_ranks

    return emit_onnx_ranks(given.model, given.plan, given.graph)


def _mindformers(given: Given) -> Emission:
    from planner.emit.mindformers import emit_mindformers

    return emit_mindformers(given.plan, servers=given.servers)


def _hyper_parallel(given: Given) -> Emission:
    from planner.emit.hyper_parallel import emit_hyper_parallel

    return emit_hyper_parallel(given.plan, given.names)


_NAMES_AND_HOSTS: Final = frozenset({"names", "hosts"})
_HOSTS: Final = frozenset({"hosts"})
_MODEL: Final = frozenset({"model"})
_ZERO: Final = frozenset({"zero"})
_COPIES: Final = frozenset({"copies"})
TARGETS: Final[Mapping[str, Target]] = {
    "mindspore": Target(
        _mindspore, _NAMES_AND_HOSTS, orders=frozenset({"1f1b", "gpipe"}), says=_COPIES | _ZERO, words="mindspore"
    ),
    "mindformers": Target(
        _mindformers,
        _HOSTS,
        orders=frozenset({"1f1b", "interleaved"}),
        says=_COPIES | {"recompute=full", "recompute_layers"},
        words="mindformers",
    ),
    "hyper-parallel": Target(_hyper_parallel, words="hyper_parallel"),
    "torch": Target(
        _torch, _HOSTS | _MODEL, needs=_MODEL, orders=None, says=_COPIES | _ZERO, words="torch", weightless=True
    ),
    "dtensor": Target(_dtensor, _NAMES_AND_HOSTS, orders=frozenset({"1f1b", "gpipe"}), words="dtensor"),
    "huggingface": Target(_huggingface, _NAMES_AND_HOSTS, says=_ZERO, words="huggingface"),
    "torchtitan": Target(
        _torchtitan, _HOSTS, orders=frozenset({"1f1b", "gpipe", "interleaved", "zb-v"}), says=_ZERO, words="torchtitan"
    ),
    "deepspeed": Target(_deepspeed, _NAMES_AND_HOSTS, orders=None, says=_ZERO, words="deepspeed"),
    "megatron": Target(
        _megatron,
        _HOSTS,
        orders=frozenset({"1f1b", "interleaved"}),
        says=frozenset({"recompute=selective", "recompute=full", "recompute_blocks"}),
        words="megatron",
    ),
    "onnx": Target(_onnx, _MODEL, needs=_MODEL, orders=None),
    "onnx-ranks": Target(_onnx_ranks, _MODEL, needs=_MODEL, orders=None, words="onnx.ranks"),
}


def unsupported(target: str, c: Configuration, model: Model) -> str:
    """What of a uniform configuration `target` cannot express; empty where it can express all of it, or is `any`."""
    if target == "any":
        return ""
    found = TARGETS[target]
    if c.pp > 1 and found.orders is not None and c.order not in found.orders:
        return f"the schedule {c.order} (it has {', '.join(sorted(found.orders))})"
    if c.copies > 1 and target not in RUNS_COPIES:
        return "copies of a micro-batch that interleave"
    if c.offloads:
        return "activations that wait in the host's memory"
    if c.shard_ranks not in (None, c.dp * c.cp) and target not in IN_GROUPS:
        return f"ZeRO over groups of {c.shard_ranks} ranks"
    if not found.words:
        return ""
    words: str = import_module(f"planner.emit.{found.words}").unsupported(c, model)
    return words


def check_devices(target: str, devices: int, per_server: int | None, hardware: str) -> None:
    """Before a search: InputError where the files of no plan for so many devices could be written, since they do not
    fill their servers, or the runtime takes other numbers."""
    from planner.emit.launch import filled

    if "hosts" not in TARGETS[target].takes:
        return
    hosts = filled(devices, per_server)
    if target == "mindspore" and hardware.startswith("ascend"):
        from planner.emit.mindspore.rank_table import check_counts

        check_counts(hosts)


def emit(target: str, given: Given) -> Emission:
    """The files of a plan for `target`, a key of TARGETS.

    UsageError where an option is given that the target does not read, or one lacks; InputError where the plan has no
    words there.
    """
    from planner.planning.execution import unusual

    found = TARGETS[target]
    options = {"names": given.names_file, "hosts": given.hosts_file, "model": given.model_file}
    for option, value in options.items():
        if value is not None and option not in found.takes:
            readers = ", ".join(n for n, t in TARGETS.items() if option in t.takes)
            raise UsageError(f"--{option}: --target {target} does not read it ({readers} would); leave it out")
        if value is None and option in found.needs:
            raise UsageError(f"--target {target}: needs --{option.upper() if option != 'model' else 'model MODEL'}")
    if "model" not in found.needs:
        check_readers(given.plan)
    if target not in IN_PARTS:
        check_parts(given.plan, target)
    check_order(given.plan, target)
    emission = found.emit(given)
    run = unusual(given.plan, known=found.says)
    if not run:
        return emission
    line = f"the predicted time assumes {', '.join(run)}, which these files do not say: set it in your launcher"
    return replace(emission, lost=(*emission.lost, line))


def check_order(plan: PlanDocument, target: str) -> None:
    """InputError where the passes of a pipeline run in an order that the target cannot express."""
    order = plan.schedule.pass_order
    orders = TARGETS[target].orders
    if plan.schedule.stages > 1 and orders is not None and order not in orders:
        known = ", ".join(sorted(orders))
        able = ", ".join(sorted(name for name, t in TARGETS.items() if order in (t.orders or ()))) or "none"
        raise InputError(
            f"plan: its micro-batches run in the order {order}; {target} has {known} (targets that have {order}: "
            f"{able}): search with another schedule, or emit for another target"
        )


def check_parts(plan: PlanDocument, target: str) -> None:
    """InputError where a parameter is split in equal parts, which only some targets can express."""
    for name, p in plan.parameters.items():
        for layout in (p.stored, *p.compute):
            if layout.parts:
                able = ", ".join(sorted(IN_PARTS - {"any"}))
                raise InputError(
                    f"plan: parameter {name} lies as {layout.layout()}, split in each of its equal parts (queries, "
                    f"keys and values of one product). `planner run` executes that, and {able} can express it; "
                    f"{target} cannot: search again with --target {target}, which offers no such split"
                )


def check_readers(plan: PlanDocument) -> None:
    """InputError where the plan does not say who reads a parameter: older plans do not."""
    for name, p in plan.parameters.items():
        if not p.readers or not p.compute:
            raise InputError(f"plan: parameter {name}: its readers are not said; search again with this version")


Reader = Callable[[Path, "Graph", NameRules], "Reading"]


def _read_mindspore(path: Path, graph: Graph, rules: NameRules) -> Reading:
    from planner.emit.mindspore.reading import read_strategies

    return read_strategies(path, graph, rules)


def _read_onnx(path: Path, graph: Graph, rules: NameRules) -> Reading:
    from planner.emit.onnx.reading import read_annotations

    return read_annotations(path, graph, rules)


def _read_huggingface(path: Path, graph: Graph, rules: NameRules) -> Reading:
    from planner.emit.huggingface.reading import read_distributed_config

    return read_distributed_config(path, graph, rules)


def _read_dtensor(path: Path, graph: Graph, rules: NameRules) -> Reading:
    from planner.emit.dtensor.reading import read_placements

    return read_placements(path, graph, rules)


def _read_layout(path: Path, graph: Graph, rules: NameRules) -> Reading:
    from planner.emit.hyper_parallel.reading import read_layouts

    return read_layouts(path, graph, rules)


FORMATS: Final[Mapping[str, Reader]] = {
    "mindspore": _read_mindspore,
    "onnx": _read_onnx,
    "huggingface": _read_huggingface,
    "dtensor": _read_dtensor,
    "layout": _read_layout,
}


def read(form: str, path: Path, graph: Graph, names_file: Path | None) -> Reading:
    """What a file of another system says of `graph`, as constraints of our search; `form` is a key of FORMATS.

    InputError where the file is not of that form, or does not fit the graph.
    """
    from planner.emit.names import read_names

    return FORMATS[form](path, graph, NameRules() if names_file is None else read_names(names_file))
