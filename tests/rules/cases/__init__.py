"""Small operators of every family, with sizes that divide by 2, 3, 4 and 6."""

from tests.rules.cases.attention import attention
from tests.rules.cases.contraction import contractions
from tests.rules.cases.convolution import convolutions
from tests.rules.cases.elementwise import elementwise
from tests.rules.cases.gradient import gradients
from tests.rules.cases.indexing import indexing
from tests.rules.cases.layout import layouts
from tests.rules.cases.loss import losses
from tests.rules.cases.normalization import normalizations
from tests.rules.cases.quantized import quantized
from tests.rules.cases.recurrent import recurrent
from tests.rules.cases.reduction import reductions

__all__ = [
    "attention",
    "contractions",
    "convolutions",
    "elementwise",
    "gradients",
    "indexing",
    "layouts",
    "losses",
    "normalizations",
    "quantized",
    "recurrent",
    "reductions",
]

FAMILIES = (
    elementwise,
    contractions,
    convolutions,
    normalizations,
    losses,
    reductions,
    layouts,
    indexing,
    attention,
    recurrent,
    quantized,
    gradients,
)
