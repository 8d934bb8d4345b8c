# gpt-recompute on 4 devices (mesh 4): arguments of Megatron-LM's training scripts.
# Those of the model (layers, hidden size, heads, vocabulary), of data and of the optimizer come on top.
# Made by `planner emit --target megatron`; the plan decides, edit that.
MEGATRON_ARGS=(
    --tensor-model-parallel-size 1
    --pipeline-model-parallel-size 1
    --context-parallel-size 1
    --use-distributed-optimizer
    --micro-batch-size 1
    --global-batch-size 16
    --seq-length 8
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
    --bf16
    --optimizer adam
)
