"""Operators as functions of local tensors, one file per family; importing registers them all."""

import planner.runtime.operators.contraction
import planner.runtime.operators.convolution
import planner.runtime.operators.elementwise
import planner.runtime.operators.indexing
import planner.runtime.operators.layout
import planner.runtime.operators.loss
import planner.runtime.operators.normalization
import planner.runtime.operators.reduction  # noqa: F401  all imported for what they register

__all__: list[str] = []
