"""The same network in two frameworks: `torch_twin(keras_model)` is Keras' ResNet50 as a torchvision model.

The two libraries build this network differently. The twin compensates for it:

- Keras has the first version of He et al.: a block's stride is in its first convolution, not in its second.
- Its convolutions have biases, torchvision's have none. BatchNorm absorbs them exactly: mean' = mean − bias.
- The libraries' BatchNorms differ in ε.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sita_adapters.errors import ModelError

if TYPE_CHECKING:
    from torch import nn


def torch_twin(keras_model: Any) -> nn.Module:
    """Return the torchvision model, in eval mode, that computes the same as `keras.applications.ResNet50`.

    `keras_model` has its classifier; any other model raises a ModelError. The twin takes images (N, C, H, W) instead
    of (N, H, W, C). It returns logits, whether or not the Keras model ends in a softmax.
    """
    import keras
    import torch

    from . import torchvision_compat  # noqa: F401  (before torchvision)
    from torchvision import models  # isort: skip

    layers = {layer.name: layer for layer in getattr(keras_model, "layers", ()) if getattr(layer, "weights", None)}
    names = [name for prefix, *_ in _convolutions() for name in (f"{prefix}_conv", f"{prefix}_bn")]
    if set(layers) != {*names, "predictions"}:
        raise ModelError(
            "Expected Keras' ResNet50 with its classifier (include_top=True), neither adapted nor built into another "
            f"model; received {type(keras_model).__name__} with other layers. Try: keras.applications.ResNet50()."
        )
    read = keras.ops.convert_to_numpy
    head = layers["predictions"]
    twin: Any = models.resnet50(weights=None, num_classes=head.units)
    state = {"fc.weight": read(head.kernel).T, "fc.bias": read(head.bias)}
    for block in (block for stage in (twin.layer1, twin.layer2, twin.layer3, twin.layer4) for block in stage):
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    for prefix, convolution, norm in _convolutions():
        ours, module = layers[f"{prefix}_conv"], twin.get_submodule(convolution)
        weight = read(ours.kernel).transpose(3, 2, 0, 1)
        if (weight.shape, tuple(ours.strides)) != (tuple(module.weight.shape), module.stride):
            raise ModelError(
                f"Expected a kernel {tuple(module.weight.shape)} with strides {module.stride} in {ours.name}, as in "
                f"keras.applications.ResNet50; received {weight.shape} with {ours.strides}. Try: the unchanged model."
            )
        statistics = layers[f"{prefix}_bn"]
        twin.get_submodule(norm).eps = statistics.epsilon
        state |= {
            f"{convolution}.weight": weight,
            f"{norm}.weight": read(statistics.gamma),
            f"{norm}.bias": read(statistics.beta),
            f"{norm}.running_mean": read(statistics.moving_mean) - read(ours.bias),
            f"{norm}.running_var": read(statistics.moving_variance),
        }
    counters = {name: value for name, value in twin.state_dict().items() if name.endswith("num_batches_tracked")}
    twin.load_state_dict({**counters, **{name: torch.tensor(array) for name, array in state.items()}})
    return twin.eval()  # type: ignore[no-any-return]


def _convolutions() -> Iterator[tuple[str, str, str]]:
    """Yield, for every convolution, the prefix of its Keras layers, and its and its BatchNorm's name in torchvision."""
    yield "conv1", "conv1", "bn1"
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            ours, theirs = f"conv{stage + 2}_block{block + 1}", f"layer{stage + 1}.{block}"
            if block == 0:
                yield f"{ours}_0", f"{theirs}.downsample.0", f"{theirs}.downsample.1"
            for index in (1, 2, 3):
                yield f"{ours}_{index}", f"{theirs}.conv{index}", f"{theirs}.bn{index}"
