"""The model under test: found by name or in a file of the user's, given its weights, and how images reach it."""

from __future__ import annotations

import importlib
import logging
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sita_adapters.errors import InputError, SitaError, suggestion
from sita_adapters.inputs import ENCODINGS, Inputs, read_inputs
from sita_adapters.recipe import Task

from . import file as model_file
from . import weights as model_weights

CIFAR_DEPTHS = (20, 32, 44, 56, 110)

_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

Size = int | tuple[int, int] | None
"""Height and width, one number for a square; None: any."""


@dataclass(frozen=True)
class Subject:
    """The model under test, and how images reach it.

    - `spec`: as it was given.
    - `model`: a torch Module in eval mode, or a keras.Model.
    - `inputs`: how pixels are encoded; None where a file of the user's does not say, and then `encode` raises.
    - `size`: the height and width that it takes; None: any.
    - `crop`: the share of an image's shorter side that the centre crop keeps.
    - `scores`: what its scores are, as `adapt` takes it.
    - `weights`: where they are from: a file's name and sha256, "pretrained", "random", "its own".
    - `names`: what its classes are called, where that is known; else empty.
    """

    spec: str
    model: Any
    inputs: Inputs | None
    size: Size = None
    crop: float = 0.875
    task: Task = "classification"
    scores: str | None = None
    weights: str = "its own"
    names: tuple[str, ...] = ()

    def encode(self, images: np.ndarray) -> np.ndarray:
        """Return RGB bytes (N, h, w, 3) as the model takes them, in float32, channels last.

        x = (u · white − mean) / std for u in [0, 1], in the encoding's channel order.
        """
        if self.inputs is None:
            raise InputError(
                f"{self.spec} does not say how its pixels are encoded. Expected one of {', '.join(ENCODINGS)}. "
                "Remedy: let the function return (model, {'inputs': 'imagenet'}), or say --inputs."
            )
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
            raise InputError(f"Expected RGB bytes (N, h, w, 3) in uint8; received {images.shape} in {images.dtype}.")
        ordered = images if self.inputs.order == "rgb" else images[..., ::-1]
        mean, std = np.array(self.inputs.mean, np.float32), np.array(self.inputs.std, np.float32)
        return np.ascontiguousarray((ordered * np.float32(self.inputs.white / 255) - mean) / std)


def load_model(spec: str, weights: str | None = None, *, inputs: str | None = None, size: int | None = None) -> Subject:
    """Return the model that a spec names, with its weights, ready to run.

    - `spec`: `timm:NAME`, `torchvision:NAME`, `torchvision:segmentation.NAME`, `keras:NAME` (keras.applications),
      `cifar10-resnet20` (32, 44, 56, 110), or `file.py:function`, which is called without arguments and returns the
      model, or (model, dict) with any of inputs, size, crop, task, scores.
    - `weights`: a file, "pretrained" (the library downloads its own) or "random" (always the same). Needed, except
      by a function, which brings its own.
    - `inputs`: a name of `sita_adapters.inputs.ENCODINGS`, instead of the encoding that the model is known for.
    - `size`: height and width, instead of those that the model is known for.
    """
    encoding = read_inputs(inputs)
    if size is not None and size < 1:
        raise InputError(f"size: expected a whole number of pixels, 1 or more; received {size}.")
    library, colon, name = spec.partition(":")
    if brings_weights(spec):
        subject = _from_file(spec, weights)
    elif colon and library in _LIBRARIES:
        subject = _LIBRARIES[library](spec, name, _expect_weights(spec, weights), size)
    elif spec in _CIFAR:
        subject = _from_cifar(spec, _CIFAR[spec], _expect_weights(spec, weights))
    else:
        raise InputError(
            "model: expected timm:NAME, torchvision:NAME, torchvision:segmentation.NAME, keras:NAME, file.py:function "
            f"or one of {', '.join(_CIFAR)}; received {spec!r}.{_advise(spec)}"
        )
    return replace(subject, inputs=encoding or subject.inputs, size=size or subject.size)


def brings_weights(spec: str) -> bool:
    """Whether the spec is a function in a file, which returns a model that has its weights."""
    return spec.endswith(".py") or spec.rpartition(":")[0].endswith(".py")


def _advise(spec: str) -> str:
    _, colon, name = spec.partition(":")
    if colon:
        return suggestion(spec, (f"{known}:{name}" for known in _LIBRARIES))
    return suggestion(spec, _CIFAR) or f" Did you mean 'timm:{spec}', 'torchvision:{spec}' or 'keras:{spec}'?"


def _suggest(library: str, name: str, known: Iterable[str]) -> str:
    return suggestion(f"{library}:{name}", (f"{library}:{each}" for each in known))


