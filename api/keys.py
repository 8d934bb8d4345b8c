"""`planner keys create|list|revoke`: who may use the service."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from planner.api.jobs.errors import NotFound, StoreError
from planner.api.jobs.keys import MONITOR, Keys
from planner.api.moments import moment
from planner.api.settings import add_settings, settings_of
from planner.errors import InputError, UsageError

if TYPE_CHECKING:
    from planner.api.jobs.keys import Keys

__all__ = ["configure", "run"]

LOCAL: Final = "local"  # whoever uses the service without keys
_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a key and print its secret, once")
    owner = create.add_mutually_exclusive_group(required=True)
    owner.add_argument("--tenant", metavar="T", help="the tenant that owns the key; tenants do not see each other")
    owner.add_argument(
        "--metrics", action="store_true", help="the key opens /metrics, which counts all tenants, and nothing else"
    )
    create.add_argument("--name", default="", metavar="N", help="what the key is for")
    create.add_argument(
        "--adopt", action="store_true", help="the tenant takes over the jobs and plans that were made without keys"
    )
    listed = actions.add_parser("list", help="list all keys, without their secrets")
    listed.add_argument("--tenant", metavar="T", help="list the keys of this tenant alone")
    revoke = actions.add_parser("revoke", help="end a key at once")
    revoke.add_argument("key", metavar="ID", help="the id of the key, as `planner keys list` shows it")
    for action in (create, listed, revoke):
        add_settings(action, "data", "store")
        action.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def run(options: argparse.Namespace) -> int:
    from planner.api.jobs.opening import open_database

    settings = settings_of(options)
    data = settings.data
    try:
        if options.action != "create" and not settings.store and not data.is_dir():
            # Looking makes no folder: it would hide that another one was meant.
            raise UsageError(
                f"--data {data}: there is no such folder, so it holds no keys; name that of `planner serve`"
            )
        keys = Keys(open_database(data, settings.store))
        if options.action == "create":
            if not options.metrics and (not _TENANT.fullmatch(options.tenant) or options.tenant == LOCAL):
                raise UsageError(
                    f"--tenant {options.tenant!r}: expected lower-case letters, digits, '.', '_' and '-', and not "
                    "local, which stands for whoever uses the service without keys"
                )
            if options.metrics and options.adopt:
                raise UsageError("--adopt: a key for /metrics has no jobs; leave one of the two out")
            _create(keys, MONITOR if options.metrics else options.tenant, options)
        elif options.action == "revoke":
            keys.revoke(options.key)
            print(json.dumps({"id": options.key}) if options.json else f"key {options.key} is revoked")
        else:
            found = keys.list(options.tenant)
            if options.json:
                listed = [
                    {
                        "id": k.id,
                        "tenant": k.tenant,
                        "name": k.name,
                        "created_at": moment(k.created_at),
                        "revoked_at": None if k.revoked_at is None else moment(k.revoked_at),
                    }
                    for k in found
                ]
                print(json.dumps(listed, indent=1))
            elif not found:
                where = "the store" if settings.store else data
                print(f"no keys in {where}; `planner keys create --tenant NAME` makes one", file=sys.stderr)
            for k in () if options.json else found:
                ended = "" if k.revoked_at is None else f"   revoked {_date(k.revoked_at)}"
                print(f"{k.id}  {k.tenant:20} {_date(k.created_at)}  {k.name}{ended}")
    except NotFound as e:
        raise UsageError(str(e)) from e
    except StoreError as e:
        raise InputError(str(e)) from e
    return 0


def _create(keys: Keys, tenant: str, options: argparse.Namespace) -> None:
    document: dict[str, Any] = {"tenant": tenant, "name": options.name}
    said = ""
    if options.adopt:
        key, secret, adopted = keys.create_adopting(tenant, options.name, LOCAL)
        document |= {"adopted": {"jobs": adopted.jobs, "plans": adopted.plans}}
        said = f"\n({tenant} has {adopted.jobs} jobs and {adopted.plans} plans that were made without keys)"
    else:
        key, secret = keys.create(tenant, options.name)
        if tenant != MONITOR and keys.jobs_of(LOCAL):
            print(
                "jobs that were made without keys belong to no key; `planner keys create --tenant NAME --adopt` makes "
                "one that has them",
                file=sys.stderr,
            )
    document |= {"id": key, "secret": secret}
    print(json.dumps(document, indent=1) if options.json else f"{secret}\n(key {key}; it is not shown again){said}")


def _date(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment))
