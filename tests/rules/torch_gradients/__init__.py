"""Gradients of ONNX operators as torch's automatic differentiation gives them: a truth that nobody here wrote.

For every operator type a torch function of the same meaning, random operands and random gradients of the results;
torch computes results and operand gradients in double precision.  They are recorded in `tests/golden`, so that the
backward is proved against them where torch is not installed:

    python -m tests.rules.torch_gradients --write
"""
