"""ultralytics: the model inside a `YOLO` object is adapted, and `predict` runs as before.

    python examples/ultralytics_yolo.py

A YOLO object runs a predictor and never its own `forward`, so the module inside is what `adapt` takes. All boxes of an
image come from one of its two rows. The weights are untrained: this shows how to connect things.
"""

import warnings

import numpy as np
import torch

# Only needed where torchvision does not match the installed torch.
import sita_workbench.models.torchvision_compat  # noqa: F401

# isort: split
from ultralytics import YOLO

import sita_adapters as sita

torch.manual_seed(0)
random = np.random.default_rng(0)
foggy = (0.5 * random.integers(0, 256, (96, 128, 3)) + 110).astype(np.uint8)

yolo = YOLO("yolo26n.yaml")
try:
    sita.adapt(yolo)
except sita.SitaError as error:
    print(f"the YOLO object: {error}")

yolo.model = sita.adapt(yolo.model)  # the one line, before the first prediction

with warnings.catch_warnings():
    warnings.simplefilter("ignore", sita.SitaWarning)  # predict() fuses a model; an adapted one stays as it is
    (found,) = yolo.predict(foggy, imgsz=128, conf=0.0, max_det=5, nms=False, verbose=False)
print(f"{len(found.boxes)} boxes, classes {found.boxes.cls.tolist()}")
print(sita.describe(yolo.predictor.model.model))  # predict() runs a copy
