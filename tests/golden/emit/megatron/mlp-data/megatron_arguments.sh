# mlp-data on 8 devices (mesh 8): arguments of Megatron-LM's training scripts.
# Those of the model (layers, hidden size, heads, vocabulary), of data and of the optimizer come on top.
# Made by `planner emit --target megatron`; the plan decides, edit that.
MEGATRON_ARGS=(
    --tensor-model-parallel-size 1
    --pipeline-model-parallel-size 1
    --context-parallel-size 1
    --micro-batch-size 8
    --global-batch-size 64
    --bf16
    --optimizer adam
)
