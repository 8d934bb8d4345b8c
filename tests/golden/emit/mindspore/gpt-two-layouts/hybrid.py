"""gpt-two-layouts on 4 devices in hybrid_parallel mode: slices, and collectives to insert.

    mark(network)               # MindSpore then sums no gradient by itself
    group_of("x", get_rank())   # the ranks that communicate over an axis of the plan's mesh

In this mode MindSpore would sum gradients over all ranks alike, whatever they hold; so every parameter is marked, and
the sums are among COLLECTIVES, as the plan has them.
Made by `planner emit --target mindspore`; the plan decides, edit that.
"""

# Parameter -> axes of the mesh that slice each dimension; a rank holds the slice at its place along them.
SLICED = {'transformer.h.0.attn.c_attn.weight': ((), ('y',)),
 'transformer.h.0.attn.c_proj.weight': (('y',), ()),
 'transformer.h.0.mlp.c_fc.weight': ((), ('y',)),
 'transformer.h.0.mlp.c_proj.weight': (('y',), ()),
 'transformer.h.1.attn.c_attn.weight': ((), ('y',)),
 'transformer.h.1.attn.c_proj.weight': (('y',), ()),
 'transformer.h.1.mlp.c_fc.weight': ((), ('y',)),
 'transformer.h.1.mlp.c_proj.weight': (('y',), ())}

# In order: (parameter, or tensor of the ONNX graph; forward or gradient; operator that reads it alone, or "";
# [(primitive, axes of the mesh, dimension, second dimension of an exchange)]).
COLLECTIVES = [('transformer.add', 'forward', '', [('AllReduce', 'y', -1, -1)]),
 ('transformer.h.0.attn.c_attn.matmul', 'forward', '', [('AllGather', 'y', 2, -1)]),
 ('transformer.h.0.add', 'forward', '', [('AllReduce', 'y', -1, -1)]),
 ('transformer.h.0.mlp.c_fc.matmul', 'forward', '', [('AllGather', 'y', 2, -1)]),
 ('transformer.h.0.add_1', 'forward', '', [('AllReduce', 'y', -1, -1)]),
 ('transformer.h.1.attn.c_attn.matmul', 'forward', '', [('AllGather', 'y', 2, -1)]),
 ('transformer.h.1.add', 'forward', '', [('AllReduce', 'y', -1, -1)]),
 ('transformer.h.1.mlp.c_fc.matmul', 'forward', '', [('AllGather', 'y', 2, -1)]),
 ('transformer.h.1.add_1', 'forward', '', [('AllReduce', 'y', -1, -1)]),
 ('lm_head.matmul', 'forward', '', [('AllGather', 'y', 2, -1)]),
 ('lm_head.transpose', 'gradient', '', [('AllGather', 'y', 1, -1)]),
 ('transformer.ln_f.weight', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('transformer.ln_f.bias', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('transformer.h.1.add_1', 'gradient', '', [('AllReduce', 'y', -1, -1)]),
 ('transformer.h.1.mlp.c_proj.bias', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('transformer.h.1.mlp.c_proj.weight', 'gradient', '', [('AllReduce', 'x', -1, -1)]),
 ('transformer.h.1.mlp.gelu', 'gradient', '', [('AllGather', 'y', 2, -1)]),
 ('transformer.h.1.mlp.c_fc.bias', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('transformer.h.1.mlp.c_fc.weight', 'gradient', '', [('AllReduce', 'x', -1, -1)]),
 ('transformer.h.1.ln_2.layernormalization', 'gradient', '', [('AllReduce', 'y', -1, -1)]),
 ('transformer.h.1.ln_2.weight', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('transformer.h.1.ln_2.bias', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('transformer.h.1.attn.c_proj.bias', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('transformer.h.1.attn.c_proj.weight', 'gradient', '', [('AllReduce', 'x', -1, -1)]),
 ('transformer.h.1.attn.reshape_1', 'gradient', '', [('AllGather', 'y', 2, -1)]),
 ('transformer.h.1.attn.c_attn.bias', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('transformer.h.1.attn.c_attn.weight', 'gradient', '', [('AllReduce', 'x', -1, -1)]),
 ('transformer.h.1.ln_1.layernormalization', 'gradient', '', [('AllReduce', 'y', -1, -1)]),
 ('transformer.h.1.ln_1.weight', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('transformer.h.1.ln_1.bias', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('transformer.h.0.mlp.c_proj.bias', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('transformer.h.0.mlp.c_proj.weight', 'gradient', '', [('AllReduce', 'x', -1, -1)]),
 ('transformer.h.0.mlp.gelu', 'gradient', '', [('AllGather', 'y', 2, -1)]),
 ('transformer.h.0.mlp.c_fc.bias', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('transformer.h.0.mlp.c_fc.weight', 'gradient', '', [('AllReduce', 'x', -1, -1)]),
 ('transformer.h.0.ln_2.layernormalization', 'gradient', '', [('AllReduce', 'y', -1, -1)]),
 ('transformer.h.0.ln_2.weight', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('transformer.h.0.ln_2.bias', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('transformer.h.0.attn.c_proj.bias', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('transformer.h.0.attn.c_proj.weight', 'gradient', '', [('AllReduce', 'x', -1, -1)]),
 ('transformer.h.0.attn.reshape_1', 'gradient', '', [('AllGather', 'y', 2, -1)]),
 ('transformer.h.0.attn.c_attn.bias', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('transformer.h.0.attn.c_attn.weight', 'gradient', '', [('AllReduce', 'x', -1, -1)]),
 ('transformer.h.0.ln_1.layernormalization', 'gradient', '', [('AllReduce', 'y', -1, -1)]),
 ('transformer.h.0.ln_1.weight', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('transformer.h.0.ln_1.bias', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('transformer.wpe.weight', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('transformer.wte.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1), ('AllGather', 'y.x', 0, -1)])]

# Operator -> collectives inside it, as of statistics over a divided dimension: (primitive, axes, pass, how many).
INSIDE = {'softmaxcrossentropyloss': [('AllReduce', 'x', 'forward', 1)]}

# Axes of the mesh -> groups of ranks within one pipeline stage, for mindspore.communication.create_group.
GROUPS = {'x': [[0, 2], [1, 3]], 'x.y': [[0, 1, 2, 3]], 'y': [[0, 1], [2, 3]], 'y.x': [[0, 2, 1, 3]]}


def mark(network):
    """Marks all parameters as different on every rank.  KeyError where the network lacks one that is sliced."""
    found = {p.name: p for p in network.get_parameters()}
    missing = [n for n in SLICED if n not in found]
    if missing:
        raise KeyError(f"the network has no parameter {missing[0]!r}; emit with --names that agree")
    for parameter in found.values():
        parameter.layerwise_parallel = True


def group_of(axes, rank):
    """The ranks that `rank` communicates with over these axes of the mesh, joined by dots."""
    stage = rank // 4 * 4
    return next([stage + r for r in g] for g in GROUPS[axes] if rank - stage in g)
