"""Laws of predicted time and memory over random configurations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.builder import build
from planner.clock.configuration import LOSSES
from planner.clock.links import Links
from planner.clock.passes import Passes
from planner.clock.stages import chunks
from planner.cost_models import HardwareProfile, load_profile, optimizer_seconds
from planner.cost_models.kernels import KernelArrays, kernel_seconds
from planner.cost_models.pipeline import ChunkTimes, pipeline_seconds
from planner.errors import UsageError
from planner.evaluate import Configuration, Prediction, predict, workload_of_configuration
from planner.frontends import import_bytes
from planner.ir import Graph
from tests.unit.evaluate_graphs import gpt, small, traced, workload

MACHINES = ("a100-80", "h100", "v100", "b200")
RECOMPUTES = ("none", "selective", "products", "full")


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    pick = st.sampled_from
    tp, pp, schedule = draw(pick((1, 2, 4))), draw(pick((1, 2, 4))), draw(pick(("1f1b", "gpipe", "zb-h1")))
    return Configuration(
        dp=draw(pick((1, 4))),
        tp=tp,
        pp=pp,
        cp=draw(pick((1, 2))),
        zero=draw(pick((0, 1, 2, 3))),
        sequence_parallel=draw(st.booleans()),
        recompute=draw(pick(RECOMPUTES)),
        micro_batches=draw(pick((1, 2, 4, 8))),
        schedule=schedule,
        attention=draw(pick(("fused", "unfused", "native"))),
        loss=draw(st.sampled_from(LOSSES)),
        frozen=draw(st.booleans()),
        precision=draw(pick(("bf16", "fp32"))),
        overlap_gradients=draw(st.booleans()),
        overlap_parameters=draw(st.booleans()),
        overlap_tensor=draw(st.booleans()),
        overlap_pipeline=draw(st.booleans()),
    )


def small_batch() -> Graph:
    return gpt(2, batch=8, seq=1024, hidden=1024, heads=8, vocab=8192)


def unhidden(c: Configuration) -> Configuration:
    """`c` with every tensor-parallel transfer in the way: what hides behind products shows when they get shorter while
    the host, which launches no faster, sets the pace."""
    return c.with_(overlap_tensor=False, sequence_parallel=False, cp=1)


def priced(c: Configuration, profile: HardwareProfile | str = "a100-80", layers: int = 4) -> Prediction:
    machine = load_profile(profile) if isinstance(profile, str) else profile
    return predict(workload(small(layers), c), c, machine)


def faster(profile: HardwareProfile, *, wires: float = 1.0, peak: float = 1.0) -> HardwareProfile:
    """The machine with links, or matrix and vector units, that many times as fast."""
    device = profile.device
    assert device is not None
    rates = {
        name: {t: v * peak for t, v in getattr(device, name).items()}
        for name in ("matmul_flops_per_s", "vector_flops_per_s")
    }
    server, network = profile.server, profile.network
    assert server is not None
    assert server.bandwidth_bytes_per_s is not None
    assert network is not None
    links: dict[str, Any] = {
        "server": replace(server, bandwidth_bytes_per_s=server.bandwidth_bytes_per_s * wires),
        "network": replace(network, bandwidth_bytes_per_s=network.bandwidth_bytes_per_s * wires),
    }
    digest = f"{profile.digest}/{wires}/{peak}"
    return replace(profile, device=replace(device, **rates), digest=digest, **links)


@settings(max_examples=60, deadline=None)
@given(configurations(), st.sampled_from(MACHINES))
def test_breakdown_and_interval_agree_with_the_prediction(c: Configuration, machine: str) -> None:
    p = priced(c, machine)
    assert sum(p.breakdown.values()) == pytest.approx(p.step_time_s, rel=1e-9)
    assert sum(p.memory.values()) == pytest.approx(p.allocated_bytes, rel=1e-12)
    assert 0 < p.time_low_s <= p.step_time_s <= p.time_high_s
    assert p.reserved_bytes >= p.allocated_bytes
    assert min(p.memory.values()) >= 0


@settings(max_examples=50, deadline=None)
@given(configurations(), st.integers(1, 8))
def test_more_micro_batches_take_longer(c: Configuration, more: int) -> None:
    assert priced(c.with_(micro_batches=c.micro_batches + more)).step_time_s > priced(c).step_time_s


@settings(max_examples=50, deadline=None)
@given(configurations(), st.floats(1.1, 8))
def test_faster_units_never_take_longer(c: Configuration, factor: float) -> None:
    a100, c = load_profile("a100-80"), unhidden(c)
    if c.schedule.startswith("zb"):
        c = c.with_(schedule="1f1b", virtual_stages=1)  # fixed orders: other proportions of B and W may fit worse
    assert priced(c, faster(a100, peak=factor)).step_time_s <= priced(c, a100).step_time_s * (1 + 1e-12)


@settings(max_examples=50, deadline=None)
@given(configurations(), st.floats(1.1, 8))
def test_faster_links_never_take_longer(c: Configuration, factor: float) -> None:
    a100 = load_profile("a100-80")
    assert priced(c, faster(a100, wires=factor)).step_time_s <= priced(c, a100).step_time_s * (1 + 1e-12)


def test_links_and_units_matter() -> None:
    a100, c = load_profile("a100-80"), Configuration(dp=8, tp=4)
    usual = priced(c, a100).step_time_s
    assert priced(c, faster(a100, wires=4)).step_time_s < usual
    many = Configuration(micro_batch=8)
    w = workload(small_batch(), many)
    assert predict(w, many, faster(a100, peak=4)).step_time_s < 0.8 * predict(w, many, a100).step_time_s


@settings(max_examples=50, deadline=None)
@given(configurations())
def test_memory_falls_with_the_tensor_parallel_degree(c: Configuration) -> None:
    sizes = [priced(c.with_(tp=tp)).allocated_bytes for tp in (1, 2, 4)]
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=40, deadline=None)
@given(configurations())
def test_each_level_of_zero_holds_no_more_state(c: Configuration) -> None:
    held = [priced(c.with_(zero=z)).memory for z in (0, 1, 2, 3)]
    state = [m["weights"] + m["gradients"] + m["optimizer"] for m in held]
    assert state == sorted(state, reverse=True)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("overlapped", [False, True])
def test_gradients_that_are_divided_are_scattered_in_every_micro_batch(stages: int, overlapped: bool) -> None:
    """A rank that holds its part of the gradients alone cannot add them up before they are scattered."""
    base = Configuration(dp=8, pp=stages, overlap_gradients=overlapped)

    def more(m: int) -> float:
        """Seconds that ZeRO 2 takes beyond ZeRO 1."""
        one, two = (priced(base.with_(zero=z, micro_batches=m)).step_time_s for z in (1, 2))
        return two - one

    assert more(1) == pytest.approx(0, abs=1e-12)
    assert 0 < more(2) < more(4) < more(8)
    if stages == 1 and not overlapped:  # one scatter more for every further micro-batch
        assert more(8) == pytest.approx(7 * more(2), rel=1e-9)
        assert priced(base.with_(zero=2, micro_batches=4)).breakdown["scattering"] > 0


@settings(max_examples=40, deadline=None)
@given(configurations())
def test_recomputation_trades_time_for_activations(c: Configuration) -> None:
    none, selective, full = (priced(c.with_(recompute=r)) for r in ("none", "selective", "full"))
    activations = [p.memory["activations"] for p in (none, selective)]
    assert activations == sorted(activations, reverse=True)
    assert full.memory["activations"] <= none.memory["activations"]
    assert none.step_time_s <= selective.step_time_s * (1 + 1e-12)
    assert none.step_time_s < full.step_time_s


@pytest.mark.parametrize("fuse", [True, False])
def test_the_core_of_an_unfused_attention_is_computed_again(fuse: bool) -> None:
    """Also where every operator is a kernel by itself."""
    apart = Configuration(attention="unfused", fuse=fuse)
    none, selective = (priced(apart.with_(recompute=r)) for r in ("none", "selective"))
    joined = priced(apart.with_(attention="fused"))
    assert selective.step_time_s > none.step_time_s
    assert selective.memory["activations"] < none.memory["activations"]
    assert joined.memory["activations"] < none.memory["activations"]
    assert joined.step_time_s < none.step_time_s


@pytest.mark.parametrize("machine", ["h200", "a100-80"])
def test_a_padded_vocabulary_is_faster_where_a_profile_says_what_alignment_costs(machine: str) -> None:
    def step(vocab: int, **c: Any) -> float:
        one = Configuration(**c)
        return predict(workload(gpt(2, vocab=vocab, hidden=256, heads=4), one), one, load_profile(machine)).step_time_s

    odd, even, padded = (step(v) for v in (8185, 8188, 8192))
    if machine == "h200":
        assert padded < even < odd
        assert step(8185, precision="fp32") <= step(8192, precision="fp32")
    else:
        assert odd < even < padded


@settings(max_examples=40, deadline=None)
@given(configurations())
def test_frozen_weights_train_faster_in_less_memory(c: Configuration) -> None:
    trained, frozen = (priced(unhidden(c).with_(frozen=f)) for f in (False, True))
    # Orders that run gradients of weights apart fill their bubbles with them, and share the host's delay out by seconds
    # of kernels, so that without them a pass on the way may be longer.
    if not c.order.startswith("zb"):
        assert frozen.step_time_s < trained.step_time_s
    assert frozen.allocated_bytes < trained.allocated_bytes


@settings(max_examples=15, deadline=None)
@given(configurations(), st.randoms(use_true_random=False))
def test_names_of_tensors_do_not_matter(c: Configuration, random: Any) -> None:
    names: dict[str, str] = {"": ""}

    def new(name: str) -> str:
        return names.setdefault(name, f"t{random.getrandbits(64)}_{len(names)}")

    def renamed(batch: int) -> Graph:
        sizes = {"layers": 4, "batch": batch, "seq": 512, "hidden": 1024, "heads": 8, "vocab": 8192}
        model = build("gpt", sizes)
        for node in model.graph.node:
            node.input[:] = [new(t) for t in node.input]
            node.output[:] = [new(t) for t in node.output]
            node.name = new(f"node {node.name}")
        for value in (*model.graph.input, *model.graph.output, *model.graph.value_info, *model.graph.initializer):
            value.name = new(value.name)
        return import_bytes(model.SerializeToString(), name="renamed")

    machine = load_profile("a100-80")
    p, q = priced(c), predict(workload_of_configuration(renamed(c.dp), c, machine), c, machine)
    assert q.step_time_s == pytest.approx(p.step_time_s, rel=1e-12)
    assert q.allocated_bytes == pytest.approx(p.allocated_bytes, rel=1e-12)


@pytest.mark.parametrize("machine", MACHINES)
def test_one_device_runs_its_kernels_one_after_the_other(machine: str) -> None:
    profile, c = load_profile(machine), Configuration(micro_batches=3, precision="fp16")
    assert profile.device is not None
    w = workload(small(), c)
    kernels = [k for u in w.units for part in (u.forward, u.backward) for k, n in part.items() for _ in range(n)]
    seconds = float(kernel_seconds(profile, KernelArrays.of(kernels), matrix_type="fp16", type="fp16").sum())
    update = float(optimizer_seconds(profile, w.parameters, precision="fp16", optimizer="adam", launches=0))
    p = predict(w, c, profile)
    expected = 3 * seconds + p.breakdown["host"] + update + profile.host.step_overhead_s
    assert p.step_time_s == pytest.approx(expected, rel=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from((1, 2, 4)), st.booleans(), st.sampled_from(RECOMPUTES), st.sampled_from((4, 6, 8)))
def test_twice_the_layers_add_as_many_blocks_seconds(tp: int, sequence: bool, recompute: Any, layers: int) -> None:
    c = Configuration(tp=tp, sequence_parallel=sequence, recompute=recompute)
    one, two, three = (priced(c, layers=layers * n).step_time_s for n in (1, 2, 3))
    assert three - two == pytest.approx(two - one, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from((2, 4)), st.integers(1, 16), st.sampled_from(("1f1b", "gpipe")))
def test_equal_stages_take_the_pipelines_closed_form(pp: int, m: int, schedule: Any) -> None:
    """(m + p - 1) (F + B), Narayanan et al. 2021; here the slowest stage bounds it from both sides."""
    c = Configuration(pp=pp, micro_batches=m, schedule=schedule, overlap_pipeline=True)
    profile, w = load_profile("a100-80"), workload(small(8), c)
    assert profile.device is not None
    passes = Passes(w, c, profile, Links(w.mesh, c.pp, profile))
    times = [
        (sum(passes.units[i].forward.seconds for i in part), sum(passes.units[i].back for i in part))
        for part in chunks(w, pp)
    ]
    p = predict(w, c, profile)
    spent = p.step_time_s - p.breakdown["exchange"] - p.breakdown["update"] - p.breakdown["overhead"]
    fastest, slowest = min(map(sum, times)), max(map(sum, times))
    sending = 2 * (pp - 1) * (m + pp) * 1e-3
    assert m * slowest + (pp - 1) * fastest <= spent * (1 + 1e-9)
    assert spent <= (m + pp - 1) * (max(f for f, _ in times) + max(b for _, b in times)) + sending
    equal = [[ChunkTimes(1.0, 2.0)] for _ in range(pp)]
    assert pipeline_seconds(schedule, equal, m).total_s == pytest.approx(3.0 * (m + pp - 1))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 3))
def test_chunks_cut_the_model_once_and_evenly(layers: int, pp: int, vpp: int) -> None:
    w = traced(small(4))
    u = next(x for x, r in zip(w.units, w.repeated, strict=True) if r)
    long = replace(w, units=(w.units[0], *[u] * layers, w.units[-1]), repeated=(False, *[True] * layers, False))
    if layers < pp * vpp:
        with pytest.raises(UsageError, match=rf"pp \* virtual_stages = {pp * vpp} .* {layers} layers"):
            chunks(long, pp * vpp)
        return
    parts = chunks(long, pp * vpp)
    assert [i for part in parts for i in part] == list(range(layers + 2))
    sizes = [sum(long.repeated[i] for i in part) for part in parts]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


def test_a_profile_without_a_device_is_refused() -> None:
    bare = replace(load_profile("a100-80"), device=None)
    with pytest.raises(UsageError, match="no device"):
        predict(traced(small()), Configuration(), bare)


@pytest.mark.parametrize(("zero", "kinds"), [(0, ["all_reduce"]), (1, ["reduce_scatter", "all_gather"])])
def test_exchange_of_data_parallel_ranks_is_its_collectives_in_turn(zero: Any, kinds: list[str]) -> None:
    c, profile = Configuration(dp=8, zero=zero), load_profile("a100-80")
    w = workload(small(), c)
    ranks = Links(w.mesh, 1, profile)
    widths = {"all_gather": 2}  # updated weights; gradients are summed in single precision
    expected = sum(ranks.seconds(kind, ("x",), u.weights * widths.get(kind, 4)) for kind in kinds for u in w.units)
    assert predict(w, c, profile).breakdown["exchange"] == pytest.approx(expected)
