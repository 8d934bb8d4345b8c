"""llama-megatron on 8 devices (mesh 2x2): the parallelism of a torchtitan job.

    TITAN_MODEL=llama3 TITAN_CONFIG=llama3_8b bash run_torchtitan.sh

takes that model's own configuration and sets what the plan decides; or, in a configuration of yours,

    from planner_torchtitan import apply
    def my_job():
        return apply(llama3_8b())

For torchtitan 0.3, and the main branch after it.  Made by `planner emit --target torchtitan`; the plan decides, edit
that.
"""

import importlib
import os

PARALLELISM = {
    'data_parallel_replicate_degree': 1,
    'data_parallel_shard_degree': 2,
    'fsdp_reshard_after_forward': 'never',
    'tensor_parallel_degree': 2,
    'enable_sequence_parallel': True,
    'context_parallel_degree': 1,
    'expert_parallel_degree': 1,
    'pipeline_parallel_degree': 2,
    'pipeline_parallel_schedule': '1F1B',
    'pipeline_parallel_layers_per_stage': None,
    'module_fqns_per_model_part': [['tok_embeddings', 'layers.0'], ['layers.1', 'norm', 'lm_head']],
}

TRAINING = {
    'mixed_precision_param': 'bfloat16',
    'disable_cuda_graphs': True,
}

SAMPLES = 16  # a step, of all ranks
MICRO_BATCHES = 4  # of every data-parallel rank
MICRO_BATCH = 2  # samples each
POSITIONS = 8  # of a sample
RECOMPUTE = True  # every layer, in the backward pass


def apply(config):
    """Sets parallelism, batch and recomputation of a Trainer.Config, and returns it.

    AttributeError where this torchtitan lacks a field.
    """
    for field, value in PARALLELISM.items():
        setattr(config.parallelism, field, value)
    for field, value in TRAINING.items():
        setattr(config.training, field, value)
    pipelined = PARALLELISM["pipeline_parallel_degree"] > 1
    if hasattr(config.training, "local_batch_size"):  # 0.3: samples
        config.training.seq_len = POSITIONS
        config.training.global_batch_size = SAMPLES
        config.training.local_batch_size = MICRO_BATCH * (MICRO_BATCHES if pipelined else 1)
        config.parallelism.pipeline_parallel_microbatch_size = MICRO_BATCH
    else:  # after it: tokens
        config.training.max_context_length = POSITIONS
        config.training.num_tokens_per_train_step = SAMPLES * POSITIONS
        config.training.num_tokens_per_microbatch_per_dp_rank = MICRO_BATCH * POSITIONS
        config.parallelism.num_pp_microbatches = MICRO_BATCHES if pipelined else 1
    config.activation_checkpoint = None
    if RECOMPUTE:
        from torchtitan.distributed.activation_checkpoint import FullAC

        config.activation_checkpoint = FullAC.Config()
    return config


def planned():
    """The configuration TITAN_CONFIG of TITAN_MODEL, with the plan."""
    model = os.environ["TITAN_MODEL"]
    path = model if "." in model else f"torchtitan.models.{model}.config_registry"
    return apply(getattr(importlib.import_module(path), os.environ["TITAN_CONFIG"])())
