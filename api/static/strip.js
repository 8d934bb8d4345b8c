// A model without its weights, as planner/frontends/file/strip.py does it: nothing is parsed but the frame of the message,
// and the same bytes come out (sparse tensors stay whole here).  Field numbers are those of onnx.proto.

const SMALL = 1024; // bytes of a tensor's message; what is smaller stays
const WHOLE = new Set([2, 3, 4, 5, 6, 7, 9, 12, 13, 21, 22, 25, 26]); // integers and booleans
const STRING = 8;
const TYPES = 28; // element types are 1 to 28
const INTEGER_BYTES = 256 * 1024;
const OTHER_BYTES = 1024;
const LONGEST_VECTOR = 2 ** 20; // of vectors it is said whether they hold one number throughout
const FILLED = new Map([[1, [4, 8]], [10, [2, 5]], [11, [8, 11]], [16, [2, 8]]]); // float type → bytes, bits of the exponent
const DATA = new Set([4, 5, 6, 7, 9, 10, 11]);
const TRACES = new Set(["pkg.torch.onnx.stack_trace", "pkg.torch.onnx.fx_node"]);
const MARK = new TextEncoder().encode("weights-left-out");
const LOCATION = new TextEncoder().encode("location");
const FILL = new TextEncoder().encode("fill");

export class Malformed extends Error {}

// Uint8Array → list of pieces, for a Blob or a body.
export function strip(data) {
  return flat(model(data));
}

// Whether there is a graph with an operator in it: texts and other files may have the frame of a message by chance.
export function holdsGraph(data) {
  for (const [number, , inner] of fields(data)) {
    if (number !== 7 || !inner) continue;
    for (const [within, , node] of fields(inner)) if (within === 1 && node) for (const [named] of fields(node)) if (named === 4) return true;
  }
  return false;
}

const text = (bytes) => new TextDecoder().decode(bytes);

function* fields(view) {
  let at = 0;
  while (at < view.length) {
    const start = at;
    let tag, inner = null;
    [tag, at] = readVarint(view, at);
    const number = Math.floor(tag / 8);
    const kind = tag % 8;
    if (kind === 2) {
      let length;
      [length, at] = readVarint(view, at);
      inner = view.subarray(at, at + length);
      at += length;
    } else if (kind === 0) [, at] = readVarint(view, at);
    else if (kind === 1) at += 8;
    else if (kind === 5) at += 4;
    else throw new Malformed("unknown wire type");
    if (at > view.length || number === 0) throw new Malformed("a field ends behind its message");
    yield [number, view.subarray(start, at), inner, start];
  }
}

function readVarint(view, begin) {
  let value = 0;
  for (let at = begin, scale = 1; at < Math.min(begin + 10, view.length); at++, scale *= 128) {
    value += (view[at] & 127) * scale;
    if (view[at] < 128) return [value, at + 1];
  }
  throw new Malformed("a number without an end");
}

function varint(value) {
  const out = [];
  while (value > 127) {
    out.push((value % 128) | 128);
    value = Math.floor(value / 128);
  }
  out.push(value);
  return Uint8Array.from(out);
}

// Pieces are arrays of bytes and of pieces.
const flat = (pieces) => pieces.flat(Infinity);
const sized = (pieces) => flat(pieces).reduce((sum, p) => sum + p.length, 0);

function nested(number, pieces) {
  const list = flat(pieces);
  return [varint(number * 8 + 2), varint(sized(list)), ...list];
}

function model(view) {
  const out = [];
  for (const [number, whole, inner] of fields(view)) {
    if (number === 7 && inner) out.push(nested(7, graph(inner)));
    else if (number === 25 && inner) out.push(nested(25, nodes(inner, 7)));
    else if (number !== 20) out.push(whole);
  }
  return out;
}

function graph(view) {
  const out = [];
  for (const [number, whole, inner] of fields(view)) {
    if (inner && number === 5) out.push(nested(5, tensor(inner)));
    else if (inner && number === 1) out.push(nested(1, node(inner)));
    else out.push(whole);
  }
  return out;
}

function nodes(view, at) {
  const out = [];
  for (const [number, whole, inner] of fields(view)) out.push(number === at && inner ? nested(at, node(inner)) : whole);
  return out;
}

