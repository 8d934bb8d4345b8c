"""Children: what they are, what they may use, and what becomes of them."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from planner.api.jobs import forks, hearing
from planner.api.jobs import worker as workers
from planner.api.jobs.errors import StoreBusy, StoreError, StoreUnusable
from planner.api.jobs.handover import ResultInvalid, size_of, take_in
from planner.api.jobs.leases import DEATHS
from planner.api.jobs.records import TaskState
from planner.api.jobs.removal import remove
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import Task
from planner.api.jobs.worker import Worker
from tests.service.entries import misbehaving
from tests.service.working import SMALL, ask, until, working


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "service")


@pytest.fixture
def worker(store: Store) -> Iterator[Worker]:
    with working(store, slots=2, entry=misbehaving) as worker:
        yield worker


def does(what: str, kind: str = "artifact", **options: object) -> Task:
    return Task(kind, {}, {"do": what, **options}, code="c")


def problem_of(state: TaskState) -> str:
    assert state.status == "failed"
    assert state.error is not None
    return str(state.error["type"]).rpartition(":")[2]


def test_a_child_is_alone_nice_and_begins_with_everything_loaded_and_no_thread(store: Store, worker: Worker) -> None:
    found = ask(store, worker, does("look")).summary
    assert found["cwd"].startswith(str(store.folder / "scratch"))
    until(worker, lambda: not worker._at_work)
    assert not Path(found["cwd"]).exists()  # removed behind it
    assert found["files"] == []
    assert (found["nice"], found["group"], found["threads"], found["stdin"]) == (10, True, 1, "/dev/null")
    assert found["oom"] == 1000
    assert found["loaded"] == ["numpy", "onnx", "ortools", "planner"]
    assert found["handles"] < 16


def test_too_much_memory_is_said(store: Store, worker: Worker) -> None:
    assert problem_of(ask(store, worker, does("grow"))) == "child-memory"


def test_too_much_processor_time_is_said(store: Store, worker: Worker) -> None:
    worker.limits = replace(SMALL, cpu_s=1)
    assert problem_of(ask(store, worker, does("spin"))) == "child-cpu"


def test_a_search_out_of_processor_time_hands_in_its_best(store: Store, worker: Worker) -> None:
    worker.limits = replace(SMALL, cpu_s=1)
    state = ask(store, worker, does("spin until asked", "plan"))
    assert (state.status, state.summary["stopped"]) == ("succeeded", "child-cpu")
    assert store.blobs.read(state.result["best"].digest) == b"so far"
    assert store.ensure(does("spin until asked", "plan")).status == "queued"  # not what everyone gets from now on


def test_the_end_of_the_fork_server_is_no_death_of_the_task(store: Store, worker: Worker) -> None:
    task = store.ensure(does("sleep")).id
    for k in range(DEATHS):
        until(worker, lambda: any(not slot.dropped for slot in worker._at_work))
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]
        until(worker, lambda: store.state(task).status == "queued")
        assert store.state(task).attempts == k + 1


def test_too_long_is_said(store: Store, worker: Worker) -> None:
    worker.limits = replace(SMALL, wall_s=0.3)
    assert problem_of(ask(store, worker, does("sleep"))) == "child-wall"


def test_a_search_that_takes_too_long_hands_in_its_best(store: Store, worker: Worker) -> None:
    task = store.ensure(does("spin until asked", "plan")).id
    until(worker, lambda: any(slot.hearing.begun_s is not None for slot in worker._at_work))
    (slot,) = worker._at_work
    slot.limits = replace(SMALL, wall_s=slot.ran() + 1.0)  # from when it listens, however long that took
    until(worker, lambda: store.state(task).ended)
    state = store.state(task)
    assert (state.status, state.summary["stopped"]) == ("succeeded", "child-wall")


def test_files_and_results_are_bounded(store: Store, worker: Worker) -> None:
    assert problem_of(ask(store, worker, does("fill the disk"))) == "storage-full"
    assert problem_of(ask(store, worker, does("hand in too much"))) == "result-too-large"


def test_a_child_that_dies_is_tried_again_and_given_up_after_three_times(store: Store, worker: Worker) -> None:
    state = ask(store, worker, does("die"))
    assert problem_of(state) == "child-died"
    assert state.error is not None
    assert "SIGSEGV" in state.error["detail"]
    assert state.attempts == 3


def test_a_child_that_died_by_chance_is_no_failure(store: Store, worker: Worker) -> None:
    state = ask(store, worker, does("die once", "plan"))
    assert (state.status, state.attempts) == ("succeeded", 2)


def test_an_import_that_was_killed_is_no_verdict_about_the_model(store: Store, worker: Worker) -> None:
    """The kernel kills it first where the machine's memory runs out: it is tried again, and nobody is told that the
    model is wrong."""
    task = does("import for long", "plan")
    job = store.submit("a", task, name="m").job
    killed: set[int] = set()
    while len(killed) < 3:
        until(worker, lambda: bool(_imports_of(worker) - killed))
        (pid,) = _imports_of(worker) - killed
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
    until(worker, lambda: store.job("a", job.id).ended)
    state = store.state(job.task)
    assert (problem_of(state), state.attempts) == ("child-died", 3)
    assert "SIGKILL" in str(state.error)
    assert store.job("b", store.submit("b", task, name="m").job.id).status == "queued"  # nothing of this is kept


def _imports_of(worker: Worker) -> set[int]:
    """Processes that import, below the children of the worker."""
    found: set[int] = set()
    for slot in worker._at_work:
        with contextlib.suppress(OSError):
            pid = slot.child.process.pid
            found |= {int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    return found


def test_an_import_beyond_its_limit_is_said_as_one_and_shared_with_nobody(store: Store, worker: Worker) -> None:
    task = does("import too much")
    assert problem_of(ask(store, worker, task)) == "child-memory"
    assert store.ensure(task).status == "queued"


@pytest.mark.parametrize(
    ("what", "problem"), [("much", "child-disk"), ("many", "child-disk"), ("start", "child-processes")]
)
def test_a_child_that_takes_more_than_the_kernel_counts_is_ended(store: Store, what: str, problem: str) -> None:
    limits = replace(SMALL, disk_bytes=10 << 20, files=100, threads=30)
    with working(store, limits=limits, entry=misbehaving) as worker:
        task = does("start many" if what == "start" else f"write {what}")
        begun = store.ensure(task, "a")
        until(worker, lambda: worker._at_work)
        group = worker._at_work[0].child.pid
        until(worker, lambda: store.state(begun.id).ended)
        assert problem_of(store.state(begun.id)) == problem
        until(worker, lambda: not worker._at_work)
        until(worker, lambda: not _alive(group))
    assert store.ensure(task, "a").status == "queued"  # another time it may be another model


def _alive(group: int) -> list[str]:
    """Processes of a group that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
            if int(of) == group and state not in "ZX":
                found.append(stat.parent.name)
    return found


