"""Detection: Hugging Face's RT-DETR, which needs no non-maximum suppression; torchvision's detectors; fused models.

    python examples/detection.py

A detector selects its queries by their scores, so box 7 of one row need not be box 7 of another. They are never
averaged: one of an image's rows supplies all of its boxes and scores. The weights are untrained: this shows how to
connect things.
"""

import torch
from torch import nn
from torch.fx.experimental.optimization import fuse

# Only needed where torchvision does not match the installed torch: LIBRARY is then what stands in for its operators.
from sita_workbench.models.torchvision_compat import LIBRARY

# isort: split
import torchvision
from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig

import sita_adapters as sita

torch.manual_seed(0)


def draw_street(fog: float = 0.0) -> torch.Tensor:
    """Return two 96×96 pictures of bright boxes on a dim ground."""
    pictures = 0.2 + 0.05 * torch.randn(2, 3, 96, 96)
    for picture in pictures:
        for left, top in torch.randint(0, 70, (4, 2)).tolist():
            picture[:, top : top + 24, left : left + 24] = torch.rand(3, 1, 1)
    return (1 - fog) * pictures + 0.9 * fog


backbone = RTDetrResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1] * 4, out_indices=[2, 3, 4])
sizes = {"d_model": 32, "encoder_hidden_dim": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "decoder_layers": 2}
channels = {"encoder_in_channels": [32, 48, 64], "decoder_in_channels": [32, 32, 32]}
heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_queries": 20, "num_denoising": 0}
config = RTDetrConfig(backbone_config=backbone, freeze_backbone_batch_norms=False, **sizes, **channels, **heads)
detector = RTDetrForObjectDetection(config).train()
with torch.no_grad():
    for _ in range(20):  # BatchNorm statistics of clear pictures, as after training
        detector(draw_street())
detector.eval()

adapted = sita.adapt(detector)  # the one line

foggy = draw_street(fog=0.5)
with torch.inference_mode():
    before, after = detector(foggy), adapted(foggy)
print(f"{type(after).__name__}: boxes {tuple(after.pred_boxes.shape)}, logits {tuple(after.logits.shape)}")
for who, output in (("source", before), ("adapted", after)):
    score, query = output.logits.sigmoid().amax(2)[0].max(0)
    box = ", ".join(f"{side:.2f}" for side in output.pred_boxes[0, query])
    print(f"  {who:<8} surest box of the first picture: ({box}), score {score:.2f}")
try:
    sita.adapt(detector, "ops")(foggy)
except sita.SitaError as error:
    print(f"a vote: {error}")

# A torchvision detector takes and returns lists; what is adapted is its backbone, one batch of images.
faster = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None).eval()
faster.backbone = sita.adapt(faster.backbone, scores="none")  # its feature maps are no class scores
with torch.inference_mode():
    features = faster.backbone(foggy)  # its detections need operators that only a matching torchvision has
    found = f"{len(faster(list(foggy)))} lists of boxes" if LIBRARY is None else "no boxes: its operators do not load"
print(f"Faster R-CNN, its backbone adapted: {len(features)} feature maps, {found}")
try:
    sita.adapt(fuse(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).eval()), "shift")
except sita.SitaError as error:
    print(f"a fused model: {error}")