def _expect_weights(spec: str, weights: str | None) -> str:
    if weights is None:
        raise InputError(
            f"weights: {spec} comes without. Expected a file, 'pretrained' (the library downloads its own) or 'random' "
            "(to try things out). Remedy: --weights FILE."
        )
    return weights


def _from_cifar(spec: str, depth: int, weights: str) -> Subject:
    if weights == "pretrained":
        raise InputError(f"weights: there are none to download for {spec}. Remedy: a file, or 'random'.")
    _library("torch", spec)
    from ..networks.cifar_resnet import MEAN, STD, CifarResNet

    def build(classes: int | None) -> Any:
        return CifarResNet(depth, classes or 10)

    model, said = _fill_torch(build, spec, weights)
    names = _CIFAR10 if model.linear.out_features == len(_CIFAR10) else ()
    return Subject(spec, model, Inputs(mean=MEAN, std=STD), 32, 1.0, weights=said, names=names)


def _from_timm(spec: str, name: str, weights: str, size: int | None) -> Subject:
    _library("torch", spec)
    timm = _library("timm", spec)
    data = _library("timm.data", spec)
    if not timm.is_model(name):
        raise InputError(f"{spec}: timm has no model of this name.{_suggest('timm', name, timm.list_models())}")

    def build(classes: int | None) -> Any:
        return timm.create_model(name, **({} if classes is None else {"num_classes": classes}))

    def download() -> Any:
        return timm.create_model(name, pretrained=True)

    model, said = _fill_torch(build, spec, weights, download)
    known = data.resolve_model_data_config(model)
    inputs = Inputs(mean=known["mean"], std=known["std"])
    return Subject(spec, model, inputs, _squared(known["input_size"][1:]), known["crop_pct"], weights=said)


def _from_torchvision(spec: str, name: str, weights: str, size: int | None) -> Subject:
    _library("torch", spec)
    models = _library("torchvision.models", spec)
    segmenters = models.list_models(module=_library("torchvision.models.segmentation", spec))
    known = [*models.list_models(module=models), *(f"segmentation.{each}" for each in segmenters)]
    if name not in known:
        close = [f"segmentation.{name}"] if name in segmenters else known
        raise InputError(f"{spec}: torchvision has no model of this name.{_suggest('torchvision', name, close)}")
    segments, plain = name.startswith("segmentation."), name.removeprefix("segmentation.")
    fixed: dict[str, Any] = {"weights_backbone": None} if segments else {}
    if plain in ("googlenet", "inception_v3"):
        fixed["init_weights"] = False  # theirs takes a minute, and weights follow or do not matter

    def build(classes: int | None) -> Any:
        return models.get_model(plain, weights=None, **fixed, **({} if classes is None else {"num_classes": classes}))

    def download() -> Any:
        return models.get_model(plain, weights="DEFAULT")

    model, said = _fill_torch(build, spec, weights, download)
    published = models.get_model_weights(plain)
    # A file is most often the first that was published, or was trained as that.
    like = published.DEFAULT if weights == "pretrained" else next(iter(published))
    preset = like.transforms()
    names = tuple(like.meta["categories"]) if weights == "pretrained" else ()
    inputs = Inputs(mean=tuple(preset.mean), std=tuple(preset.std))
    if segments:
        return Subject(spec, model, inputs, None, 1.0, "segmentation", weights=said, names=names)
    side = preset.crop_size[0]
    return Subject(spec, model, inputs, side, min(1.0, side / preset.resize_size[0]), weights=said, names=names)


_KERAS_ENCODINGS = {
    "resnet": "caffe",
    "vgg16": "caffe",
    "vgg19": "caffe",
    "densenet": "torch",
    "inception_resnet_v2": "tf",
    "inception_v3": "tf",
    "mobilenet": "tf",
    "mobilenet_v2": "tf",
    "nasnet": "tf",
    "resnet_v2": "tf",
    "xception": "tf",
}
"""What `preprocess_input` of a family's module does; the families that are not here take bytes."""


def keras_encoding(application: Callable[..., Any]) -> str:
    """Return the name of the pixel encoding that a function of keras.applications was trained with."""
    return _KERAS_ENCODINGS.get(application.__module__.rpartition(".")[2], "byte")


def _from_keras(spec: str, name: str, weights: str, size: int | None) -> Subject:
    _hush_tensorflow()
    keras = _library("keras", spec)
    known = [each for each in dir(keras.applications) if each[0].isupper()]
    if name not in known:
        raise InputError(f"{spec}: keras.applications has no model of this name.{_suggest('keras', name, known)}")
    application = getattr(keras.applications, name)
    first = keras.config.image_data_format() == "channels_first"
    shape = None if size is None else ((3, size, size) if first else (size, size, 3))

    def build(classes: int | None) -> Any:
        try:
            with _seeded_python():
                return application(weights=None, input_shape=shape, classes=classes or 1000)
        except ValueError as error:
            raise InputError(f"{spec} cannot be made for images of {size} × {size}: {error}") from error

    if weights == "random":
        model, said = build(None), weights
    elif weights == "pretrained":
        model, said = _download(spec, application), weights
        if shape is not None:  # Keras hands its weights out for one size, which only the input layer knows of
            trained, model = model, build(None)
            model.set_weights(trained.get_weights())
    else:
        path = model_weights.find_file(spec, weights, model_weights.KERAS_ENDINGS)
        model, said = model_weights.load_keras(build, path, spec), model_weights.name_file(path)
    return Subject(spec, model, ENCODINGS[keras_encoding(application)], _keras_size(model) or 224, weights=said)


