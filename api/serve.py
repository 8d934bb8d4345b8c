"""`planner serve`: the service under uvicorn, and beside it the worker that computes."""

from __future__ import annotations

import argparse
import gc
import logging
import resource
import signal
import socket
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from planner.api.settings import Settings, add_settings, is_loopback, settings_of
from planner.errors import InputError, UsageError

if TYPE_CHECKING:
    from planner.api.jobs.store import Store
    from planner.api.workers import Workers

__all__ = ["configure", "run"]

_log = logging.getLogger("planner.service")

GRACE_S = 10  # for requests that are being answered when the service is told to stop


def configure(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)


def run(options: argparse.Namespace) -> int:
    settings = settings_of(options)
    store = _open(settings)
    refuse_open_door(settings, store)
    listening = _listen(settings)

    from planner.api.jobs.reaper import Reaper
    from planner.api.jobs.sandbox import announce
    from planner.api.logs import log_to
    from planner.api.workers import Workers

    log_to()
    announce(settings.sandbox)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # connections are files
    workers = Workers(settings)
    with listening, workers, Reaper(workers.pids):
        return _serve(settings, store, listening, workers)


def refuse_open_door(settings: Settings, store: Store) -> None:
    """UsageError where others could reach the service and nobody needs a key."""
    if not is_loopback(settings.host) and not store.keys.exist():
        raise UsageError(
            f"--host {settings.host}: others could reach the service, and there is no key that they would need; make "
            f"one with `planner keys create --tenant NAME --data {settings.data}`, or listen on 127.0.0.1"
        )


def _open(settings: Settings) -> Store:
    from planner.api.jobs.errors import StoreError
    from planner.api.jobs.opening import open_store

    try:
        return open_store(settings.data, settings.store, settings.blobs, queue=settings.queue)
    except StoreError as e:
        where = "--store" if settings.store else f"--data {settings.data}"
        raise InputError(f"{where}: {e}") from e


def _listen(settings: Settings) -> socket.socket:
    """Bound here, so that a port in use is said in one line."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    host = settings.host.strip("[]")
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, settings.port))
        listening.listen(1024)
    except OSError as e:
        listening.close()
        raise UsageError(f"--host {settings.host} --port {settings.port}: cannot listen there ({e.strerror})") from e
    return listening


def _serve(settings: Settings, store: Store, listening: socket.socket, workers: Workers) -> int:
    import uvicorn

    from planner.api.app import create_app
    from planner.api.wire import Wire

    app = create_app(settings, store)
    changes = app.state.service.changes
    ends = app.state.service.metrics.worker_ends
    workers.on_end = lambda why: ends.labels(why).inc()
    port = listening.getsockname()[1]
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            # Waiting requests and event streams end first: the server waits for them before it stops.
            changes.stop()
            super().handle_exit(sig, frame)

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            fields = {"address": f"http://{shown}:{port}", "data": str(settings.data), "workers": settings.workers}
            _log.info("listening", extra={"fields": fields})
            print(f"planner serves at http://{shown}:{port}", flush=True)

    config = uvicorn.Config(
        app,
        http=Wire.of(settings.stall, settings.connections),
        log_config=None,
        access_log=False,  # the edge writes one line a request
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=75,
        h11_max_incomplete_event_size=64 * 2**10,
        ws="none",
    )
    server = Server(config)

    def end() -> None:
        changes.stop()
        server.should_exit = True

    app.state.service.on_damage = end
    sys.setswitchinterval(0.001)  # a thread that has read or written hands over at once, not after five milliseconds
    gc.collect()
    gc.freeze()  # what is loaded by now stays: looking through it again and again would stop the world
    # The server hands signals on once it has ended, to whom they belonged before: nobody is to be killed by them then.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, server.handle_exit)
    server.run(sockets=[listening])
    if app.state.service.damage is not None:
        raise InputError(f"--data {settings.data}: {app.state.service.damage}")
    return 0 if server.started else 1
