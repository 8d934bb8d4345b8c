"""`planner keys create|list|revoke`: who may use the service."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time

from planner.api.jobs.errors import NotFound, StoreError
from planner.api.jobs.keys import MONITOR
from planner.api.moments import moment
from planner.api.settings import add_settings, settings_of
from planner.errors import InputError, UsageError

__all__ = ["configure", "run"]

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
    listed = actions.add_parser("list", help="list all keys, without their secrets")
    listed.add_argument("--tenant", metavar="T", help="list the keys of this tenant alone")
    revoke = actions.add_parser("revoke", help="end a key at once")
    revoke.add_argument("key", metavar="ID", help="the id of the key, as `planner keys list` shows it")
    for action in (create, listed, revoke):
        add_settings(action, "data")
        action.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(options: argparse.Namespace) -> int:
    from planner.api.jobs.store import Store

    data = settings_of(options).data
    try:
        if options.action != "create" and not data.is_dir():
            # Looking makes no folder: it would hide that another one was meant.
            raise UsageError(
                f"--data {data}: there is no such folder, so it holds no keys; name that of `planner serve`"
            )
        keys = Store(data).keys
        if options.action == "create":
            tenant = MONITOR if options.metrics else options.tenant
            if not options.metrics and (not _TENANT.fullmatch(tenant) or tenant == "local"):
                raise UsageError(
                    f"--tenant {options.tenant!r}: expected lower-case letters, digits, '.', '_' and '-', and not "
                    "local, which stands for whoever uses the service without keys"
                )
            key, secret = keys.create(tenant, options.name)
            document = {"id": key, "tenant": tenant, "name": options.name, "secret": secret}
            print(json.dumps(document, indent=1) if options.json else f"{secret}\n(key {key}; it is not shown again)")
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
                print(f"no keys in {data}; `planner keys create --tenant NAME` makes one", file=sys.stderr)
            for k in () if options.json else found:
                ended = "" if k.revoked_at is None else f"   revoked {_date(k.revoked_at)}"
                print(f"{k.id}  {k.tenant:20} {_date(k.created_at)}  {k.name}{ended}")
    except NotFound as e:
        raise UsageError(str(e)) from e
    except StoreError as e:
        raise InputError(str(e)) from e
    return 0


def _date(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment))
