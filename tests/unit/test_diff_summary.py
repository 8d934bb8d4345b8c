"""The one screen of `planner diff`: every column adds up as it is printed, and equal changes are one line."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from planner.cli.main import main
from planner.errors import InputError
from planner.planning import PlanDocument, plan_text
from planner.report.causes import comparable, picoseconds, step_causes
from planner.report.diff import Column, diff, document, markdown, page_of, several, text
from planner.report.diff.rules import role, rules
from planner.report.diff.summary import Row, _bytes, _rate, summary
from planner.report.diff.verdict import other_work
from planner.report.rounded import columns, rounded, scale
from planner.report.wire import sent_bytes
from planner.requests.comparison import clock_of_plan
from tests.unit.diff_plans import PAIRS, edited, hostile, searched

LIGHT = [p for p in PAIRS if not any("experts" in n for n in p)]  # searched in a second
BOTH_WAYS = [*LIGHT, *((b, a) for a, b in LIGHT)]


def written(folder: Path, name: str, plan: PlanDocument) -> Path:
    path = folder / name
    path.write_text(plan_text(plan), encoding="utf-8")
    return path


def summed(rows: list[dict[str, Any]], column: str) -> Decimal:
    return sum((Decimal(r[column]) for r in rows), Decimal())


@pytest.mark.parametrize(("a", "b"), BOTH_WAYS)
def test_what_is_printed_adds_up_to_the_last_digit(a: str, b: str) -> None:
    s = document(diff(searched(a), searched(b)))["summary"]
    rows = s["causes"] + ([s["alike"]] if s["alike"] else [])
    for column in ("a", "b", "delta"):
        assert summed(rows, column) == Decimal(s["step"][column])
    for r in (*rows, s["step"]):
        assert Decimal(r["b"]) - Decimal(r["a"]) == Decimal(r["delta"])
    for r in s["totals"]:
        before, after, delta = (Decimal(r[k].split(" ")[0].replace(",", "")) for k in ("a", "b", "delta"))
        assert after - before == delta
    assert summed(s["changes"], "delta") == Decimal(s["step"]["delta"])
    for r, plan in (("a", searched(a)), ("b", searched(b))):
        digit = Decimal(1).scaleb(Decimal(s["step"][r]).as_tuple().exponent)  # type: ignore[arg-type]
        exact = Decimal(plan.cost.step_time_s) * {"s": 1, "ms": 1000, "us": 10**6}[s["unit"]]
        assert abs(Decimal(s["step"][r]) - exact) <= digit / 2 * Decimal("1.0001")


@pytest.mark.parametrize("name", ["data", "tensor", "recomputed", "pipeline"])
def test_causes_add_up_to_the_step(name: str) -> None:
    plan = searched(name)
    parts = step_causes(plan)
    assert sum(parts.values()) == picoseconds(plan.cost.step_time_s)
    assert min(parts.values()) >= 0
    assert (parts.get("bubble", 0) > 0) == (name == "pipeline")
    assert (parts.get("recompute", 0) > 0) == (name == "recomputed")


def test_what_one_plan_does_not_tell_apart_is_told_apart_of_none() -> None:
    timeline = {"bubble": 0, "outside": 2}
    told = {"compute": 4, "collectives": 2, "host": 1, "recompute": 1, "outside": 2}
    one, other = comparable([{"compute": 5, "unhidden": 3, **timeline}, told])
    assert one == {"compute": 5, "unhidden": 3, "outside": 2}
    assert other == {"compute": 4, "unhidden": 4, "outside": 2}
    assert comparable([{"compute": 5, "unhidden": 5}, told]) == [
        {"compute": 5, "together": 5},
        {"compute": 4, "together": 6},
    ]


def test_an_old_plan_of_an_equal_step_invents_no_causes() -> None:
    """Plans from before runs and parts of the step were in the file."""

    def old(data: dict[str, Any]) -> None:
        data["cost"].pop("step_parts_s", None)
        for op in data["operators"].values():
            op.pop("runs", None)
        for p in data["parameters"].values():
            p.pop("optimizer_s", None)

    for name in ("data", "pipeline"):
        s = document(diff(edited(searched(name), old), searched(name)))["summary"]
        assert not s["causes"]
        assert s["alike"]["name"] == "alike: causes taken together"


def test_the_model_beside_a_pipeline_tells_its_causes_apart(tmp_path: Path) -> None:
    sample = Path(__file__).parents[2] / "sample_graphs" / "gpt_tiny.onnx"
    assert clock_of_plan(searched("data"), sample) is None  # says them itself
    assert clock_of_plan(searched("pipeline"), tmp_path / "none.onnx") is None
    assert clock_of_plan(searched("pipeline"), sample.parent / "mlp.onnx") is None  # another model
    plan = searched("pipeline")
    found = step_causes(plan, clock_of_plan(plan, sample))
    assert "unhidden" not in found
    assert sum(found.values()) == picoseconds(plan.cost.step_time_s)
    own = step_causes(plan)
    assert found["compute"] == pytest.approx(own["compute"], rel=1e-6)
    assert found["bubble"] == pytest.approx(own["bubble"], rel=1e-6)
    assert found["outside"] == pytest.approx(own["outside"], rel=1e-6)


def test_of_what_runs_again_collectives_and_waiting_are_no_recomputation() -> None:
    """With several micro-batches as with one: the blocks' collectives are repeated, and the host starts them again."""
    sample = Path(__file__).parents[2] / "sample_graphs" / "gpt_tiny.onnx"
    plans = searched("micro-batches"), searched("run again")
    clocks = clock_of_plan(plans[0], sample), clock_of_plan(plans[1], sample)
    plain, again = (step_causes(p, c) for p, c in zip(plans, clocks, strict=True))
    for plan, causes in zip(plans, (plain, again), strict=True):
        runs = [r for o in plan.operators.values() for r in o.runs if r.phase == "recompute"]
        assert causes["recompute"] == pytest.approx(
            picoseconds(plan.schedule.passes * sum(r.seconds - r.inside_s for r in runs)), abs=1000
        )
        assert sum(causes.values()) == picoseconds(plan.cost.step_time_s)
    assert again["recompute"] > 0
    assert again["compute"] == plain["compute"]
    assert again["collectives"] > plain["collectives"]
    assert again["host"] > plain["host"]
    s = document(diff(*plans), clocks)["summary"]
    rows = [*s["causes"], *([s["alike"]] if s["alike"] else [])]
    for column in ("a", "b", "delta"):
        assert summed(rows, column) == Decimal(s["step"][column])


