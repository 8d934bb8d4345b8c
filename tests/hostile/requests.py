"""Hostile requests to the service: options, forms, constraints and headers, around a model that is harmless.

Each has a name and is answered by a problem, or by a job that ends; what it says of itself is what may go wrong.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from tests.hostile.large import valid_wide
from tests.hostile.names import MARKUP, PATHS, TERMINAL, layers
from tests.hostile.parts import chain, model, plain, serialized

__all__ = ["ONNX", "REQUESTS", "Asked"]

ONNX = "application/octet-stream"
BOUNDARY = "xyzzy"
FORM = f"multipart/form-data; boundary={BOUNDARY}"


@dataclass(frozen=True, slots=True)
class Asked:
    """`statuses`: how it may be answered at once; a job that comes of it ends in a plan or in a problem."""

    body: bytes
    query: str = "devices=4"
    media: str = ONNX
    headers: dict[str, str] = field(default_factory=dict)
    statuses: tuple[int, ...] = (202, 400, 413, 415, 422, 431)


def options(**given: object) -> str:
    return urlencode({"devices": 4, **given}, doseq=True)


def part(name: str, content: bytes, filename: str | None = None, head: bytes = b"") -> bytes:
    told = f'form-data; name="{name}"' + ("" if filename is None else f'; filename="{filename}"')
    opening = f"--{BOUNDARY}\r\nContent-Disposition: {told}\r\n".encode("utf-8", "surrogateescape")
    return opening + head + b"\r\n" + content + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + END


MODEL = serialized(layers(["dense", "out"]))
RELU = serialized(plain())
LONG = serialized(model(chain(["Relu", "Neg"] * 1000)))


def constrained(text: bytes) -> Asked:
    return Asked(form(part("model", MODEL, "m.onnx"), part("constraints", text, "c.yaml")), media=FORM)


def laughs() -> bytes:
    """Nine anchors, each of ten references to the one before: a thousand million."""
    lines = ["a0: &a0 [lol]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    return ("\n".join(lines) + "\npins: *a9\n").encode()


CONSTRAINTS = {
    "yaml_laughs": laughs(),
    "yaml_cycle": b"a: &a [*a]\npins: *a\n",
    "yaml_merges": b"a: &a {x: 1}\n" + b"b: {" + b", ".join([b"<<: *a"] * 20_000) + b"}\n",
    "yaml_deep": b"[" * 200_000,
    "yaml_deep_closed": b"[" * 50_000 + b"]" * 50_000,
    "yaml_deep_blocks": b"".join(b" " * i + b"a:\n" for i in range(2000)),
    "yaml_object": b"!!python/object/apply:os.system ['touch /tmp/escaped']\n",
    "yaml_long_key": b"? " + b"k" * 5_000_000 + b"\n: 1\n",
    "yaml_many_keys": b"{" + b", ".join(b"k%d: 1" % i for i in range(300_000)) + b"}",
    "yaml_many_documents": b"---\na: 1\n" * 200_000,
    "yaml_huge_number": b"batch: " + b"9" * 1_000_000 + b"\n",
    "yaml_sexagesimal": b"batch: " + b"1:" * 200_000 + b"1\n",
    "yaml_not_utf8": b"pins: \xff\xfe\xed\xa0\x80\n",
    "yaml_nul": b"pins: \0\n",
    "yaml_controls": b"\x1b[31mpins: [\x1b]0;x\x07]\n",
    "yaml_many_pins": b"operators:\n" + b"- {match: '*', parameters: {}}\n" * 50_000,
    "json_deep": b'{"a":' * 100_000,
    "json_twice": b'{"version": 1, "version": 2}',
    "plan_of_garbage": b'{"version": 1, "model": {"name": "</script>"}, "operators": {"\\u001b[2J": {}}}',
}

PINS = {
    "glob_of_stars": "*" * 900 + "x m=x",
    "glob_of_stars_between": "*a" * 450 + "b m=x",
    "glob_of_brackets": "[" * 900 + " m=x",
    "glob_of_ranges": "[a-" * 300 + " m=x",
    "pin_of_markup": MARKUP[0] + " m=x",
    "pin_of_terminal": TERMINAL[0] + " m=x",
    "pin_of_layout": "*.weight stored=" + "[_," * 300,
    "pin_of_axes": "*MatMul m=" + "x," * 400,
    "pin_of_sign": "*MatMul m=-1",
    "pin_of_equals": "=" * 999,
    "pin_of_digits": "*MatMul m=" + "9" * 900,
}

OPTIONS = {
    "devices_most": options(devices=16384),
    "devices_beyond": options(devices=16385),
    "devices_huge": options(devices=10**30),
    "devices_prime": options(devices=16381),
    "devices_text": options(devices="4; rm -rf /"),
    "devices_digits_of_others": options(devices="٤"),
    "devices_twice": "devices=4&devices=8",
    "mesh_huge": options(mesh="9999999x1"),
    "mesh_many": options(mesh="x".join(["1"] * 500)),
    "mesh_of_four": options(devices=256, mesh="4x4x4x4"),
    "mesh_four_uneven": options(devices=16384, mesh="2x2x2x2048"),
    "mesh_zero": options(mesh="0x4"),
    "nodes_huge": options(nodes=10**9),
    "batch_most": options(batch=10**9),
    "batch_huge": options(batch=10**19),
    "batch_odd": options(batch=999999937),
    "stages_many": options(devices=16384, stages=16384),
    "stages_more_than_operators": options(devices=64, stages=64),
    "micro_batches_many": options(batch=10**9, micro_batches=10**9),
    "micro_batches_million": options(batch=10**6, micro_batches=10**6, stages=2),
    "memory_one": options(memory_limit="1"),
    "memory_tera": options(memory_limit="999999999999999TiB"),
    "memory_digits": options(memory_limit="9" * 100_000),
    "time_1e300": options(time_limit="1e300"),
    "time_nan": options(time_limit="nan"),
    "time_inf": options(time_limit="inf"),
    "time_negative": options(time_limit="-1"),
    "time_tiny": options(time_limit="5e-324"),
    "time_underscores": options(time_limit="1_0"),
    "top_k": options(devices=16, top_k=16),
    "bind_many": options(bind=[f"d{i}=7" for i in range(1000)]),
    "bind_huge": options(bind="x.0=999999999"),
    "bind_markup": options(bind="</script>=1"),
    "strategy_unknown": options(strategy="\u202emegatron"),
    "strategy_huge": options(devices=16384, strategy="megatron:tp=16384,pp=1,micro_batch=999999999"),
    "strategy_many": options(strategy="megatron:" + ",".join(["tp=4"] * 190)),
    "hardware_path": options(hardware="../../../../etc/passwd"),
    "hardware_device": options(hardware="/dev/zero"),
    "name_path": options(name="../../x"),
    "name_dash": options(name="--help"),
    "name_nul": options(name="a\0b"),
    "name_newline": options(name="a\r\nSet-Cookie: a=b"),
    "name_megabyte": options(name="n" * 60_000),
    "unknown_many": options(**{f"k{i}": 1 for i in range(3000)}),
    "query_not_utf8": "devices=4&name=%ff%fe%ed%a0%80",
    "query_of_percent": "devices=4&name=" + "%" * 5000,
    "pins_200": options(pin=["*" * 40 + "a" + "*" * 40 + " m=x"] * 200),
    "megabyte_of_pins": options(pin="p" * 60_000),
}


def _requests() -> dict[str, Asked]:
    out = {name: constrained(text) for name, text in CONSTRAINTS.items()}
    out |= {name: Asked(MODEL, options(pin=pin)) for name, pin in PINS.items()}
    out |= {name: Asked(MODEL, query) for name, query in OPTIONS.items()}
    out["glob_of_stars_long_names"] = Asked(serialized(layers(["a" * 3000])), options(pin="*a" * 450 + "b m=x"))
    out["devices_most_of_wide"] = Asked(valid_wide(), options(devices=16384))
    out["devices_most_of_long"] = Asked(LONG, options(devices=16384))
    out["stages_of_long"] = Asked(LONG, options(devices=1024, stages=512, batch=2048, micro_batches=1024))
    zipped = gzip.compress(bytes(60 << 20))
    out["gzip_encoded"] = Asked(gzip.compress(RELU), headers={"content-encoding": "gzip"})
    out["gzip_bomb"] = Asked(zipped, headers={"content-encoding": "gzip"})
    out["gzip_bytes"] = Asked(zipped)
    out["type_lies"] = Asked(RELU, media="application/octet-stream; charset=</script>")
    out["type_other"] = Asked(RELU, media="text/html")
    out["type_long"] = Asked(RELU, media="application/" + "x" * 30_000)
    out["form_without_end"] = Asked(part("model", RELU), media=FORM)
    out["form_without_boundary"] = Asked(form(part("model", RELU)), media="multipart/form-data")
    out["form_boundary_long"] = Asked(RELU, media="multipart/form-data; boundary=" + "b" * 20_000)
    out["form_twice"] = Asked(form(part("model", RELU), part("model", RELU)), media=FORM)
    out["form_of_thousands"] = Asked(form(*[part(f"p{i}", b"") for i in range(20_000)]), media=FORM)
    out["form_long_header"] = Asked(form(part("model", RELU, head=b"X: " + b"y" * 2_000_000 + b"\r\n")), media=FORM)
    out["form_many_headers"] = Asked(form(part("model", RELU, head=b"X: y\r\n" * 100_000)), media=FORM)
    out["form_nested"] = Asked(
        form(part("model", form(part("model", RELU)), head=f"Content-Type: {FORM}\r\n".encode())), media=FORM
    )
    out["form_encoded"] = Asked(
        form(part("model", gzip.compress(RELU), head=b"Content-Encoding: gzip\r\n")), media=FORM
    )
    out["form_of_dashes"] = Asked(b"-" * (4 << 20), media=FORM)
    out["form_of_almost_boundaries"] = Asked(
        form(part("model", f"\r\n--{BOUNDARY[:-1]}".encode() * 400_000)), media=FORM
    )
    out["form_name_not_utf8"] = Asked(form(part("\udcff\udcfe", RELU)), media=FORM)
    for i, name in enumerate((*PATHS, *MARKUP[:6], *TERMINAL)):
        if not set(name) & set('"\r\n\0'):
            out[f"filename_{i}"] = Asked(form(part("model", MODEL, f"{name}.onnx")), media=FORM)
    out["idempotency_of_controls"] = Asked(RELU, headers={"idempotency-key": "\x7f</script>"})
    out["prefer_huge"] = Asked(RELU, headers={"prefer": "wait=" + "9" * 5000})
    out["prefer_many"] = Asked(RELU, headers={"prefer": "wait=0, " * 900})
    out["request_id_of_markup"] = Asked(RELU, headers={"x-request-id": quote("\x1b[31m", safe="") + "</script>"})
    out["traceparent_long"] = Asked(RELU, headers={"x-long": "a" * 60_000})
    out["headers_many"] = Asked(RELU, headers={f"x-{i}": "y" for i in range(5000)})
    out["nothing"] = Asked(b"")
    return out


REQUESTS = _requests()
