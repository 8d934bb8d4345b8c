"""Small operators of every family, with sizes that divide by 2, 3, 4 and 6."""

from tests.rules.cases.attention import attention
from tests.rules.cases.contraction import contractions
from tests.rules.cases.convolution import convolutions
from tests.rules.cases.elementwise import elementwise
from tests.rules.cases.experts import experts
from tests.rules.cases.gradient import gradients
from tests.rules.cases.indexing import indexing
from tests.rules.cases.layout import layouts
from tests.rules.cases.loss import losses
from tests.rules.cases.movement import movements
from tests.rules.cases.normalization import normalizations
from tests.rules.cases.pooling import pools
from tests.rules.cases.qlinear import quantized_arithmetic
from tests.rules.cases.quantized import quantized
from tests.rules.cases.random import random
from tests.rules.cases.recurrent import recurrent
from tests.rules.cases.reduction import reductions
from tests.rules.cases.resize import resizes
from tests.rules.cases.sampling import sampling
from tests.rules.cases.tail import long_tail

__all__ = [
    "attention",
    "contractions",
    "convolutions",
    "elementwise",
    "experts",
    "gradients",
    "indexing",
    "layouts",
    "long_tail",
    "losses",
    "movements",
    "normalizations",
    "pools",
    "quantized",
    "quantized_arithmetic",
    "random",
    "recurrent",
    "reductions",
    "resizes",
    "sampling",
]

FAMILIES = (
    elementwise,
    contractions,
    convolutions,
    pools,
    normalizations,
    losses,
    reductions,
    layouts,
    movements,
    resizes,
    sampling,
    indexing,
    attention,
    experts,
    recurrent,
    quantized,
    quantized_arithmetic,
    random,
    long_tail,
    gradients,
)