function node(view) {
  const all = [...fields(view)];
  let kind = "";
  let domain = "";
  for (const [number, , inner] of all) {
    if (number === 4 && inner) kind = text(inner);
    if (number === 7 && inner) domain = text(inner);
  }
  const constant = kind === "Constant" && (domain === "" || domain === "ai.onnx");
  const out = [];
  for (const [number, whole, inner] of all) {
    if (number === 6 || (number === 9 && inner && isTrace(inner))) continue;
    out.push(constant && number === 5 && inner && inner.length > SMALL ? nested(5, attribute(inner)) : whole);
  }
  return out;
}

function isTrace(entry) {
  for (const [number, , inner] of fields(entry)) if (number === 1 && inner && TRACES.has(text(inner))) return true;
  return false;
}

function attribute(view) {
  const all = [...fields(view)];
  if (all.filter(([number]) => number === 5).length > 1) return [view];
  return all.map(([number, whole, inner]) => (number === 5 && inner ? nested(5, tensor(inner)) : whole));
}

function tensor(view) {
  if (view.length <= SMALL) return [view];
  const kept = [];
  const dims = [];
  let type = 0;
  let location = 0;
  let data = false;
  for (const [number, whole, inner] of fields(view)) {
    if (DATA.has(number)) data = true;
    else kept.push(whole);
    if (number === 1 && inner) for (let at = 0, d; at < inner.length; ) [d, at] = readVarint(inner, at), dims.push(d);
    else if (number === 1) dims.push(readVarint(whole, 1)[0]);
    else if (number === 2) type = readVarint(whole, 1)[0];
    else if (number === 14) location = readVarint(whole, 1)[0];
  }
  const count = dims.reduce((a, b) => a * b, 1);
  const read = type !== STRING && (WHOLE.has(type) ? count * 8 <= INTEGER_BYTES : count * 4 <= OTHER_BYTES);
  const negative = dims.some((d) => d >= 2 ** 63);
  if (!data || location === 1 || type < 1 || type > TYPES || negative || read) return [view];
  const entries = nested(13, [...nested(1, [LOCATION]), ...nested(2, [MARK])]);
  const light = dims.filter((d) => d !== 1).length === 1 && !dims.includes(0) && Math.max(...dims) <= LONGEST_VECTOR;
  const same = light && FILLED.has(type) ? filled(view, count, ...FILLED.get(type)) : null;
  if (same !== null) entries.push(...nested(13, [...nested(1, [FILL]), ...nested(2, [Uint8Array.of(same ? 49 : 48)])]));
  return [...kept, ...entries, Uint8Array.of(112, 1)];
}

// Whether a tensor of floats holds one number throughout; null where its data is not as its dimensions say.
function filled(view, count, width, exponent) {
  const numbers = elements(view, width);
  if (numbers === null || numbers.length !== count) return null;
  const bits = BigInt(8 * width);
  const magnitude = (1n << (bits - 1n)) - 1n;
  const infinite = ((1n << BigInt(exponent)) - 1n) << (bits - 1n - BigInt(exponent));
  const first = numbers[0];
  if ((first & magnitude) > infinite) return false; // what is no number equals nothing
  return numbers.every((v) => v === first || ((v & magnitude) === 0n && (first & magnitude) === 0n));
}

// Bit patterns of the elements, from the field that holds them.
function elements(view, width) {
  const out = [];
  let raw = null;
  const little = (piece) => {
    const data = new DataView(piece.buffer, piece.byteOffset, piece.byteLength);
    for (let at = 0; at + width <= piece.length; at += width) out.push(width === 8 ? data.getBigUint64(at, true) : BigInt(width === 4 ? data.getUint32(at, true) : data.getUint16(at, true)));
    return piece.length % width === 0;
  };
  for (const [number, whole, inner] of fields(view)) {
    if (number === 9 && inner) raw = inner;
    else if ((number === 4 && width === 4) || (number === 10 && width === 8)) {
      if (!little(inner || whole.subarray(1))) return null;
    } else if (number === 5 && width === 2) {
      const [piece, from] = inner ? [inner, 0] : [whole, 1];
      for (let at = from, v; at < piece.length; ) [v, at] = readVarint(piece, at), out.push(BigInt(v) & 0xffffn);
    }
  }
  if (raw === null) return out;
  out.length = 0;
  return little(raw) ? out : null;
}
