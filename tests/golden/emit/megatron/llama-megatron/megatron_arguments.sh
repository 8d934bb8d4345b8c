# llama-megatron on 8 devices (mesh 2x2): arguments of Megatron-LM's training scripts.
# Those of the model (layers, hidden size, heads, vocabulary), of data and of the optimizer come on top.
# Made by `planner emit --target megatron`; the plan decides, edit that.
MEGATRON_ARGS=(
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 2
    --context-parallel-size 1
    --sequence-parallel
    --use-distributed-optimizer
    --micro-batch-size 2
    --global-batch-size 16
    --seq-length 8
    --pipeline-model-parallel-layout 'Et|tL'
    --num-layers 2
    --untie-embeddings-and-output-weights
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
    --bf16
    --optimizer adam
)
