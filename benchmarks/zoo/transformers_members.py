# ruff: noqa: SIM905  (as list literals, the names would take a line each)
"""transformers: every family whose code has a BatchNorm and that takes images, from a small configuration.

Nothing is downloaded. Backbones of detectors are their default ones, frozen BatchNorms included.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from typing import Any

from .members import Member, squares

_SMALL_VIT = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "image_size": 64,
}
_BEIT = {**_SMALL_VIT, "out_indices": [1, 2, 3, 4], "pool_scales": [1, 2, 3, 6]}
_SMALL_DETR = {"encoder_layers": 1, "decoder_layers": 2, "num_queries": 10, "encoder_ffn_dim": 64}
_FEW_QUERIES = {"num_queries": 10, "decoder_layers": 2}
_EFFICIENTNET = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280}

_AS_THEY_ARE = """CvtForImageClassification EfficientLoFTRModel GLPNForDepthEstimation HGNetV2ForImageClassification
LevitForImageClassification LevitForImageClassificationWithTeacher MobileNetV1ForImageClassification
MobileNetV2ForImageClassification MobileNetV2ForSemanticSegmentation MobileViTForImageClassification
MobileViTForSemanticSegmentation MobileViTV2ForImageClassification MobileViTV2ForSemanticSegmentation
PPLCNetForImageClassification PPLCNetV3Backbone PPLCNetV4Backbone PPOCRV5MobileDetForObjectDetection
PPOCRV5MobileRecForTextRecognition PPOCRV5ServerRecForTextRecognition PPOCRV6SmallRecForTextRecognition
PPOCRV6TinyRecForTextRecognition RTDetrResNetBackbone SegformerForSemanticSegmentation SLANetBackbone
SwiftFormerForImageClassification TextNetForImageClassification UVDocBackbone""".split()
"""Classes whose default configuration is small enough."""
_CONFIGURED: dict[str, dict[str, Any]] = {
    "AlignVisionModel": _EFFICIENTNET,
    "BeitForSemanticSegmentation": _BEIT,
    "ClapAudioModel": {
        "patch_embeds_hidden_size": 16,
        "hidden_size": 128,
        "num_attention_heads": [1, 2, 4, 4],
        "depths": [1, 1, 1, 1],
    },
    "ConditionalDetrForObjectDetection": _SMALL_DETR,
    "DabDetrForObjectDetection": _SMALL_DETR,
    "Data2VecVisionForSemanticSegmentation": _BEIT,
    "DeformableDetrForObjectDetection": _SMALL_DETR,
    "DetrForObjectDetection": _SMALL_DETR,
    "DFineForObjectDetection": _FEW_QUERIES,
    "DPTForSemanticSegmentation": {
        **_SMALL_VIT,
        "backbone_out_indices": [0, 1, 2, 3],
        "neck_hidden_sizes": [16, 32, 48, 64],
        "fusion_hidden_size": 32,
        "use_batch_norm_in_fusion_residual": True,
    },
    "EfficientNetForImageClassification": _EFFICIENTNET,
    "PerceiverForImageClassificationConvProcessing": {
        "num_latents": 16,
        "d_latents": 64,
        "num_blocks": 1,
        "num_self_attends_per_block": 1,
        "num_self_attention_heads": 1,
        "num_cross_attention_heads": 1,
    },
    "PPDocLayoutV2Model": _FEW_QUERIES,
    "PPDocLayoutV3ForObjectDetection": _FEW_QUERIES,
    "PPDocLayoutV4ForObjectDetection": _FEW_QUERIES,
    "RegNetForImageClassification": {"depths": [1, 1, 2, 1]},
    "ResNetForImageClassification": {"layer_type": "basic", "depths": [1, 1, 1, 1]},
    "ResNetBackbone": {"depths": [1, 1, 1, 1]},
    "RTDetrForObjectDetection": _FEW_QUERIES,
    "RTDetrV2ForObjectDetection": _FEW_QUERIES,
    "TableTransformerForObjectDetection": _SMALL_DETR,
    "TimmBackbone": {"backbone": "resnet10t", "use_pretrained_backbone": False},
    "TimmWrapperForImageClassification": {"architecture": "resnet10t"},
    "UperNetForSemanticSegmentation": {"hidden_size": 64, "auxiliary_channels": 32},
}
_TEXT_LINES = ((3, 48, 64), (3, 48, 160), (3, 48, 320))
_SHAPES = {
    "ClapAudioModel": ((1, 1001, 64),),
    "EfficientLoFTRModel": ((2, 3, 64, 64),),
    "PerceiverForImageClassificationConvProcessing": squares(224),
    "PPOCRV5MobileRecForTextRecognition": ((3, 48, 64), (3, 96, 64)),
    "PPOCRV5ServerRecForTextRecognition": _TEXT_LINES,
    "PPOCRV6SmallRecForTextRecognition": _TEXT_LINES,
    "PPOCRV6TinyRecForTextRecognition": _TEXT_LINES,
}
_NOT_AT_THE_TOP = ("rt_detr.modeling_rt_detr_resnet", "slanet.modeling_slanet")


def members() -> Iterator[Member]:
    """Yield one member of each family."""
    for name, settings in {**{name: {} for name in _AS_THEY_ARE}, **_CONFIGURED}.items():
        shapes = _SHAPES.get(name, squares(64, 96, 128, 224, 640))
        yield Member("transformers", name, functools.partial(build, name, settings), shapes)
    yield Member("transformers", "Deimv2ForObjectDetection", _deimv2, squares(64))
    yield Member("transformers", "Mask2FormerForUniversalSegmentation", _mask2former, squares(64))
    yield Member("transformers", "MaskFormerForInstanceSegmentation", _maskformer, squares(64))
    yield Member("transformers", "ZoeDepthForDepthEstimation", _zoedepth, squares(64))
    yield Member("transformers", "VitMatteForImageMatting", _vitmatte, squares(64, channels=4))
    yield Member("transformers", "VitPoseForPoseEstimation", _vitpose, ((3, 64, 48),))


def _class(name: str) -> Any:
    """Return a class of transformers by its name."""
    modules = ("transformers", *(f"transformers.models.{each}" for each in _NOT_AT_THE_TOP))
    for module in map(importlib.import_module, modules):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"transformers has no {name}.")


def build(name: str, settings: dict[str, Any]) -> Any:
    made = _class(name)
    return made(made.config_class(**settings))


def _deimv2() -> Any:
    """With PyTorch's RMSNorm, which keeps float64. Its own rounds to float32: a difference of 1e-13 that crosses a
    rounding boundary becomes one of 1e-8 in the answer."""
    from torch import nn

    model = build("Deimv2ForObjectDetection", _FEW_QUERIES)
    for name, module in list(model.named_modules()):
        if type(module).__name__ == "Deimv2RMSNorm":
            model.set_submodule(name, nn.RMSNorm(module.weight.shape, eps=module.variance_epsilon))
    return model


def _small_resnet() -> Any:
    stages = ["stage1", "stage2", "stage3", "stage4"]
    return _class("ResNetConfig")(
        embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], layer_type="basic", out_features=stages
    )


def _mask2former() -> Any:
    layers = {"encoder_layers": 1, "decoder_layers": 2, "num_attention_heads": 4, "num_queries": 10}
    widths = dict.fromkeys(("hidden_dim", "feature_size", "mask_feature_size", "dim_feedforward"), 64)
    return build("Mask2FormerForUniversalSegmentation", {"backbone_config": _small_resnet(), **layers, **widths})


def _maskformer() -> Any:
    decoder = _class("DetrConfig")(
        d_model=64,
        encoder_layers=1,
        decoder_layers=1,
        num_queries=10,
        backbone_config=_small_resnet(),
        use_timm_backbone=False,
    )
    widths = {"fpn_feature_size": 32, "mask_feature_size": 32}
    settings = {"backbone_config": _small_resnet(), "decoder_config": decoder, **widths}
    return build("MaskFormerForInstanceSegmentation", settings)


def _zoedepth() -> Any:
    small = {"num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64, "out_indices": [1, 2, 3, 4]}
    settings = {
        "backbone_config": _class("BeitConfig")(image_size=64, hidden_size=32, reshape_hidden_states=False, **small),
        "backbone_hidden_size": 32,
        "neck_hidden_sizes": [16, 16, 32, 32],
        "fusion_hidden_size": 16,
        "bottleneck_features": 16,
        "bin_embedding_dim": 16,
        "bin_configurations": [{"n_bins": 16, "min_depth": 0.001, "max_depth": 10.0, "name": None}],
        "use_batch_norm_in_fusion_residual": True,
    }
    return build("ZoeDepthForDepthEstimation", settings)


def _vitmatte() -> Any:
    backbone = _class("VitDetConfig")(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=64,
        patch_size=16,
        num_channels=4,
        out_features=["stage2"],
    )
    widths = {"convstream_hidden_sizes": [16, 32, 64], "fusion_hidden_sizes": [64, 32, 16, 8]}
    return build("VitMatteForImageMatting", {"backbone_config": backbone, "hidden_size": 64, **widths})


def _vitpose() -> Any:
    backbone = _class("VitPoseBackboneConfig")(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=[64, 48], out_features=["stage2"]
    )
    settings = {"backbone_config": backbone, "use_simple_decoder": False, "num_labels": 4}
    return build("VitPoseForPoseEstimation", settings)
