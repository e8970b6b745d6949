"""torchvision: classification, segmentation, video, and the backbones of its detectors."""

from __future__ import annotations

import functools
from typing import Any

from .members import Member, squares

_SIZES = (64, 96, 128, 224)

_IMAGES = {
    "alexnet": "alexnet",
    "convnext": "convnext_tiny",
    "densenet": "densenet121",
    "efficientnet": "efficientnet_b0",
    "efficientnet_v2": "efficientnet_v2_s",
    "googlenet": "googlenet",
    "inception_v3": "inception_v3",
    "maxvit": "maxvit_t",
    "mnasnet": "mnasnet0_5",
    "mobilenet_v2": "mobilenet_v2",
    "mobilenet_v3": "mobilenet_v3_small",
    "regnet_x": "regnet_x_400mf",
    "regnet_y": "regnet_y_400mf",
    "resnet": "resnet18",
    "resnet, bottlenecks": "resnet50",
    "resnext": "resnext50_32x4d",
    "shufflenet_v2": "shufflenet_v2_x0_5",
    "squeezenet": "squeezenet1_1",
    "swin": "swin_t",
    "swin_v2": "swin_v2_t",
    "vgg, plain": "vgg11",
    "vgg": "vgg11_bn",
    "vit": "vit_b_32",
    "wide_resnet": "wide_resnet50_2",
    "fcn": "fcn_resnet50",
    "deeplabv3": "deeplabv3_mobilenet_v3_large",
    "lraspp": "lraspp_mobilenet_v3_large",
}
_VIDEOS = {
    "video resnet, 3d": "r3d_18",
    "video resnet, mixed": "mc3_18",
    "video resnet, (2+1)d": "r2plus1d_18",
    "s3d": "s3d",
    "mvit": "mvit_v2_s",
    "swin3d": "swin3d_t",
}
_WITHOUT = ("alexnet", "convnext", "squeezenet", "swin", "swin_v2", "vgg, plain", "vit", "mvit", "swin3d")
"""Families without BatchNorm: LayerNorm, or nothing."""


def members() -> list[Member]:
    """Return one member of each family."""
    found = [
        Member("torchvision", family, name, None if family in _WITHOUT else functools.partial(_model, name), shapes)
        for names, shapes in ((_IMAGES, squares(*_SIZES)), (_VIDEOS, _clips()))
        for family, name in names.items()
    ]
    return [
        *found,
        Member("torchvision", "quantizable resnet", "quantization.resnet18", _quantizable, squares(*_SIZES)),
        *(
            Member(
                "torchvision", f"detection: {family}", f"{name} backbone", functools.partial(build, name), squares(64)
            )
            for family, name, build in (
                ("faster r-cnn, frozen BatchNorm", "resnet18", _frozen_backbone),
                ("faster r-cnn, mobilenet", "mobilenet_v3_large", _mobile_backbone),
                ("retinanet", "retinanet_resnet50_fpn_v2", _backbone_of_detector),
                ("fcos", "fcos_resnet50_fpn", _backbone_of_detector),
                ("ssdlite", "ssdlite320_mobilenet_v3_large", _backbone_of_detector),
            )
        ),
        Member("torchvision", "detection: faster r-cnn v2, heads", "FastRCNNConvFCHead", _box_head, ((256, 7, 7),)),
        Member("torchvision", "optical flow: raft", "raft_large context encoder", _flow_encoder, squares(64)),
    ]


def _clips() -> tuple[tuple[int, ...], ...]:
    return ((3, 4, 32, 32), (3, 8, 64, 64), (3, 16, 64, 64), (3, 16, 224, 224))


def _model(name: str) -> Any:
    from torchvision.models import get_model

    sizes = {"weights_backbone": None} if name.startswith(("fcn", "deeplab", "lraspp")) else {}
    quick = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}  # else it takes half a minute
    return get_model(name, weights=None, **sizes, **quick)


def _quantizable() -> Any:
    from torchvision.models.quantization import resnet18

    return resnet18(weights=None, quantize=False)


def _frozen_backbone(name: str) -> Any:
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    return resnet_fpn_backbone(backbone_name=name, weights=None)


def _mobile_backbone(name: str) -> Any:
    from torchvision.models.detection.backbone_utils import mobilenet_backbone

    return mobilenet_backbone(backbone_name=name, weights=None, fpn=True)


def _backbone_of_detector(name: str) -> Any:
    from torchvision.models import get_model

    return get_model(name, weights=None, weights_backbone=None).backbone


def _box_head(_: str = "") -> Any:
    from torch import nn
    from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead

    return FastRCNNConvFCHead((256, 7, 7), [256, 256], [128], norm_layer=nn.BatchNorm2d)


def _flow_encoder() -> Any:
    from torchvision.models.optical_flow import raft_large

    return raft_large(weights=None).context_encoder