@pytest.mark.parametrize(
    "words",
    [
        "no JSON",
        "[]",
        '{"kind": "result"}',
        '{"kind": "error", "problem": 3}',
        "[" * 100_000,
        '{"kind": "progress", "gap": ' + "[" * 900 + "]" * 900 + "}",
        '{"kind": "progress", "incumbent_s": 1' + "0" * 400 + ', "bound_s": 0, "gap": 0, "seconds": 0}',
        '{"kind": "error", "problem": {"type": "made up", "detail": ""}, "lasting": true}',
    ],
    ids=range(8),
)
def test_a_child_that_speaks_no_sense_is_ended(store: Store, worker: Worker, words: str) -> None:
    begun = store.ensure(does("speak no sense", words=words))
    until(worker, lambda: store.state(begun.id).attempts == 2)


def test_a_fault_of_ours_is_in_the_log_and_told_by_its_id_alone(
    store: Store, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [store.submit(tenant, does("fault", "plan"), name="m").job for tenant in ("a", "b")]
    until(worker, lambda: store.job("a", jobs[0].id).ended)
    state = store.state(jobs[0].task)
    assert problem_of(state) == "internal"
    (fields,) = [r.fields for r in caplog.records if hasattr(r, "fields") and "fault" in r.fields]
    assert (fields["task"], fields["kind"], set(fields["jobs"])) == (state.id, "plan", {j.id for j in jobs})
    assert "Traceback" in fields["exception"]
    assert "ZeroDivisionError: a fault of ours" in fields["exception"]
    assert state.error is not None
    assert fields["fault"] in state.error["detail"]
    assert "a fault of ours" not in str(state.error)
    assert "ZeroDivisionError" not in str(state.error)
    assert not any(job.id in str(state.error) for job in jobs)  # the tenants have this document in common


def test_what_a_child_leaves_behind_is_removed_however_deep(tmp_path: Path) -> None:
    folder = tmp_path / "left"
    folder.mkdir()
    (tmp_path / "kept").write_text("kept")
    (folder / "link").symlink_to(tmp_path)
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(folder)
        for k in range(2000):  # deeper than a path is long, and than Python's stack
            Path("file").touch()
            os.mkdir("d" * 100, 0o700 if k < 1999 else 0)
            if k < 1999:
                os.chdir("d" * 100)
    finally:
        os.chdir(here)
        os.close(here)
    assert not remove(folder, 0.0)  # no time
    remove(folder)
    assert not folder.exists()
    assert (tmp_path / "kept").exists()


def test_what_a_child_tells_is_bounded(store: Store, worker: Worker) -> None:
    job = store.submit("a", does("babble", "plan"), name="m").job
    until(worker, lambda: store.job("a", job.id).ended)
    events = store.events("a", job.id, limit=10_000)
    assert len(events) < 1000
    assert max(len(str(e.data)) for e in events) < 3000
    assert store.job("a", job.id).progress["seconds"] == 19.99  # the last of them is told


def test_a_child_that_tells_without_end_is_ended(store: Store, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "MOST", 4 << 20)
    job = store.submit("a", does("tell without end", "plan"), name="m").job
    until(worker, lambda: store.state(job.task).attempts == 2)
    first = [e for e in store.events("a", job.id, limit=10_000) if e.type == "message"]
    assert sum(len(str(e.data)) for e in first) < 16 << 20


def test_halves_of_characters_of_a_child_become_whole_ones() -> None:
    heard = hearing.Hearing(0.0)
    heard.hear(b'{"kind": "message", "text": "\\ud800 here"}')
    assert heard.events == [("message", {"text": "? here"})]


def test_cancelling_a_search_gives_its_best_so_far(store: Store, worker: Worker) -> None:
    job = store.submit("a", does("spin until asked", "plan"), name="m").job
    until(worker, lambda: store.job("a", job.id).status == "running")
    until(worker, lambda: worker._at_work and worker._at_work[0].hearing.begun_s is not None)
    time.sleep(0.1)
    store.cancel("a", job.id)
    until(worker, lambda: store.job("a", job.id).ended)
    found = store.job("a", job.id)
    assert found.status == "cancelled"
    assert found.plan is not None
    assert store.blobs.read(store.plan("a", found.plan).files["best"].digest) == b"so far"


def test_cancelling_what_does_not_listen_ends_it_all_the_same(store: Store, worker: Worker) -> None:
    job = store.submit("a", does("sleep deaf", "plan"), name="m").job
    until(worker, lambda: worker._at_work and worker._at_work[0].hearing.begun_s is not None)
    time.sleep(0.1)
    store.cancel("a", job.id)
    began = time.monotonic()
    until(worker, lambda: store.job("a", job.id).ended)
    assert time.monotonic() - began < 10
    assert (store.job("a", job.id).status, store.job("a", job.id).plan) == ("cancelled", None)


def test_what_a_child_started_ends_with_it(store: Store, worker: Worker) -> None:
    job = store.submit("a", does("sleep with a child", "plan"), name="m").job
    until(worker, lambda: any(e.type == "message" for e in store.events("a", job.id)))
    pid = int(next(e for e in store.events("a", job.id) if e.type == "message").data["text"])
    store.cancel("a", job.id)
    until(worker, lambda: store.job("a", job.id).ended and not worker._at_work)
    until(worker, lambda: not _alive(pid))


def test_a_child_whose_lease_is_lost_is_ended_and_writes_nothing(store: Store, worker: Worker) -> None:
    begun = store.ensure(does("sleep", "plan"))
    until(worker, lambda: worker._at_work)
    pid = worker._at_work[0].child.process.pid
    assert pid is not None
    with store.database.write() as db:
        db.execute("UPDATE tasks SET token = token + 1 WHERE id = ?", (begun.id,))
    until(worker, lambda: not worker._at_work)
    assert not _alive(pid)
    assert store.state(begun.id).status == "running"  # the other's


def test_a_slot_is_kept_for_short_work(store: Store, worker: Worker) -> None:
    for k in range(4):
        store.ensure(does("sleep", "plan", k=k, mesh="2x2x2x2"))  # which takes long
    until(worker, lambda: len(worker._at_work) == 2)
    quick = ask(store, worker, does("nothing"))
    assert quick.status == "succeeded"
    until(worker, lambda: len(worker._at_work) == 2)
    assert store.counts()["tasks"]["queued"] == 2


def test_without_its_fork_server_work_begins_again_with_another(store: Store, worker: Worker) -> None:
    begun = store.ensure(does("sleep", "plan"))
    until(worker, lambda: worker._at_work and worker._at_work[0].hearing.begun_s is not None)
    pid = worker._at_work[0].child.process.pid
    assert pid is not None
    server = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(server, signal.SIGKILL)
    until(worker, lambda: not _alive(pid))
    until(worker, lambda: store.state(begun.id).attempts == 2)
    assert ask(store, worker, does("nothing")).status == "succeeded"


def test_the_environment_changes_where_a_process_begins_and_at_no_other_time(
    store: Store, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(worker, worker._forks.ready)
    changes: list[str] = []
    monkeypatch.setattr("os.unsetenv", lambda name: changes.append(str(name)))
    for _ in range(5):
        worker.turn()
    assert changes == []


def test_a_result_that_finds_no_space_is_handed_in_once_there_is_some(store: Store, worker: Worker) -> None:
    begun = store.ensure(does("nothing"))
    until(
        worker,
        lambda: (worker._at_work and worker._at_work[0].hearing.answer is not None) or store.state(begun.id).ended,
    )
    assert store.state(begun.id).status == "succeeded"
    full = store.ensure(does("babble", "plan"))
    until(worker, lambda: store.state(full.id).status == "running")
    db = store.database._connection()
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages}")
    for _ in range(20):
        worker.turn()
    db.execute("PRAGMA max_page_count = 1000000")
    until(worker, lambda: store.state(full.id).ended)
    assert store.state(full.id).status == "succeeded"


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z" and os.path.exists(f"/proc/{pid}")


def test_a_clock_that_jumps_takes_no_lease_away(store: Store, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the sleep of a machine: leases go by a clock that ran on, heartbeats by one that did not."""
    begun = store.ensure(does("sleep", "plan"))
    until(worker, lambda: worker._at_work)
    now = time.time
    for jump in (3600.0, -3600.0, 7200.0):
        monkeypatch.setattr(time, "time", lambda jump=jump: now() + jump)
        worker._tried = 0.0  # it looks for work, and for leases that have run out, in this turn
        worker.turn()
        assert (store.state(begun.id).status, store.state(begun.id).attempts) == ("running", 1)
    assert len(worker._at_work) == 1


def test_a_large_result_is_copied_while_the_worker_goes_on(
    store: Store, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.api.jobs.slot.AT_ONCE", 0)
    copying, go_on = threading.Event(), threading.Event()

    def slowly(*given: Any) -> Any:
        copying.set()
        go_on.wait(60)
        return take_in(*given)

    monkeypatch.setattr("planner.api.jobs.slot.take_in", slowly)
    begun = store.ensure(does("nothing", "plan"))
    until(worker, copying.is_set)
    for _ in range(3):
        worker.turn()
    assert store.state(begun.id).status == "running"
    go_on.set()
    until(worker, lambda: store.state(begun.id).ended)
    assert store.blobs.read(store.state(begun.id).result["result"].digest) == b"done"


def test_a_machine_without_room_for_a_process_is_no_death_of_the_task(
    store: Store, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker leaves tasks to others for a moment, and takes no second one in that moment."""
    tries = []

    def scarce(*given: Any) -> Any:
        tries.append(given)
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(workers, "begin", scarce)
    for k in range(2):
        store.ensure(does("nothing", number=k))
    until(worker, lambda: tries)
    worker.turn()
    assert len(tries) == 1
    with store.database.read() as db:
        rows = db.execute("SELECT status, deaths, losses FROM tasks ORDER BY losses").fetchall()
    assert [tuple(r) for r in rows] == [("queued", 0, 0), ("queued", 0, 1)]


class Far:
    """Blobs in a bucket that can be reached or not, and takes its time."""

    remote = True

    def __init__(self, store: Store) -> None:
        self.blobs: Any = store.blobs
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.there = True
        self.refusal: StoreError = StoreBusy("s3://far: cannot be reached at the moment; try again")

    def lay(self, digest: str, target: Path) -> None:
        self.reached.set()
        self.go_on.wait(60)
        if not isinstance(self.refusal, StoreBusy):
            raise self.refusal
        self._expect()
        self.blobs.lay(digest, target)

    def put(self, content: bytes) -> str:
        self._expect()
        return str(self.blobs.put(content))

    def _expect(self) -> None:
        if not self.there:
            raise self.refusal

    def __getattr__(self, name: str) -> Any:
        return getattr(self.blobs, name)


def test_inputs_that_take_their_time_cost_no_lease_and_those_out_of_reach_wait(store: Store, worker: Worker) -> None:
    far: Any = Far(store)
    digest = store.blobs.put(b"model")
    store.blobs = far
    sleeping = store.ensure(does("sleep", "plan"))
    until(worker, lambda: worker._laying)
    begun = store.ensure(Task("artifact", {"model": digest}, {"do": "nothing"}, code="c"))
    far.there = False
    until(worker, far.reached.is_set)
    for _ in range(3):
        worker._beaten = 0.0
        worker.turn()
    until(worker, lambda: worker._at_work)
    assert [store.state(t.id).attempts for t in (sleeping, begun)] == [1, 1]
    far.go_on.set()
    until(worker, lambda: store.state(begun.id).status == "queued")
    assert not list((store.folder / "scratch" / worker.name).glob(f"{begun.id}-*"))
    far.there, worker._apart_until = True, 0.0
    until(worker, lambda: store.state(begun.id).ended)
    with store.database.read() as db:
        row = db.execute("SELECT status, deaths, losses FROM tasks WHERE id = ?", (begun.id,)).fetchone()
    assert tuple(row) == ("succeeded", 0, 0)
    assert store.state(sleeping.id).attempts == 1


def test_inputs_that_are_refused_end_the_worker_and_leave_the_task_to_others(store: Store, worker: Worker) -> None:
    far: Any = Far(store)
    digest = store.blobs.put(b"model")
    store.blobs = far
    begun = store.ensure(Task("artifact", {"model": digest}, {"do": "nothing"}, code="c"))
    until(worker, far.reached.is_set)
    far.refusal = StoreUnusable("s3://far: it is refused; see its policy")
    far.go_on.set()
    with pytest.raises(StoreUnusable):
        until(worker, lambda: store.state(begun.id).ended)
    assert store.state(begun.id).status == "queued"


def test_a_fork_server_that_ends_while_a_child_begins_is_no_death_of_the_task(
    store: Store, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = iter(range(DEATHS))

    def begin(work: Any, entry: Any) -> Any:
        if next(tries, None) is not None:
            raise EOFError
        return forks.begin(work, entry)

    monkeypatch.setattr("planner.api.jobs.worker.begin", begin)
    assert ask(store, worker, does("nothing")).status == "succeeded"


def test_a_result_that_cannot_be_handed_in_is_once_it_can_and_holds_nobody_up(
    store: Store, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.api.jobs.slot.AGAIN_S", 0.05)
    far: Any = Far(store)
    far.go_on.set()
    far.there = False
    store.blobs = far
    first = store.ensure(does("nothing", "plan"))
    until(worker, lambda: worker._at_work and worker._at_work[0]._again)
    second = store.ensure(does("die", "plan"))
    until(worker, lambda: store.state(second.id).ended)
    assert store.state(first.id).status == "running"
    far.there = True
    until(worker, lambda: store.state(first.id).ended)
    assert store.blobs.read(store.state(first.id).result["result"].digest) == b"done"


def test_a_result_of_too_many_files_is_not_counted_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for k in range(1001):
        (tmp_path / "out" / str(k)).touch()
    with pytest.raises(ResultInvalid, match="1000 files"):
        size_of(tmp_path)


@pytest.mark.parametrize(
    "files",
    [
        {"best": [0, "text/plain"]},
        {"best": ["../../../../secret", "text/plain"]},
        {"best": [0, "text/html\r\nx: y"]},
        {"\ud800": [0, ""]},
        {"best": []},
    ],
    ids=["not there", "elsewhere", "no type", "no name", "nothing"],
)
def test_a_result_that_is_not_as_it_was_said_is_computed_again(
    store: Store, worker: Worker, files: dict[str, list[object]]
) -> None:
    begun = store.ensure(does("spin until asked", "plan"))
    until(worker, lambda: worker._at_work)
    (slot,) = worker._at_work
    slot.hearing.answer = {"kind": "result", "files": files, "summary": {}, "plan": None, "cancelled": False}
    until(worker, lambda: store.state(begun.id).attempts == 2)
    assert slot not in worker._at_work
