# gpt-sequence on 4 devices (mesh 2x2): arguments of Megatron-LM's training scripts.
# Those of the model (layers, hidden size, heads, vocabulary), of data and of the optimizer come on top.
# Made by `planner emit --target megatron`; the plan decides, edit that.
MEGATRON_ARGS=(
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 1
    --context-parallel-size 1
    --sequence-parallel
    --micro-batch-size 8
    --global-batch-size 16
    --seq-length 8
    --bf16
    --optimizer adam
)
