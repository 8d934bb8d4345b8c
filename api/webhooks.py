"""Whoever asked for it is sent a request once a job has ended: until it is taken, ten times at most.

Where a request goes is decided by the operator, by names of hosts (`--webhook-hosts`), and by what these names mean
when it is sent: addresses at which clouds and neighbours on the link answer get none.  Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import json
import logging
import socket
import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import httpx

from planner.api.errors import Problem
from planner.api.jobs.errors import StoreError
from planner.api.jobs.records import JobRecord
from planner.api.jobs.store import Store
from planner.api.jobs.webhooks import Webhook

__all__ = ["Deliveries", "checked", "signature"]

_log = logging.getLogger("planner.service")

TRIES: Final = 10
FIRST_S: Final = 5.0  # until the second try; four times as long until each further one
LONGEST_S: Final = 3600.0
PATIENCE_S: Final = 10.0  # for one answer
AT_A_TIME: Final = 64
EACH: Final = 4  # of one tenant at a time: receivers that take their time keep nobody else's waiting
EVERY_S: Final = 1.0  # between two looks for jobs that have ended
SOON_S: Final = 0.1  # and at least, where there is room for more
# Where clouds tell a machine its own credentials, beside the link-local addresses.
_METADATA: Final = frozenset(
    map(
        ipaddress.ip_address,
        ("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    )
)
_TRANSLATED: Final = ipaddress.ip_network("64:ff9b::/96")  # IPv4 by way of a translator (RFC 6052)


class _Refused(Exception):
    """The host's name means an address that nothing is sent to."""


def checked(url: str, hosts: Collection[str]) -> str:
    """The URL.  Problem `usage` where it is none that a webhook may have."""
    parts = _parts(url)
    if parts is None or parts.scheme not in ("http", "https") or parts.username is not None or parts.fragment:
        raise Problem("usage", f"webhook {url[:200]!r}: expected http:// or https://, a host, and a path")
    if parts.hostname not in hosts:
        allowed = f"one of {', '.join(sorted(hosts))}" if hosts else "none, as the service has no --webhook-hosts"
        raise Problem("usage", f"webhook {url[:200]!r}: its host may be {allowed}")
    return url


def signature(secret: str, moment: int, body: bytes) -> str:
    """`t=MOMENT,v1=HMAC`, of the moment, a full stop and the body, by SHA-256."""
    signed = hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={moment},v1={signed}"


def _parts(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        named = parts.hostname and parts.port != 0  # a port that is none is a ValueError
    except ValueError:
        return None
    return parts if named and url.isascii() and url.isprintable() and " " not in url else None


class Deliveries:
    """Sends what is due until it is stopped; any number of processes may do so on one store."""

    def __init__(self, store: Store, hosts: Collection[str]) -> None:
        self.store, self.hosts = store, hosts

    async def run(self) -> None:
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs addresses, which may hold secrets of a tenant
        at_work: dict[asyncio.Task[None], str] = {}
        async with httpx.AsyncClient(timeout=PATIENCE_S, follow_redirects=False, trust_env=False) as client:
            try:
                while True:
                    with contextlib.suppress(StoreError):  # said by whatever else meets it
                        for webhook in await asyncio.to_thread(self.due, Counter(at_work.values())):
                            at_work[asyncio.create_task(self.send(client, webhook))] = webhook.tenant
                    await asyncio.sleep(SOON_S if at_work else EVERY_S)
                    if at_work:
                        await asyncio.wait(at_work, timeout=EVERY_S, return_when=asyncio.FIRST_COMPLETED)
                    for task in [t for t in at_work if t.done()]:
                        del at_work[task]
                        if (error := task.exception()) is not None and not isinstance(error, StoreError):
                            _log.error("a webhook was not sent", exc_info=error)  # it is due again in a while
            finally:
                for task in at_work:
                    task.cancel()
                await asyncio.gather(*at_work, return_exceptions=True)

    def due(self, at_work: Mapping[str, int]) -> list[Webhook]:
        """Those that are to be sent now, beside so many of each tenant that are being sent."""
        room = AT_A_TIME - sum(at_work.values())
        if room <= 0:
            return []
        full = [tenant for tenant, count in at_work.items() if count >= EACH]
        each = 1 if at_work else EACH  # no tenant has more than so many, whatever it has already
        return self.store.webhooks.take(self.store.now(), PATIENCE_S + 30.0, room, each, full)

    async def send(self, client: httpx.AsyncClient, webhook: Webhook) -> None:
        """One try."""
        found = await asyncio.to_thread(self.store.job, webhook.tenant, webhook.job)
        try:
            async with asyncio.timeout(PATIENCE_S):  # of all of it: an answer may come a byte at a time
                status = await self._post(client, webhook, _body(found))
            problem = None if 200 <= status < 300 else f"answered {status}"
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, Problem, _Refused) as e:
            problem = f"{type(e).__name__}: {e}"
        if problem is None or webhook.tries + 1 >= TRIES:
            await asyncio.to_thread(self.store.webhooks.end, webhook)
        else:
            pause = min(LONGEST_S, FIRST_S * 4.0**webhook.tries)
            await asyncio.to_thread(self.store.webhooks.again, webhook, pause)
        if problem is not None:
            host = urlsplit(webhook.url).hostname
            fields = {"job": webhook.job, "host": host, "why": problem[:300], "try": webhook.tries + 1, "of": TRIES}
            _log.warning("a webhook was not taken", extra={"fields": fields})

    async def _post(self, client: httpx.AsyncClient, webhook: Webhook, body: bytes) -> int:
        """The status that was answered; the answer itself is not read."""
        parts = urlsplit(checked(webhook.url, self.hosts))  # the operator may have changed the hosts since
        address = await _address(str(parts.hostname), parts.port or (443 if parts.scheme == "https" else 80))
        headers = {
            "host": parts.netloc,
            "content-type": "application/json",
            "user-agent": "planner-webhook",
            "planner-job": webhook.job,
            "planner-signature": signature(webhook.secret, int(time.time()), body),
        }
        # By the address that was looked at, so that the name cannot come to mean another one meanwhile.
        url = httpx.URL(webhook.url).copy_with(host=address)
        request = client.build_request("POST", url, content=body, headers=headers)
        request.extensions |= {"sni_hostname": parts.hostname}
        answer = await client.send(request, stream=True)
        await answer.aclose()
        return answer.status_code


async def _address(host: str, port: int) -> str:
    """The first address of the host; _Refused where nothing is sent to any of them."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    for address in addresses:
        ip: Any = ipaddress.ip_address(address.partition("%")[0])
        ip = getattr(ip, "ipv4_mapped", None) or getattr(ip, "sixtofour", None) or ip
        if ip in _TRANSLATED:
            ip = ipaddress.ip_address(int(ip) & 0xFFFFFFFF)
        if ip.is_link_local or ip.is_multicast or ip.is_unspecified or ip in _METADATA:
            raise _Refused(f"{host} is {ip}")
    return addresses[0]


def _body(job: JobRecord) -> bytes:
    document = {"job": job.id, "status": job.status, "plan": job.plan, "href": f"/v1/jobs/{job.id}"}
    return json.dumps(document).encode()
