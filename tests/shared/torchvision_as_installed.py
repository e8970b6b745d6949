"""torchvision, which needs a cure before it is imported where its operators are built for another torch."""

import sita_workbench.models.torchvision_compat  # noqa: F401, I001
from torchvision import models

__all__ = ["models"]
