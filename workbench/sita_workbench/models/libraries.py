"""Models of timm, torchvision, keras.applications and this package, by name."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sita_adapters.errors import InputError, SitaError, install, suggestion
from sita_adapters.inputs import ENCODINGS, Inputs

from ..exported.runtimes import first_line
from .loaded import LoadedModel, Size
from .weights import Build, load_weights

_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_DEPTHS = {f"cifar10-resnet{depth}": depth for depth in (20, 32, 44, 56, 110)}
OWN = (*_DEPTHS, "camvid-roadnet")
"""The networks of this package."""


def load_own(spec: str, weights: str, trust: bool) -> LoadedModel:
    """Return a network of this package."""
    _import("torch", spec)
    if spec == "camvid-roadnet":
        from ..data.segmentation import CAMVID_CLASSES
        from ..networks.roadnet import SIZE, RoadNet

        model, origin = _fill_torch(lambda classes: RoadNet(), spec, weights, trust)
        return LoadedModel(spec, model, ENCODINGS["imagenet"], SIZE, 1.0, "segmentation", None, origin, CAMVID_CLASSES)
    from ..networks.cifar_resnet import CifarResNet

    model, origin = _fill_torch(lambda classes: CifarResNet(_DEPTHS[spec], classes or 10), spec, weights, trust)
    names = _CIFAR10 if model.linear.out_features == len(_CIFAR10) else ()
    return LoadedModel(spec, model, ENCODINGS["imagenet"], 32, 1.0, weights=origin, names=names)


def _from_timm(spec: str, name: str, weights: str, size: int | None, trust: bool) -> LoadedModel:
    timm, data = _import("timm", spec), _import("timm.data", spec)
    if not timm.is_model(name):
        raise _unknown(spec, "timm", timm.list_models())

    def build(classes: int | None) -> Any:
        return timm.create_model(name, **({} if classes is None else {"num_classes": classes}))

    model, origin = _fill_torch(build, spec, weights, trust, lambda: timm.create_model(name, pretrained=True))
    known = data.resolve_model_data_config(model)
    names = _imagenet_names(getattr(model, "num_classes", 0)) if weights == "pretrained" else ()
    inputs, sides = Inputs(mean=known["mean"], std=known["std"]), tuple(known["input_size"][1:])
    return LoadedModel(spec, model, inputs, sides, known["crop_pct"], weights=origin, names=names)


def _from_torchvision(spec: str, name: str, weights: str, size: int | None, trust: bool) -> LoadedModel:
    models = _import("torchvision.models", spec)
    segmenters = models.list_models(module=_import("torchvision.models.segmentation", spec))
    known = [*models.list_models(module=models), *(f"segmentation.{each}" for each in segmenters)]
    if name not in known:
        raise _unknown(spec, "torchvision", [f"segmentation.{name}"] if name in segmenters else known)
    segments, plain = name.startswith("segmentation."), name.removeprefix("segmentation.")
    fixed: dict[str, Any] = {"weights_backbone": None} if segments else {}
    if plain in ("googlenet", "inception_v3"):
        fixed["init_weights"] = False  # their initialization takes a minute

    def build(classes: int | None) -> Any:
        return models.get_model(plain, weights=None, **fixed, **({} if classes is None else {"num_classes": classes}))

    model, origin = _fill_torch(build, spec, weights, trust, lambda: models.get_model(plain, weights="DEFAULT"))
    published = models.get_model_weights(plain)
    # A file most often holds the weights that were published first.
    like = published.DEFAULT if weights == "pretrained" else next(iter(published))
    preset = like.transforms()
    names = tuple(like.meta["categories"]) if weights == "pretrained" else ()
    inputs = Inputs(mean=tuple(preset.mean), std=tuple(preset.std))
    if segments:
        return LoadedModel(spec, model, inputs, None, 1.0, "segmentation", weights=origin, names=names)
    side = preset.crop_size[0]
    return LoadedModel(spec, model, inputs, side, min(1.0, side / preset.resize_size[0]), weights=origin, names=names)


_KERAS_ENCODINGS = {"densenet": "torch", "resnet": "caffe", "vgg16": "caffe", "vgg19": "caffe"}
_KERAS_ENCODINGS |= dict.fromkeys(("inception_resnet_v2", "inception_v3", "mobilenet", "mobilenet_v2"), "tf")
_KERAS_ENCODINGS |= dict.fromkeys(("nasnet", "resnet_v2", "xception"), "tf")
"""What `preprocess_input` of a family's module does; all other families take bytes."""


