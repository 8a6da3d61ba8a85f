"""Arithmetic that bounds stand on: every value comes with a proved error."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