def test_equal_changes_of_all_layers_and_modules_are_one_line() -> None:
    """A known configuration beside another: each rule stands once, in words of the field."""
    found = diff(searched("data"), searched("tensor"))
    lines = text(found).splitlines()
    (columns_line,) = [x for x in lines if "DP 4 -> DP 2 x TP 2;" in x or x.endswith("DP 4 -> DP 2 x TP 2")][:1]
    assert re.search(r"\d+ x ", columns_line)
    rules = [c["changes"] for c in document(found)["summary"]["changes"] if c["changes"]]
    assert len({json.dumps(r) for r in rules}) == len(rules)
    assert not any("pin:" in x for x in lines)


def test_what_is_done_more_often_is_a_change_of_a_step() -> None:
    """The bills of one micro-batch are the same."""
    plan = searched("data")
    twice = edited(plan, lambda d: d["schedule"].update(micro_batches=2))
    (change,) = [c for c in document(diff(plan, twice))["summary"]["changes"] if "same layout" in c["text"]]
    assert change["text"] == "same layout, other number of micro-batches"
    assert change["operators"] > len(plan.operators) / 2
    assert change["amount"] > 0
    assert not diff(plan, twice).same


def test_roles_of_a_rule_are_those_of_all_its_operators() -> None:
    found = diff(searched("data"), searched("tensor"))
    for rule in rules(found):
        operators = [a for i in rule.numbers for a, _ in found.groups[i].operators]
        assert dict(rule.roles) == Counter(role(found.a, n) for n in operators)


