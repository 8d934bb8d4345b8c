"""llama-megatron on 8 devices in hybrid_parallel mode: slices, and collectives to insert.

    mark(network)               # MindSpore then sums no gradient by itself
    group_of("x", get_rank())   # the ranks that communicate over an axis of the plan's mesh

In this mode MindSpore would sum gradients over all ranks alike, whatever they hold; so every parameter is marked, and
the sums are among COLLECTIVES, as the plan has them.
Made by `planner emit --target mindspore`; the plan decides, edit that.
"""

# Parameter -> axes of the mesh that slice each dimension; a rank holds the slice at its place along them.
SLICED = {'model.embed_tokens.weight': (('x', 'y'), ()),
 'model.layers.0.input_layernorm.weight': (('x',),),
 'model.layers.0.self_attn.q_proj.weight': (('x',), ('y',)),
 'model.layers.0.self_attn.k_proj.weight': (('x',), ('y',)),
 'model.layers.0.self_attn.v_proj.weight': (('x',), ('y',)),
 'model.layers.0.self_attn.o_proj.weight': (('x', 'y'), ()),
 'model.layers.0.post_attention_layernorm.weight': (('x',),),
 'model.layers.0.mlp.gate_proj.weight': (('x',), ('y',)),
 'model.layers.0.mlp.up_proj.weight': (('x',), ('y',)),
 'model.layers.0.mlp.down_proj.weight': (('x', 'y'), ()),
 'model.layers.1.input_layernorm.weight': (('x',),),
 'model.layers.1.self_attn.q_proj.weight': (('x',), ('y',)),
 'model.layers.1.self_attn.k_proj.weight': (('x',), ('y',)),
 'model.layers.1.self_attn.v_proj.weight': (('x',), ('y',)),
 'model.layers.1.self_attn.o_proj.weight': (('x', 'y'), ()),
 'model.layers.1.post_attention_layernorm.weight': (('x',),),
 'model.layers.1.mlp.gate_proj.weight': (('x',), ('y',)),
 'model.layers.1.mlp.up_proj.weight': (('x',), ('y',)),
 'model.layers.1.mlp.down_proj.weight': (('x', 'y'), ()),
 'model.norm.weight': (('x',),),
 'lm_head.weight': (('x',), ('y',))}

