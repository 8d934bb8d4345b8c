"""mlp-zero on 8 devices in hybrid_parallel mode: slices, and collectives to insert.

    mark(network)               # MindSpore then sums no gradient by itself
    group_of("x", get_rank())   # the ranks that communicate over an axis of the plan's mesh

In this mode MindSpore would sum gradients over all ranks alike, whatever they hold; so every parameter is marked, and
the sums are among COLLECTIVES, as the plan has them.
Made by `planner emit --target mindspore`; the plan decides, edit that.
"""

# Parameter -> axes of the mesh that slice each dimension; a rank holds the slice at its place along them.
SLICED = {'layers.0.weight': (('x',), ()),
 'layers.0.bias': (('x',),),
 'layers.1.weight': (('x',), ()),
 'layers.1.bias': (('x',),),
 'layers.2.weight': (('x',), ()),
 'layers.2.bias': (('x',),)}

# In order: (parameter, or tensor of the ONNX graph; forward or gradient; operator that reads it alone, or "";
# [(primitive, axes of the mesh, dimension, second dimension of an exchange)]).
COLLECTIVES = [('layers.0.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('layers.0.bias', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('layers.1.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('layers.1.bias', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('layers.2.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('layers.2.bias', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('layers.2.bias', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('layers.2.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('layers.1.bias', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('layers.1.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('layers.0.bias', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('layers.0.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)])]

# Operator -> collectives inside it, as of statistics over a divided dimension: (primitive, axes, pass, how many).
INSIDE = {'softmaxcrossentropyloss': [('AllReduce', 'x', 'forward', 1)]}

# Axes of the mesh -> groups of ranks within one pipeline stage, for mindspore.communication.create_group.
GROUPS = {'x': [[0, 1, 2, 3, 4, 5, 6, 7]]}


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
    stage = rank // 8 * 8
    return next([stage + r for r in g] for g in GROUPS[axes] if rank - stage in g)