def keras_encoding(application: Callable[..., Any]) -> str:
    """Return the name of the pixel encoding that a function of keras.applications was trained with."""
    return _KERAS_ENCODINGS.get(application.__module__.rpartition(".")[2], "byte")


def _from_keras(spec: str, name: str, weights: str, size: int | None, trust: bool) -> LoadedModel:
    quiet_tensorflow()
    keras = _import("keras", spec)
    known = [each for each in dir(keras.applications) if each[0].isupper()]
    if name not in known:
        raise _unknown(spec, "keras", known)
    application = getattr(keras.applications, name)

    def build(classes: int | None) -> Any:
        keras.utils.set_random_seed(0)
        try:
            return application(weights=None, input_shape=size and (size, size, 3), classes=classes or 1000)
        except ValueError as error:
            raise InputError(f"{spec} cannot be built for images of {size} × {size}: {error}") from error

    if weights == "pretrained" and size is not None:
        raise InputError(f"--size: {spec} has pretrained weights for its default size only. Try: omit --size.")
    model, origin = _fill(build, spec, weights, trust, application, keras=True)
    names = _imagenet_names(model.output_shape[-1]) if weights == "pretrained" else ()
    encoding, side = ENCODINGS[keras_encoding(application)], keras_size(model) or 224
    return LoadedModel(spec, model, encoding, side, weights=origin, names=names)


LIBRARIES: Mapping[str, Callable[[str, str, str, int | None, bool], LoadedModel]] = {
    "timm": _from_timm,
    "torchvision": _from_torchvision,
    "keras": _from_keras,
}


def _unknown(spec: str, library: str, known: Iterable[str]) -> InputError:
    close = suggestion(spec, (f"{library}:{each}" for each in known))
    return InputError(f"{spec}: {library} has no model of this name.{close}")


def _imagenet_names(classes: int) -> tuple[str, ...]:
    """Return the names of ImageNet's classes, if there are a thousand. What is downloaded is trained on it."""
    names = Path(__file__).with_name("imagenet_classes.txt").read_text(encoding="utf-8").splitlines()
    return tuple(names) if len(names) == classes else ()


def keras_size(model: Any) -> Size:
    """Return the size that a Keras model's input is fixed to; None: any."""
    shape = getattr(model, "input_shape", None)
    if not isinstance(shape, tuple) or len(shape) != 4:
        return None
    height, width = shape[1:3] if shape[3] in (1, 3) else shape[2:]
    return None if None in (height, width) else (height, width)


def _fill_torch(
    build: Build, spec: str, weights: str, trust: bool, download: Callable[[], Any] | None = None
) -> tuple[Any, str]:
    """Return the module in eval mode with the requested weights, and their origin."""
    import torch

    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model, origin = _fill(build, spec, weights, trust, download)
    except RuntimeError as error:  # timm: an unknown tag
        raise InputError(f"{spec} cannot be built: {error}") from error
    return model.eval(), origin


def _fill(
    build: Build, spec: str, weights: str, trust: bool, download: Callable[[], Any] | None, *, keras: bool = False
) -> tuple[Any, str]:
    """Return the model with the requested weights, and their origin."""
    if weights == "random":
        return build(None), weights
    if weights != "pretrained":
        return load_weights(build, spec, weights, keras=keras, trust=trust)
    if download is None:
        raise InputError(f"weights: there are no pretrained weights for {spec}. Try: a file, or 'random'.")
    try:
        return download(), weights
    except Exception as error:
        raise InputError(
            f"weights: the pretrained weights of {spec} could not be downloaded: {first_line(error)} "
            "Try: an internet connection, or --weights FILE."
        ) from error


def quiet_tensorflow() -> None:
    """Silence TensorFlow's messages about the processor and about retracing."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)


def _import(name: str, spec: str) -> Any:
    """Import what a spec needs, or say what to install."""
    package = name.partition(".")[0]
    try:
        if package in ("timm", "torchvision"):
            importlib.import_module("sita_workbench.models.torchvision_compat")
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or name).partition(".")[0]
        remedy = install(missing) if missing in ("torch", "keras") else f"pip install {missing}"
        raise SitaError(f"{spec} needs {missing}. Try: {remedy}") from error
    except Exception as error:  # a compiled part that does not load, or an unknown KERAS_BACKEND
        wanted = "KERAS_BACKEND=tensorflow, jax or torch" if package == "keras" else "a version for the installed torch"
        raise SitaError(f"{spec}: {name} cannot be imported: {first_line(error)} Try: {wanted}.") from error
