"""What follows from what is written: states of jobs, counts, who waits, and notes to those who listen.

Counts have several rows, and a connection writes to the one of its process, so that transactions seldom wait for each
other; the count is their sum.
"""

from __future__ import annotations

from typing import Final

__all__ = ["TRIGGERS"]

SHARDS: Final = 128

TRIGGERS: Final = (
    f"""
CREATE FUNCTION planner_count(about TEXT, state TEXT, by BIGINT) RETURNS VOID LANGUAGE sql AS $$
  INSERT INTO counts AS c (what, status, shard, n) VALUES (about, state, pg_backend_pid() % {SHARDS}, by)
  ON CONFLICT (what, status, shard) DO UPDATE SET n = c.n + excluded.n
$$""",
    """
CREATE FUNCTION planner_counted() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
  PERFORM planner_count(TG_TABLE_NAME, state, by)
  FROM (SELECT status AS state, TG_ARGV[0]::BIGINT * COUNT(*) AS by FROM changed GROUP BY status) AS counted;
  RETURN NULL;
END $$""",
    """
CREATE FUNCTION planner_moved() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
  PERFORM planner_count(TG_TABLE_NAME, NEW.status, 1);
  PERFORM planner_count(TG_TABLE_NAME, OLD.status, -1);
  RETURN NULL;
END $$""",
    """
CREATE FUNCTION planner_status_of_job() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
  NEW.status := CASE WHEN NEW.left_at IS NOT NULL THEN 'cancelled'
    ELSE (SELECT t.status FROM tasks t WHERE t.id = NEW.task) END;
  RETURN NEW;
END $$""",
    """
CREATE FUNCTION planner_status_of_jobs() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
  UPDATE jobs SET status = NEW.status WHERE task = NEW.id AND left_at IS NULL;
  RETURN NULL;
END $$""",
    # The number of tasks is written by everyone who joins or leaves, so that they wait for each other: whoever finds
    # nobody left behind knows that nobody is about to join.
    """
CREATE FUNCTION planner_joined() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO waiting AS w (lane, tenant, tasks, first) VALUES (NEW.lane, NEW.tenant, 1, NEW.task)
  ON CONFLICT (lane, tenant) DO UPDATE SET tasks = w.tasks + 1;
  RETURN NULL;
END $$""",
    """
CREATE FUNCTION planner_left() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
  UPDATE waiting SET tasks = tasks - 1 WHERE lane = OLD.lane AND tenant = OLD.tenant;
  DELETE FROM waiting WHERE lane = OLD.lane AND tenant = OLD.tenant AND tasks <= 0;
  RETURN NULL;
END $$""",
    """
CREATE FUNCTION planner_notify() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('planner', CASE TG_TABLE_NAME WHEN 'tasks' THEN to_jsonb(NEW) ->> 'id'
    ELSE to_jsonb(NEW) ->> 'task' END);
  RETURN NULL;
END $$""",
    *(
        f"CREATE TRIGGER {table}_{name} AFTER {event} ON {table} REFERENCING {rows} TABLE AS changed"
        f" FOR EACH STATEMENT EXECUTE FUNCTION planner_counted('{by}')"
        for table in ("tasks", "jobs")
        for name, event, rows, by in (("made", "INSERT", "NEW", 1), ("gone", "DELETE", "OLD", -1))
    ),
    "CREATE TRIGGER tasks_moved AFTER UPDATE OF status ON tasks FOR EACH ROW"
    " WHEN (NEW.status <> OLD.status) EXECUTE FUNCTION planner_moved()",
    "CREATE TRIGGER tasks_moved_jobs AFTER UPDATE OF status ON tasks FOR EACH ROW"
    " WHEN (NEW.status <> OLD.status) EXECUTE FUNCTION planner_status_of_jobs()",
    "CREATE TRIGGER jobs_have_status BEFORE INSERT OR UPDATE OF left_at ON jobs"
    " FOR EACH ROW EXECUTE FUNCTION planner_status_of_job()",
    "CREATE TRIGGER jobs_moved AFTER UPDATE ON jobs FOR EACH ROW"
    " WHEN (NEW.status IS DISTINCT FROM OLD.status) EXECUTE FUNCTION planner_moved()",
    "CREATE TRIGGER queue_joined AFTER INSERT ON queue FOR EACH ROW EXECUTE FUNCTION planner_joined()",
    "CREATE TRIGGER queue_left AFTER DELETE ON queue FOR EACH ROW EXECUTE FUNCTION planner_left()",
    "CREATE TRIGGER events_notify AFTER INSERT ON events FOR EACH ROW EXECUTE FUNCTION planner_notify()",
    "CREATE TRIGGER tasks_notify AFTER UPDATE OF cancel ON tasks FOR EACH ROW EXECUTE FUNCTION planner_notify()",
    "CREATE TRIGGER jobs_notify AFTER UPDATE OF left_at ON jobs FOR EACH ROW EXECUTE FUNCTION planner_notify()",
)
