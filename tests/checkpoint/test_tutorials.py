"""The cases of MindSpore's two tutorials about checkpoints, by the command line.

Figures of the first: "Saving and Loading Models in Hybrid Parallel Mode" (r1.5), which prints the moments of four
ranks, the merged ones and those of two ranks (the merged weights printed there do not agree with its own inputs).  The
second, "Distributed Resilience Training and Inference" (r2.0), turns four-way model parallelism with two-way data and
optimizer parallelism into four-way model parallelism, and two stages of four ranks into four ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from planner.checkpoint.layouts import read_layouts
from planner.cli.main import main
from planner.emit.mindspore.arrangement import Arrangement
from planner.emit.mindspore.strategy_map import OperatorStrategy, ParameterLayout, StrategyMap, to_json, to_protobuf
from planner.errors import InputError
from tests.checkpoint.layouts import Whole, write_file
from tests.checkpoint.test_transforming import arrays_of

MOMENTS = np.array([
    [0.2567724, -0.07485991, 0.282002, 0.2456022, 0.454939, 0.619168, 0.18964815, 0.45714882],
    [0.25946522, 0.24344791, 0.45677605, 0.3611395, 0.23378398, 0.41439137, 0.5312468, 0.4696194],
    [0.2417504, 0.28193963, 0.06713893, 0.21510397, 0.23380603, 0.11424308, 0.0218009, -0.11969765],
    [0.45955992, 0.22664294, 0.01990281, 0.0731914, 0.27125207, 0.27298513, -0.01716102, -0.15327111],
    [0.03440702, 0.41419312, 0.24817684, 0.30765256, 0.48516113, 0.24904746, 0.57791173, 0.00955463],
    [0.13458519, 0.6690533, 0.49259356, 0.28319967, 0.25951773, 0.16777472, 0.45696738, 0.24933104],
    [0.14152306, 0.5040985, 0.24455397, 0.10907605, 0.11319532, 0.19538902, 0.01208619, 0.40430856],
    [-0.7773164, -0.47611716, -0.6041424, -0.6144473, -0.2651842, -0.31909415, -0.4510405, -0.12860501],
], np.float32)  # fmt: skip


Form = Callable[[StrategyMap], bytes]


def strategy(path: Path, layouts: dict[str, Arrangement], stage: int = 0, form: Form = to_protobuf) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    operators = {f"MatMul_{n}": OperatorStrategy(stage, ((1, 1), (1, 1))) for n in layouts}
    parameters = {n: ParameterLayout(a) for n, a in layouts.items()}
    path.write_bytes(form(StrategyMap(operators, parameters, stage + 1)))
    return path


def test_hybrid_parallel_checkpoints_of_four_ranks_become_those_of_two(tmp_path: Path) -> None:
    rows = {n: strategy(tmp_path / f"strategy{n}.ckpt", {"weight": Arrangement((n,), (0, -1))}) for n in (4, 2)}
    weight = np.arange(64, dtype=np.float32).reshape(8, 8)
    for rank in range(4):
        part = slice(2 * rank, 2 * rank + 2)
        held = {"weight": weight[part], "learning_rate": np.array([0.01], np.float32),
                "momentum": np.array([0.9], np.float32), "moments.weight": MOMENTS[part]}  # fmt: skip
        write_file(tmp_path / f"train/rank_{rank}/CKP_1-4_32.ckpt", held)
    merged, after = tmp_path / "CKP-Integrated_1-4_32.ckpt", tmp_path / "after"
    assert main(["checkpoint", "merge", str(tmp_path / "train"), str(merged), "--from", str(rows[4])]) == 0
    found = arrays_of(merged)
    np.testing.assert_array_equal(found["moments.weight"], MOMENTS)
    np.testing.assert_array_equal(found["weight"], weight)
    assert (found["learning_rate"], found["momentum"]) == (np.float32(0.01), np.float32(0.9))
    assert main(["checkpoint", "split", str(merged), str(after), "--to", str(rows[2])]) == 0
    for rank in range(2):
        own = arrays_of(after / f"rank_{rank}/checkpoint.ckpt")
        np.testing.assert_array_equal(own["moments.weight"], MOMENTS[4 * rank : 4 * rank + 4])
        np.testing.assert_array_equal(own["weight"], weight[4 * rank : 4 * rank + 4])
        assert set(own) == {"weight", "learning_rate", "momentum", "moments.weight"}


def model() -> tuple[Whole, Whole]:
    numbers = np.random.default_rng(0)
    weights = {n: numbers.standard_normal((8, 12)).astype(np.float32) for n in ("encoder", "decoder")}
    return weights, {f"moments.{n}": numbers.standard_normal(v.shape).astype(np.float32) for n, v in weights.items()}


def test_eight_ranks_with_optimizer_parallelism_become_four(tmp_path: Path) -> None:
    weights, slots = model()
    # Columns over model parallelism (the axis of four), rows over two-way optimizer parallelism.
    before = strategy(tmp_path / "src_strategy.ckpt", dict.fromkeys(weights, Arrangement((2, 4), (-1, 0), 4, 2)))
    after = strategy(tmp_path / "dst_strategy.ckpt", dict.fromkeys(weights, Arrangement((4,), (-1, 0))))
    for rank in range(8):
        data, part = divmod(rank, 4)
        box = np.s_[4 * data : 4 * data + 4, 3 * part : 3 * part + 3]
        held = {n: v[box] for n, v in (weights | slots).items()}
        write_file(tmp_path / f"src_checkpoints/rank_{rank}/src_checkpoint{rank}.ckpt", held)
    arguments = [str(tmp_path / "src_checkpoints"), str(tmp_path / "dst"), "--from", str(before), "--to", str(after)]
    assert main(["checkpoint", "transform", *arguments]) == 0
    for rank in range(4):
        own = arrays_of(tmp_path / f"dst/rank_{rank}/checkpoint.ckpt")
        for n, v in (weights | slots).items():
            np.testing.assert_array_equal(own[n], v[:, 3 * rank : 3 * rank + 3])


@pytest.mark.parametrize("form", [to_protobuf, to_json])
def test_two_stages_of_four_ranks_become_four(form: Form, tmp_path: Path) -> None:
    """Every rank has written a strategy file of its stage, and nobody has merged them."""
    weights, slots = model()
    columns, ending = Arrangement((4,), (-1, 0)), "ckpt" if form is to_protobuf else "json"
    for rank in range(8):
        stage, part = divmod(rank, 4)
        name = ("encoder", "decoder")[stage]
        strategy(tmp_path / f"src/src_strategy{rank}.{ending}", {name: columns}, stage, form)
        box = np.s_[:, 3 * part : 3 * part + 3]
        held = {n: v[box] for n, v in (weights | slots).items() if n.endswith(name)}
        write_file(tmp_path / f"src_checkpoints/rank_{rank}/src_checkpoint{rank}.ckpt", held)
    after = strategy(tmp_path / "dst_strategy.ckpt", dict.fromkeys(weights, columns))
    arguments = [str(tmp_path / "src_checkpoints"), str(tmp_path / "dst"), "--from", str(tmp_path / "src")]
    assert main(["checkpoint", "transform", *arguments, "--to", str(after)]) == 0
    for rank in range(4):
        own = arrays_of(tmp_path / f"dst/rank_{rank}/checkpoint.ckpt")
        for n, v in (weights | slots).items():
            np.testing.assert_array_equal(own[n], v[:, 3 * rank : 3 * rank + 3])


def test_strategy_files_of_stages_have_to_fit_each_other(tmp_path: Path) -> None:
    rows, columns = Arrangement((4,), (0, -1)), Arrangement((4,), (-1, 0))
    strategy(tmp_path / "a/s0.ckpt", {"w": rows})
    strategy(tmp_path / "a/s1.ckpt", {"w": columns})
    with pytest.raises(InputError, match=r"s1\.ckpt: has other layouts than s0\.ckpt, which is of stage 0, too"):
        read_layouts(tmp_path / "a")
    strategy(tmp_path / "b/s0.ckpt", {"w": rows})
    strategy(tmp_path / "b/s1.ckpt", {"v": rows}, 2)
    with pytest.raises(InputError, match="lacks the strategy file of stage 1"):
        read_layouts(tmp_path / "b")
    (tmp_path / "c").mkdir()
    with pytest.raises(InputError, match="found none"):
        read_layouts(tmp_path / "c")
