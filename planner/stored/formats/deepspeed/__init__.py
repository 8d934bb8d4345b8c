"""Checkpoints of DeepSpeed: its own folders, of ZeRO 0 to 3, and universal ones.

Sources: deepspeed/utils/zero_to_fp32.py, deepspeed/checkpoint/ds_to_universal.py and universal_checkpoint.py,
deepspeed/runtime/engine.py and runtime/zero of DeepSpeed 0.19.8.
"""