def _keras_size(model: Any) -> Size:
    """Return the size that a Keras model's input is fixed to."""
    shape = getattr(model, "input_shape", None)
    if not isinstance(shape, tuple) or len(shape) != 4:
        return None
    sides = shape[1:3] if shape[3] in (1, 3) else shape[2:]
    return None if None in sides else _squared(sides)


def _squared(sides: Any) -> Size:
    height, width = sides
    return int(height) if height == width else (int(height), int(width))


def _from_file(spec: str, weights: str | None) -> Subject:
    if weights in ("random", "pretrained"):
        raise InputError(
            f"weights: {spec} decides its weights itself; received {weights!r}. Remedy: leave it out, or give a file."
        )
    _hush_tensorflow()
    model, settings, keras = model_file.call(spec)
    said = "its own"
    if weights is not None:
        endings = model_weights.KERAS_ENDINGS if keras else model_weights.TORCH_ENDINGS
        load = model_weights.load_keras if keras else model_weights.load_torch
        path, own = model_weights.find_file(spec, weights, endings), model
        model, said = load(lambda classes: own, path, spec), model_weights.name_file(path)
    if keras:
        settings = {"size": _keras_size(model), **settings}
    else:
        model.eval()
    crop = 1.0 if settings.get("task") == "segmentation" else 0.875
    return Subject(spec, model, **{"inputs": None, "crop": crop, **settings}, weights=said)


def _fill_torch(
    build: model_weights.Build, spec: str, weights: str, download: Callable[[], Any] | None = None
) -> tuple[Any, str]:
    """Return the module in eval mode with the weights that were asked for, and where these are from."""
    import torch

    if weights == "pretrained" and download is not None:
        return _download(spec, download).eval(), weights

    def seeded(classes: int | None) -> Any:
        with torch.random.fork_rng(devices=[]), _seeded_python():
            torch.manual_seed(0)
            return build(classes)

    try:
        if weights == "random":
            return seeded(None).eval(), weights
        path = model_weights.find_file(spec, weights, model_weights.TORCH_ENDINGS)
        return model_weights.load_torch(seeded, path, spec).eval(), model_weights.name_file(path)
    except RuntimeError as error:  # of timm, for a tag that it does not know
        raise InputError(f"{spec} cannot be made: {error}") from error


def _download(spec: str, download: Callable[[], Any]) -> Any:
    try:
        return download()
    except Exception as error:
        raise InputError(
            f"weights: the pretrained ones of {spec} could not be had: {model_weights.first_line(error)} "
            "Remedy: a network, or --weights FILE."
        ) from error


@contextmanager
def _seeded_python() -> Iterator[None]:
    """Draw the same weights every time: Keras takes the seeds of its layers from Python's generator."""
    state = random.getstate()
    random.seed(0)
    try:
        yield
    finally:
        random.setstate(state)


def _hush_tensorflow() -> None:
    """Keep TensorFlow's notes on the processor, and on how often it traces, from filling the screen."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)


def _library(name: str, spec: str) -> Any:
    """Import what a spec needs, or say what brings it."""
    package = name.partition(".")[0]
    wanted = f"'sita-adapters[{package}]'" if package in ("torch", "keras") else package
    try:
        if package in ("timm", "torchvision"):
            importlib.import_module("sita_workbench.models.torchvision_compat")
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or name).partition(".")[0]
        raise SitaError(f"{spec} needs {missing}. Remedy: pip install {wanted}") from error
    except Exception as error:  # a compiled part that does not fit, or a KERAS_BACKEND that there is not
        remedy = (
            "KERAS_BACKEND names one of tensorflow, jax, torch that is installed"
            if package == "keras"
            else "a torchvision that was built for the installed torch (timm imports it as well)"
        )
        raise SitaError(
            f"{spec}: {name} is installed but cannot be imported: {model_weights.first_line(error)} Remedy: {remedy}."
        ) from error


_Loader = Callable[[str, str, str, "int | None"], Subject]
_LIBRARIES: Mapping[str, _Loader] = {"timm": _from_timm, "torchvision": _from_torchvision, "keras": _from_keras}
_CIFAR = {f"cifar10-resnet{depth}": depth for depth in CIFAR_DEPTHS}
