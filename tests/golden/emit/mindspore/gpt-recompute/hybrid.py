"""gpt-recompute on 4 devices in hybrid_parallel mode: slices, and collectives to insert.

    mark(network)               # MindSpore then sums no gradient by itself
    group_of("x", get_rank())   # the ranks that communicate over an axis of the plan's mesh

In this mode MindSpore would sum gradients over all ranks alike, whatever they hold; so every parameter is marked, and
the sums are among COLLECTIVES, as the plan has them.
Made by `planner emit --target mindspore`; the plan decides, edit that.
"""

# Parameter -> axes of the mesh that slice each dimension; a rank holds the slice at its place along them.
SLICED = {'transformer.wte.weight': (('x',), ()),
 'transformer.wpe.weight': (('x',), ()),
 'transformer.h.0.ln_1.weight': (('x',),),
 'transformer.h.0.ln_1.bias': (('x',),),
 'transformer.h.0.attn.c_attn.weight': (('x',), ()),
 'transformer.h.0.attn.c_attn.bias': (('x',),),
 'transformer.h.0.attn.c_proj.weight': (('x',), ()),
 'transformer.h.0.attn.c_proj.bias': (('x',),),
 'transformer.h.0.ln_2.weight': (('x',),),
 'transformer.h.0.ln_2.bias': (('x',),),
 'transformer.h.0.mlp.c_fc.weight': (('x',), ()),
 'transformer.h.0.mlp.c_fc.bias': (('x',),),
 'transformer.h.0.mlp.c_proj.weight': (('x',), ()),
 'transformer.h.0.mlp.c_proj.bias': (('x',),),
 'transformer.h.1.ln_1.weight': (('x',),),
 'transformer.h.1.ln_1.bias': (('x',),),
 'transformer.h.1.attn.c_attn.weight': (('x',), ()),
 'transformer.h.1.attn.c_attn.bias': (('x',),),
 'transformer.h.1.attn.c_proj.weight': (('x',), ()),
 'transformer.h.1.attn.c_proj.bias': (('x',),),
 'transformer.h.1.ln_2.weight': (('x',),),
 'transformer.h.1.ln_2.bias': (('x',),),
 'transformer.h.1.mlp.c_fc.weight': (('x',), ()),
 'transformer.h.1.mlp.c_fc.bias': (('x',),),
 'transformer.h.1.mlp.c_proj.weight': (('x',), ()),
 'transformer.h.1.mlp.c_proj.bias': (('x',),),
 'transformer.ln_f.weight': (('x',),),
 'transformer.ln_f.bias': (('x',),)}

# In order: (parameter, or tensor of the ONNX graph; forward or gradient; operator that reads it alone, or "";
# [(primitive, axes of the mesh, dimension, second dimension of an exchange)]).
COLLECTIVES = [('transformer.wte.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.wpe.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.0.ln_1.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.0.ln_1.bias', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.0.attn.c_attn.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.0.attn.c_attn.bias', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.0.attn.c_proj.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.0.attn.c_proj.bias', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.0.ln_2.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.0.ln_2.bias', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.0.mlp.c_fc.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.0.mlp.c_fc.bias', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.0.mlp.c_proj.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.0.mlp.c_proj.bias', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.1.ln_1.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.1.ln_1.bias', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.1.attn.c_attn.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.1.attn.c_attn.bias', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.1.attn.c_proj.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.1.attn.c_proj.bias', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.1.ln_2.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.1.ln_2.bias', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.1.mlp.c_fc.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.1.mlp.c_fc.bias', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.1.mlp.c_proj.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.h.1.mlp.c_proj.bias', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.ln_f.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.ln_f.bias', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('transformer.ln_f.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.ln_f.bias', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.1.mlp.c_proj.bias', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.1.mlp.c_proj.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.1.mlp.c_fc.bias', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.1.mlp.c_fc.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.1.ln_2.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.1.ln_2.bias', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.1.attn.c_proj.bias', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.1.attn.c_proj.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.1.attn.c_attn.bias', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.1.attn.c_attn.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.1.ln_1.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.1.ln_1.bias', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.0.mlp.c_proj.bias', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.0.mlp.c_proj.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.0.mlp.c_fc.bias', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.0.mlp.c_fc.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.0.ln_2.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.0.ln_2.bias', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.0.attn.c_proj.bias', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.0.attn.c_proj.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.0.attn.c_attn.bias', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.0.attn.c_attn.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.0.ln_1.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.h.0.ln_1.bias', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.wpe.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('transformer.wte.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)])]

# Operator -> collectives inside it, as of statistics over a divided dimension: (primitive, axes, pass, how many).
INSIDE = {'softmaxcrossentropyloss': [('AllReduce', 'x', 'forward', 1)]}

# Axes of the mesh -> groups of ranks within one pipeline stage, for mindspore.communication.create_group.
GROUPS = {'x': [[0, 1, 2, 3]]}


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
