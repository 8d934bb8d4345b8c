"""Fitting a profile's values to measured seconds.

The model that is fitted is the one that prices plans: `compute_seconds` and `CollectiveModel.seconds` on candidate
profiles.  Errors are logarithmic, so that a microsecond and a second weigh alike, and robust, so that a disturbed
measurement does not bend the rest.

- `samples`: measured operators and collectives, plain numbers
- `least_squares`: robust least squares over positive parameters
- `device`, `links`: which values follow from which samples
- `document`: the profile as TOML, every measured value with its source
"""

from .device import fit_device
from .document import base_document, calibrated_text
from .least_squares import Fit, fit_positive
from .links import fit_links
from .samples import CollectiveSample, ComputeSample, FitError, Fitted

__all__ = [
    "CollectiveSample",
    "ComputeSample",
    "Fit",
    "FitError",
    "Fitted",
    "base_document",
    "calibrated_text",
    "fit_device",
    "fit_links",
    "fit_positive",
]
