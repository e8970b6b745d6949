# ruff: noqa: SIM905  (as list literals, the names would take a line each)
"""The libraries of the zoo. This module has keras.applications, segmentation_models_pytorch and torchvision."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from . import timm_members, transformers_members
from .members import Member, squares

_KERAS = """DenseNet121 EfficientNetB0 EfficientNetV2B0 InceptionResNetV2 InceptionV3 MobileNet MobileNetV2
MobileNetV3Small NASNetMobile ResNet50 ResNet50V2 Xception""".split()
_KERAS_SIZES = {"InceptionResNetV2": 75, "InceptionV3": 75, "Xception": 71}
"""Others run at 64 pixels. At 32, where most would run, nothing is left to take a variance of."""

_SMP_DECODERS = """Unet UnetPlusPlus MAnet Linknet FPN PSPNet PAN DeepLabV3 DeepLabV3Plus UPerNet Segformer""".split()
_SMP_ENCODERS = """resnext50_32x4d dpn68 vgg11_bn se_resnet50 densenet121 inceptionresnetv2 inceptionv4 efficientnet-b0
mobilenet_v2 xception timm-efficientnet-b0 timm-tf_efficientnet_lite0 timm-skresnet18 mit_b0 mobileone_s0
tu-mobilenetv3_small_050""".split()

_IMAGES = """densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5 mobilenet_v2
mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18 resnet50 resnext50_32x4d shufflenet_v2_x0_5 vgg11_bn
wide_resnet50_2 fcn_resnet50 deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large""".split()
_VIDEOS = "r3d_18 mc3_18 r2plus1d_18 s3d".split()
_DETECTORS = "retinanet_resnet50_fpn_v2 fcos_resnet50_fpn ssdlite320_mobilenet_v3_large".split()


def all_members() -> list[Member]:
    """Return the members of all libraries."""
    libraries = (timm_members.members, _torchvision, _segmentation_models, transformers_members.members, _keras)
    return [member for members in libraries for member in members()]


def _keras() -> Iterator[Member]:
    for name in _KERAS:
        size = _KERAS_SIZES.get(name, 64)
        yield Member("keras.applications", name, functools.partial(_application, name, size), ((size, size, 3),))


def _application(name: str, size: int) -> Any:
    import keras

    # Without the last softmax, which would hide large differences behind probabilities near 0.
    settings: dict[str, Any] = {"weights": None, "classes": 10, "classifier_activation": None}
    return getattr(keras.applications, name)(input_shape=(size, size, 3), **settings)


def _segmentation_models() -> Iterator[Member]:
    """Every decoder on one encoder, and every family of encoders under one decoder."""
    sizes = squares(64, 96, 128)
    pairs = [(name, "resnet18", sizes) for name in _SMP_DECODERS] + [("Unet", name, sizes) for name in _SMP_ENCODERS]
    for decoder, encoder, shapes in [*pairs, ("DPT", "tu-vit_tiny_patch16_224", squares(224))]:
        build = functools.partial(_segmentation_model, decoder, encoder)
        yield Member("segmentation_models_pytorch", f"{decoder}, {encoder}", build, shapes)
    with_labels = functools.partial(_segmentation_model, "Unet", "resnet18", aux_params={"classes": 4})
    yield Member("segmentation_models_pytorch", "Unet with labels, resnet18", with_labels, sizes)


def _segmentation_model(decoder: str, encoder: str, **settings: Any) -> Any:
    import segmentation_models_pytorch as smp

    return getattr(smp, decoder)(encoder_name=encoder, encoder_weights=None, classes=5, **settings)


def _torchvision() -> Iterator[Member]:
    """Classification, segmentation, video, and the backbones of detectors, which take lists of images themselves."""
    sizes, small = squares(64, 96, 128, 224), squares(64)
    clips = ((3, 4, 32, 32), (3, 8, 64, 64), (3, 16, 64, 64), (3, 16, 224, 224))
    for name in (*_IMAGES, *_VIDEOS):
        yield Member("torchvision", name, functools.partial(_model, name), clips if name in _VIDEOS else sizes)
    yield Member("torchvision", "quantization.resnet18", _quantizable, sizes)
    yield Member("torchvision", "resnet18 backbone, frozen BatchNorm", _frozen_backbone, small)
    yield Member("torchvision", "mobilenet_v3_large backbone", _mobile_backbone, small)
    for name in _DETECTORS:
        yield Member("torchvision", f"{name} backbone", functools.partial(_backbone_of_detector, name), small)
    yield Member("torchvision", "FastRCNNConvFCHead", _box_head, ((256, 7, 7),))
    yield Member("torchvision", "raft_large context encoder", _flow_encoder, small)


def _model(name: str) -> Any:
    from torchvision.models import get_model

    backbone = {"weights_backbone": None} if name.startswith(("fcn", "deeplab", "lraspp")) else {}
    quick = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}  # else it takes half a minute
    return get_model(name, weights=None, **backbone, **quick)


def _quantizable() -> Any:
    from torchvision.models.quantization import resnet18

    return resnet18(weights=None, quantize=False)


def _frozen_backbone() -> Any:
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    return resnet_fpn_backbone(backbone_name="resnet18", weights=None)


def _mobile_backbone() -> Any:
    from torchvision.models.detection.backbone_utils import mobilenet_backbone

    return mobilenet_backbone(backbone_name="mobilenet_v3_large", weights=None, fpn=True)


def _backbone_of_detector(name: str) -> Any:
    from torchvision.models import get_model

    return get_model(name, weights=None, weights_backbone=None).backbone


def _box_head() -> Any:
    from torch import nn
    from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead

    return FastRCNNConvFCHead((256, 7, 7), [256, 256], [128], norm_layer=nn.BatchNorm2d)


def _flow_encoder() -> Any:
    from torchvision.models.optical_flow import raft_large

    return raft_large(weights=None).context_encoder