# In order: (parameter, or tensor of the ONNX graph; forward or gradient; operator that reads it alone, or "";
# [(primitive, axes of the mesh, dimension, second dimension of an exchange)]).
COLLECTIVES = [('model.embed_tokens.weight', 'forward', '', [('AllGather', 'x.y', 0, -1)]),
 ('model.embed_tokens.gather', 'forward', '', [('ReduceScatter', 'y', 1, -1)]),
 ('model.layers.0.input_layernorm.weight', 'forward', '', [('AllGather', 'x.y', 0, -1)]),
 ('model.layers.0.input_layernorm.mul_1', 'forward', '', [('AllGather', 'y', 1, -1)]),
 ('model.layers.0.self_attn.q_proj.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('model.layers.0.self_attn.k_proj.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('model.layers.0.self_attn.v_proj.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('model.layers.0.self_attn.o_proj.weight', 'forward', '', [('AllGather', 'x.y', 0, -1)]),
 ('model.layers.0.self_attn.o_proj.matmul', 'forward', '', [('ReduceScatter', 'y', 1, -1)]),
 ('model.layers.0.post_attention_layernorm.weight', 'forward', '', [('AllGather', 'x.y', 0, -1)]),
 ('model.layers.0.post_attention_layernorm.mul_1', 'forward', '', [('AllGather', 'y', 1, -1)]),
 ('model.layers.0.mlp.gate_proj.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('model.layers.0.mlp.up_proj.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('model.layers.0.mlp.down_proj.weight', 'forward', '', [('AllGather', 'x.y', 0, -1)]),
 ('model.layers.0.mlp.down_proj.matmul', 'forward', '', [('ReduceScatter', 'y', 1, -1)]),
 ('model.layers.1.input_layernorm.weight', 'forward', '', [('AllGather', 'x.y', 0, -1)]),
 ('model.layers.1.input_layernorm.mul_1', 'forward', '', [('AllGather', 'y', 1, -1)]),
 ('model.layers.1.self_attn.q_proj.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('model.layers.1.self_attn.k_proj.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('model.layers.1.self_attn.v_proj.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('model.layers.1.self_attn.o_proj.weight', 'forward', '', [('AllGather', 'x.y', 0, -1)]),
 ('model.layers.1.self_attn.o_proj.matmul', 'forward', '', [('ReduceScatter', 'y', 1, -1)]),
 ('model.layers.1.post_attention_layernorm.weight', 'forward', '', [('AllGather', 'x.y', 0, -1)]),
 ('model.layers.1.post_attention_layernorm.mul_1', 'forward', '', [('AllGather', 'y', 1, -1)]),
 ('model.layers.1.mlp.gate_proj.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('model.layers.1.mlp.up_proj.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('model.layers.1.mlp.down_proj.weight', 'forward', '', [('AllGather', 'x.y', 0, -1)]),
 ('model.layers.1.mlp.down_proj.matmul', 'forward', '', [('ReduceScatter', 'y', 1, -1)]),
 ('model.norm.weight', 'forward', '', [('AllGather', 'x.y', 0, -1)]),
 ('model.norm.mul_1', 'forward', '', [('AllGather', 'y', 1, -1)]),
 ('lm_head.weight', 'forward', '', [('AllGather', 'x', 0, -1)]),
 ('lm_head.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('model.norm.mul_1', 'gradient', '', [('ReduceScatter', 'y', 1, -1)]),
 ('model.norm.weight', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('model.layers.1.input_layernorm.mul_1', 'forward', '', [('AllGather', 'y', 1, -1)]),
 ('model.layers.1.self_attn.o_proj.matmul', 'forward', '', [('ReduceScatter', 'y', 1, -1)]),
 ('model.layers.1.post_attention_layernorm.mul_1', 'forward', '', [('AllGather', 'y', 1, -1)]),
 ('model.layers.1.mlp.down_proj.matmul', 'forward', '', [('ReduceScatter', 'y', 1, -1)]),
 ('model.layers.1.mlp.down_proj.matmul', 'gradient', '', [('AllGather', 'y', 1, -1)]),
 ('model.layers.1.mlp.down_proj.weight',
  'gradient',
  '',
  [('ReduceScatter', 'x', 0, -1), ('NeighborExchange', 'x.y', -1, -1)]),
 ('model.layers.1.mlp.up_proj.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('model.layers.1.mlp.gate_proj.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('model.layers.1.post_attention_layernorm.mul_1', 'gradient', '', [('ReduceScatter', 'y', 1, -1)]),
 ('model.layers.1.post_attention_layernorm.weight', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('model.layers.1.self_attn.o_proj.matmul', 'gradient', '', [('AllGather', 'y', 1, -1)]),
 ('model.layers.1.self_attn.o_proj.weight',
  'gradient',
  '',
  [('ReduceScatter', 'x', 0, -1), ('NeighborExchange', 'x.y', -1, -1)]),
 ('model.layers.1.self_attn.v_proj.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('model.layers.1.self_attn.k_proj.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('model.layers.1.self_attn.q_proj.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('model.layers.1.input_layernorm.mul_1', 'gradient', '', [('ReduceScatter', 'y', 1, -1)]),
 ('model.layers.1.input_layernorm.weight', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('model.layers.0.input_layernorm.mul_1', 'forward', '', [('AllGather', 'y', 1, -1)]),
 ('model.layers.0.self_attn.o_proj.matmul', 'forward', '', [('ReduceScatter', 'y', 1, -1)]),
 ('model.layers.0.post_attention_layernorm.mul_1', 'forward', '', [('AllGather', 'y', 1, -1)]),
 ('model.layers.0.mlp.down_proj.matmul', 'forward', '', [('ReduceScatter', 'y', 1, -1)]),
 ('model.layers.0.mlp.down_proj.matmul', 'gradient', '', [('AllGather', 'y', 1, -1)]),
 ('model.layers.0.mlp.down_proj.weight',
  'gradient',
  '',
  [('ReduceScatter', 'x', 0, -1), ('NeighborExchange', 'x.y', -1, -1)]),
 ('model.layers.0.mlp.up_proj.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('model.layers.0.mlp.gate_proj.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('model.layers.0.post_attention_layernorm.mul_1', 'gradient', '', [('ReduceScatter', 'y', 1, -1)]),
 ('model.layers.0.post_attention_layernorm.weight', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('model.layers.0.self_attn.o_proj.matmul', 'gradient', '', [('AllGather', 'y', 1, -1)]),
 ('model.layers.0.self_attn.o_proj.weight',
  'gradient',
  '',
  [('ReduceScatter', 'x', 0, -1), ('NeighborExchange', 'x.y', -1, -1)]),
 ('model.layers.0.self_attn.v_proj.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('model.layers.0.self_attn.k_proj.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('model.layers.0.self_attn.q_proj.weight', 'gradient', '', [('ReduceScatter', 'x', 0, -1)]),
 ('model.layers.0.input_layernorm.mul_1', 'gradient', '', [('ReduceScatter', 'y', 1, -1)]),
 ('model.layers.0.input_layernorm.weight', 'gradient', '', [('AllReduce', 'x.y', -1, -1)]),
 ('model.embed_tokens.gather', 'gradient', '', [('AllGather', 'y', 1, -1)]),
 ('model.embed_tokens.weight',
  'gradient',
  '',
  [('ReduceScatter', 'x', 0, -1), ('NeighborExchange', 'x.y', -1, -1)])]

# Operator -> collectives inside it, as of statistics over a divided dimension: (primitive, axes, pass, how many).
INSIDE = {'softmaxcrossentropyloss': [('AllReduce', 'y', 'forward', 1),
                             ('AllReduce', 'y', 'forward', 1),
                             ('AllReduce', 'x', 'forward', 1)]}

# Axes of the mesh -> groups of ranks within one pipeline stage, for mindspore.communication.create_group.
GROUPS = {'x': [[0, 2], [1, 3]], 'x.y': [[0, 1, 2, 3]], 'y': [[0, 1], [2, 3]]}


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
