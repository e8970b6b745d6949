"""The detectors: the heads of ultralytics, torchvision's backbones, and those of transformers and KerasHub."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..zoo.transformers_members import build

_HEADS = (
    *("yolov3", "yolov5n", "yolov6n", "yolov8n", "yolov8n-seg", "yolov8n-pose", "yolov8n-obb", "yolov9t"),
    *("yolov10n", "yolo11n", "yolo11n-cls", "yolo12n", "yolo26n", "yolo26n-seg", "yolo26n-pose", "yolo26n-obb"),
    *("yolo26n-sem", "yolov8s-worldv2"),
)

_WITHOUT_NMS = ("yolov10n", "yolo26n", "yolo26n-seg", "yolo26n-pose", "yolo26n-obb")

_BACKBONES = (
    *("fasterrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn", "keypointrcnn_resnet50_fpn"),
    *("fasterrcnn_mobilenet_v3_large_fpn", "retinanet_resnet50_fpn", "fcos_resnet50_fpn"),
    *("ssdlite320_mobilenet_v3_large",),
)

_SMALL = {"encoder_layers": 1, "decoder_layers": 2, "num_queries": 10, "encoder_ffn_dim": 64}
_FEW = {"num_queries": 10, "decoder_layers": 2}
_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "DetrForObjectDetection": _SMALL,
    "ConditionalDetrForObjectDetection": _SMALL,
    "DeformableDetrForObjectDetection": _SMALL,
    "RTDetrForObjectDetection": _FEW,
    "RTDetrV2ForObjectDetection": _FEW,
    "DFineForObjectDetection": _FEW,
}


@dataclass(frozen=True)
class Detector:
    """A detector. `settings` are the arguments of `adapt`; `size` is that of its images."""

    library: str
    name: str
    build: Callable[[], Any]
    size: int = 128
    settings: dict[str, Any] = field(default_factory=dict)


def detectors() -> Iterator[Detector]:
    """Yield all of them."""
    for name in _HEADS:
        yield Detector("ultralytics", name, functools.partial(_yolo, name))
    for name in _WITHOUT_NMS:
        yield Detector("ultralytics", f"{name}, end2end", functools.partial(_yolo, name, end2end=True))
    yield Detector("ultralytics", "rtdetr-resnet50", _ultralytics_rtdetr)
    maps = {"scores": "none"}
    for name in _BACKBONES:
        yield Detector("torchvision", f"{name}, backbone", functools.partial(_backbone, name), settings=maps)
    for name in ("fasterrcnn_resnet50_fpn", "retinanet_resnet50_fpn"):
        frozen = functools.partial(_backbone, name, frozen=True)
        yield Detector("torchvision", f"{name}, backbone, FrozenBatchNorm", frozen, settings=maps)
    yield Detector("torchvision", "ssd300_vgg16, backbone", functools.partial(_backbone, "ssd300_vgg16"), 300, maps)
    for name, settings in _TRANSFORMERS.items():
        yield Detector("transformers", name, functools.partial(build, name, settings))
    yield Detector("keras_hub", "RetinaNetObjectDetector", _retinanet)
    yield Detector("keras_hub", "DFineObjectDetector", _d_fine)


def _yolo(name: str, *, end2end: bool = False) -> Any:
    """Return a network of ultralytics; `end2end`: with the head that needs no non-maximum suppression."""
    from ultralytics import YOLO

    model: Any = YOLO(f"{name}.yaml", verbose=False).model
    if end2end:
        model.end2end = True
    return model


def _ultralytics_rtdetr() -> Any:
    from ultralytics.nn.tasks import RTDETRDetectionModel

    return RTDETRDetectionModel("rtdetr-resnet50.yaml", verbose=False)


def _backbone(name: str, *, frozen: bool = False) -> Any:
    """Return a detector's backbone: the detector itself takes and returns lists."""
    from torchvision.models import get_model
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
    from torchvision.ops import FrozenBatchNorm2d

    if frozen:
        return resnet_fpn_backbone(backbone_name="resnet50", weights=None, norm_layer=FrozenBatchNorm2d)
    return get_model(name, weights=None, weights_backbone=None).backbone


def _retinanet() -> Any:
    """Return the graph of KerasHub's RetinaNet: the task itself does more in `predict`."""
    import keras
    import keras_hub
    from keras_hub import models

    encoder = models.ResNetBackbone([64], [7], [64, 64, 96, 96], [1, 1, 1, 1], [1, 2, 2, 2], "basic_block", True)
    backbone = models.RetinaNetBackbone(encoder, 3, 5, False, image_shape=(128, 128, 3))
    sizes = {"min_level": 3, "max_level": 5, "num_scales": 3, "aspect_ratios": [0.5, 1.0, 2.0], "anchor_size": 4.0}
    anchors = keras_hub.layers.AnchorGenerator("xyxy", **sizes)
    task = models.RetinaNetObjectDetector(backbone, 7, "xyxy", anchors, use_prediction_head_norm=True)
    return keras.Model(task.input, task.output)


def _d_fine() -> Any:
    """Return the graph of KerasHub's D-FINE."""
    import keras
    from keras_hub import models

    encoder = models.HGNetV2Backbone(
        stem_channels=[3, 8, 8],
        stackwise_stage_filters=[
            [8, 8, 16, 1, 2, 3],
            [16, 8, 32, 1, 2, 3],
            [32, 16, 48, 1, 2, 5],
            [48, 16, 64, 1, 2, 5],
        ],
        apply_downsample=[False, True, True, True],
        use_lightweight_conv_block=[False, False, True, True],
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 32, 48, 64],
        embedding_size=8,
        use_learnable_affine_block=True,
        hidden_act="relu",
        image_shape=(128, 128, 3),
        out_features=["stage3", "stage4"],
    )
    backbone = models.DFineBackbone(
        backbone=encoder,
        decoder_in_channels=[32, 32],
        encoder_hidden_dim=32,
        num_denoising=0,
        num_labels=7,
        hidden_dim=32,
        learn_initial_query=False,
        num_queries=12,
        anchor_image_size=(128, 128),
        feat_strides=[16, 32],
        num_feature_levels=2,
        encoder_in_channels=[48, 64],
        encode_proj_layers=[1],
        num_attention_heads=4,
        encoder_ffn_dim=64,
        num_encoder_layers=1,
        hidden_expansion=0.34,
        depth_multiplier=0.5,
        eval_idx=-1,
        num_decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=64,
        decoder_n_points=[3, 3],
        lqe_hidden_dim=16,
        num_lqe_layers=2,
        out_features=["stage3", "stage4"],
        image_shape=(128, 128, 3),
        seed=0,
    )
    task = models.DFineObjectDetector(backbone, 7, "xyxy")
    return keras.Model(task.input, task.output)
