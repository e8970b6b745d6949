"""segmentation_models_pytorch: every decoder on one encoder, and every family of encoders under one decoder."""

from __future__ import annotations

import functools
from typing import Any

from .members import Member, squares

_DECODERS = (
    *("Unet", "UnetPlusPlus", "MAnet", "Linknet", "FPN", "PSPNet", "PAN"),
    *("DeepLabV3", "DeepLabV3Plus", "UPerNet", "Segformer"),
)
_ENCODERS = {
    "resnet": "resnet18",
    "resnext": "resnext50_32x4d",
    "dpn": "dpn68",
    "vgg": "vgg11_bn",
    "senet": "se_resnet50",
    "densenet": "densenet121",
    "inceptionresnetv2": "inceptionresnetv2",
    "inceptionv4": "inceptionv4",
    "efficientnet": "efficientnet-b0",
    "mobilenet": "mobilenet_v2",
    "xception": "xception",
    "timm-efficientnet": "timm-efficientnet-b0",
    "timm-tf_efficientnet_lite": "timm-tf_efficientnet_lite0",
    "timm-skresnet": "timm-skresnet18",
    "mit": "mit_b0",
    "mobileone": "mobileone_s0",
    "of timm": "tu-mobilenetv3_small_050",
}


def members() -> list[Member]:
    """Return one member of each family."""
    library, sizes = "segmentation_models_pytorch", squares(64, 96, 128)
    decoders = [
        Member(library, f"decoder {name}", f"{name}, resnet18", functools.partial(_build, name, "resnet18"), sizes)
        for name in _DECODERS
    ]
    encoders = [
        Member(library, f"encoder {family}", f"Unet, {name}", functools.partial(_build, "Unet", name), sizes)
        for family, name in _ENCODERS.items()
    ]
    return [
        *decoders,
        Member(library, "decoder DPT", "DPT, tu-vit_tiny_patch16_224", functools.partial(_dpt), squares(224)),
        Member(library, "two answers", "Unet with labels, resnet18", _with_labels, sizes),
        *encoders,
    ]


def _build(decoder: str, encoder: str, **settings: Any) -> Any:
    import segmentation_models_pytorch as smp

    return getattr(smp, decoder)(encoder_name=encoder, encoder_weights=None, classes=5, **settings)


def _dpt() -> Any:
    return _build("DPT", "tu-vit_tiny_patch16_224")


def _with_labels() -> Any:
    return _build("Unet", "resnet18", aux_params={"classes": 4})
