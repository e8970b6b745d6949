"""The networks, each with the sets it runs on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sita_adapters.inputs import ENCODINGS
from sita_workbench.models.loaded import LoadedModel
from sita_workbench.models.loading import load_model

from ..study.networks import NETWORKS as STUDY
from ..study.networks import Folders
from .images import SETS, Kind


@dataclass(frozen=True)
class Network:
    """A trained network; `batch`: how many images run at once."""

    title: str
    kind: Kind
    load: Callable[[Folders], LoadedModel]
    batch: int

    @property
    def sets(self) -> list[str]:
        """The names of its sets of images."""
        return [name for name, images in SETS.items() if images.kind == self.kind]


def load_wnet(folders: Folders) -> LoadedModel:
    """W-Net, trained on DRIVE."""
    from safetensors.torch import load_model as fill

    from .wnet import WNet

    model, file = WNet(), folders.data / "weights/retina_wnet_drive.safetensors"
    fill(model, file)
    return LoadedModel(
        "wnet", model.eval(), ENCODINGS["unit"], 512, task="segmentation", scores="sigmoid", weights=file.name
    )


def _xception(folders: Folders) -> LoadedModel:
    """mini-XCEPTION (Arriaga et al. 2017), trained on FER2013: a Keras model of 48² gray faces enlarged to 64²."""
    import keras

    file = folders.data / "weights/fer2013_mini_xception.hdf5"
    model = keras.models.load_model(file, compile=False)
    return LoadedModel("mini-XCEPTION", model, ENCODINGS["tf"], 64, 1.0, scores="probabilities", weights=file.name)


def _digits(_: Folders) -> LoadedModel:
    """The demo's digit reader, trained on the digits of scikit-learn."""
    return load_model("digits", None)


NETWORKS = {
    "resnet50": Network("ResNet-50", "renditions", STUDY["resnet50"].load, batch=4),
    "lite0": Network("EfficientNet-Lite0", "renditions", STUDY["lite0"].load, batch=4),
    "lite1": Network("EfficientNet-Lite1", "renditions", STUDY["lite1"].load, batch=4),
    "mobilenetv2": Network("MobileNetV2", "renditions", STUDY["mobilenetv2"].load, batch=4),
    "wnet": Network("W-Net", "retina", load_wnet, batch=1),
    "xception": Network("mini-XCEPTION (Keras)", "faces", _xception, batch=32),
    "digits": Network("the demo's ResNet", "digits", _digits, batch=20),
}