def test_pins_are_counted_and_not_listed() -> None:
    plan = searched("data")
    rows = [{"object": "operator", "name": n, "pin": "x:b0", "source": "--strategy ddp"} for n in plan.operators]
    shown = text(diff(edited(plan, lambda d: d.update(pins=rows)), plan))
    assert f"pins: {len(rows)} of --strategy ddp -> " in shown
    assert len(shown.splitlines()) < 20
    other = [{**r, "source": "--strategy fsdp"} for r in rows]
    both = [edited(plan, lambda d, pins=pins: d.update(pins=pins)) for pins in (rows, other)]  # type: ignore[misc]
    assert "strategy: ddp -> fsdp" in text(diff(*both))


def test_several_plans_stand_beside_one_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("data", "tensor", "pipeline")
    shown = several([Column(searched(n), n) for n in names])
    table = shown[shown.index("step by cause") :].splitlines()[1:]
    until = next(i for i, line in enumerate(table) if line.startswith("step "))
    rows = [[Decimal(x) for x in re.split(r"  +", line)[1:]] for line in table[: until + 1]]
    for column in range(3):
        assert sum(r[column] for r in rows[:until]) == rows[until][column]
    files = [str(written(tmp_path, f"{n}.json", searched(n))) for n in names]
    capsys.readouterr()
    assert main(["diff", *files, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [p["step_time_s"] for p in told["plans"]] == [searched(n).cost.step_time_s for n in names]
    assert [p["identical"] for p in told["plans"]] == [True, False, False]
    for p in told["plans"]:
        assert sum(p["causes_s"].values()) == pytest.approx(p["step_time_s"], rel=1e-9)
    capsys.readouterr()
    assert main(["diff", files[0], files[0], files[0]]) == 0
    assert re.search(r"^ +identical +identical$", capsys.readouterr().out, re.M)
    assert main(["diff", *files, "--out", str(tmp_path / "page.html")]) == 1
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert all(Path(f).stem in page for f in files)


def test_markdown_shows_names_and_obeys_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = edited(searched("tensor"), hostile)
    shown = markdown(diff(edited(searched("data"), hostile), odd), ("a", "@everyone"))
    visible, _, figures = shown.partition("<details>")
    assert "\\@<!-- -->everyone" in visible
    assert not re.search(r"[@#:]\w", re.sub(r"\\(.)", r"\1", visible.replace("&nbsp;", "")))  # once rendered
    assert "<script" not in visible.replace("\\<", "")
    assert all(line.startswith("    ") for line in figures.split("\n\n", 1)[1].splitlines()[:-2])
    files = [str(written(tmp_path, f"{n}.json", searched(n))) for n in ("data", "tensor")]
    capsys.readouterr()
    assert main(["diff", *files, "--markdown"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^\*\*A step is [\d\\.]+ (ms|us) (slower|faster)", out, re.M)
    assert main(["diff", files[0], files[0], "--markdown"]) == 0
    assert "The plans are identical." in capsys.readouterr().out
    assert main(["diff", *files, "--markdown", "--json"]) == 2


def test_steps_that_are_not_the_same_work_are_not_called_faster() -> None:
    def serving(data: dict[str, Any]) -> None:
        data["schedule"]["mode"] = "inference"

    plan, twice = searched("data"), edited(searched("data"), lambda d: d["schedule"].update(micro_batches=2))
    cases = {
        "A plan of training and one of inference": edited(plan, serving),
        "Plans of different models": edited(plan, hostile),
        "Plans for inputs of other shapes": edited(plan, longer),
        "Plans for other batches": twice,
    }
    for words, other in cases.items():
        found = diff(plan, other)
        shown = markdown(found)
        assert words in shown
        assert not re.search("faster|slower|takes as long", shown.partition("<details>")[0])
        assert other_work(found, summary(found)).startswith(words)
    assert not other_work(diff(plan, searched("tensor")), summary(diff(plan, searched("tensor"))))
    note = "a step of A has 8 samples and one of B has 16: a step is not the same work"
    assert f"note: {note}" in text(diff(plan, twice))


def longer(data: dict[str, Any]) -> None:
    """Half as many samples of twice as many tokens."""
    data["model"]["batch"] = 4
    data["model"]["digest"] = "0" * 64
    for x in data["inputs"].values():
        x["shape"] = [x["shape"][0] // 2, 2 * x["shape"][1]]


def test_another_model_shows_behind_another_batch() -> None:
    plan = searched("data")
    shown = "\n".join(document(diff(plan, edited(plan, longer)))["summary"]["settings"])
    assert "model: another graph" in shown
    assert re.search(r"inputs.*\[8, (\d+)\] -> .*\[4, \d+\]", shown)
    alone = "\n".join(document(diff(searched("searched"), searched("other batch")))["summary"]["settings"])
    assert "another graph" not in alone
    assert "inputs" not in alone
    assert "batch: 8 -> 16" in alone


def test_long_names_take_no_second_screen() -> None:
    def long(data: dict[str, Any]) -> None:
        words = " ".join(f"w{i}" for i in range(150))
        data["model"]["name"] = data["cluster"]["hardware"] = words
        data["cluster"]["profile_digest"] = "0" * 64
        data["schedule"]["mode"] = "inference"
        data["pins"] = [{"object": "rest", "pin": "x", "source": f"--strategy {words}"}]

    for a, b in (("pipeline", "tensor"), ("tensor", "pipeline")):
        shown = text(diff(edited(searched(a), long), searched(b))).splitlines()
        assert len(shown) <= 40
        assert max(map(len, shown)) <= 130


def test_serving_beside_training_says_that_the_work_is_another() -> None:
    def serving(data: dict[str, Any]) -> None:
        data["schedule"]["mode"] = "inference"

    shown = text(diff(searched("data"), edited(searched("data"), serving)))
    assert "A is a plan of training and B of inference" in shown


def test_times_out_of_all_measure_are_shown_or_refused() -> None:
    """A file may say anything that is a number."""
    plan, other = searched("pipeline"), searched("data")
    for seconds in (0.0, -1.0, 5e-324):
        odd = edited(plan, lambda d, s=seconds: d["cost"].update(step_time_s=s))  # type: ignore[misc]
        for a, b in ((odd, other), (other, odd), (odd, odd)):
            assert document(diff(a, b))["summary"]["step"]
            assert text(diff(a, b))
            assert several([Column(a, "a"), Column(b, "b")])
        assert page_of(diff(odd, other))
    edits: tuple[Callable[[dict[str, Any]], object], ...] = (
        lambda d: d["cost"].update(step_time_s=1e305),
        lambda d: d["cost"].update(step_parts_s={"compute": 1e308}),
        lambda d: d["stages"][0].update(once_s=1e308),
    )
    for edit in edits:
        with pytest.raises(InputError, match="cannot be counted"):
            text(diff(edited(plan, edit), other))


def test_rounding_keeps_sums_and_what_is_equal() -> None:
    assert rounded([15, 15, 15], 10) == [2, 1, 1]
    assert sum(rounded([333, 333, 334], 100)) == 10
    a, b = columns([[149, 26, 20], [149, 96, 20]], 100)
    assert a[0] == b[0]
    assert a[2] == b[2]
    assert (sum(a), sum(b)) == (2, 3)
    assert columns([[0, 1600, 2600], [900, 1600, 2600]], 1000) == [[0, 2, 2], [1, 2, 2]]
    assert columns([[501] * 4], 1000) == [[1, 1, 0, 0]]
    shown = scale(762_355_171_076, -100)
    assert shown.text(rounded([762_355_171_076], shown.quantum)[0]) == "762.35517108"


def test_small_figures_have_digits_that_subtract() -> None:
    def texts(r: Row) -> tuple[str, str, str]:
        return r.a, r.b, r.delta

    assert texts(_rate(0.00042, 0.00031)) == ("0.0004200", "0.0003100", "-0.0001100")
    assert texts(_rate(335.8, 386.64)) == ("335.8", "386.6", "+50.8")
    assert texts(_bytes("memory", "memory", 65_043_000, 65_117_000)) == ("62.03 MiB", "62.10 MiB", "+0.07 MiB")


def test_a_ring_sends_what_it_must() -> None:
    """Data parallelism over 4 ranks: 2 · 3/4 of the gradients of all parameters that are summed whole."""
    plan = searched("data")
    size = sum(s.bytes for r in plan.redistributions for s in r.steps if s.kind == "all_reduce")
    inside = sum(c.bytes * c.count for o in plan.operators.values() for c in o.inner if c.kind == "all_reduce")
    assert size > 0
    assert sent_bytes(plan)["all_reduce"] == round(2 * 3 / 4 * (size + inside))
