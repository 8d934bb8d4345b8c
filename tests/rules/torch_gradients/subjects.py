"""All subjects."""

from __future__ import annotations

from collections.abc import Iterator

from tests.rules.torch_gradients.contraction import contractions
from tests.rules.torch_gradients.contributed import contributed
from tests.rules.torch_gradients.elementwise import elementwise
from tests.rules.torch_gradients.fused import fused
from tests.rules.torch_gradients.indexing import indexing
from tests.rules.torch_gradients.layout import layouts
from tests.rules.torch_gradients.normalization import normalizations
from tests.rules.torch_gradients.own import own
from tests.rules.torch_gradients.pooling import pools
from tests.rules.torch_gradients.recurrent import recurrent
from tests.rules.torch_gradients.reduction import reductions
from tests.rules.torch_gradients.sampling import sampling
from tests.rules.torch_gradients.subject import Subject
from tests.rules.torch_gradients.transformer import transformers

__all__ = ["subjects"]


def subjects() -> Iterator[Subject]:
    for family in (
        elementwise,
        contractions,
        pools,
        normalizations,
        reductions,
        layouts,
        indexing,
        transformers,
        recurrent,
        sampling,
        contributed,
        fused,
        own,
    ):
        yield from family()
