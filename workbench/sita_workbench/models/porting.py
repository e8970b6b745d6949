"""The same network in two frameworks: `torch_twin(keras_model)` is a torchvision model that computes the same logits.

Keras and torchvision build ResNet50, DenseNet121 and InceptionV3 differently. `torch_twin` compensates for this:

- Keras' ResNet50 is the first version of He et al.: a block's stride is in its first convolution, not in its second.
- Convolutions of Keras' ResNet50 have biases, torchvision's have none. BatchNorm absorbs them: mean' = mean − bias.
- The BatchNorm layers of the two libraries differ in ε.
- Keras' InceptionV3 has no γ, and its average pooling does not count the padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sita_adapters.errors import ModelError

if TYPE_CHECKING:
    import torch
    from torch import nn

_NAMES = {53: "resnet50", 120: "densenet121", 94: "inception_v3"}
"""A network's name in torchvision, by its number of convolutions."""


class _Part(NamedTuple):
    """A layer with weights. Shapes are torch's: (out, in, height, width), (out, in), or a BatchNorm's (channels,)."""

    name: str
    layer: Any
    kind: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] = ()


def torch_twin(keras_model: Any) -> nn.Module:
    """Return a torchvision model in eval mode that computes the same as a model of `keras.applications`.

    `keras_model` is ResNet50, DenseNet121 or InceptionV3 with its classifier. Any other model raises a ModelError. The
    returned model takes images (N, C, H, W) instead of (N, H, W, C). It returns logits, even if the Keras model ends in
    a softmax.
    """
    from . import torchvision_compat  # noqa: F401  (before torchvision)
    from torchvision import models  # isort: skip

    parts = list(_keras_parts(keras_model))
    name = _NAMES.get([part.kind for part in parts].count("convolution"))
    if name is None or parts[-1].kind != "dense":
        raise _error(keras_model, "other layers")
    extra = {"aux_logits": False, "init_weights": False} if name == "inception_v3" else {}
    twin: Any = models.get_model(name, weights=None, num_classes=parts[-1].shape[0], **extra)
    for module in twin.modules():
        if name == "resnet50" and hasattr(module, "conv3"):
            module.conv1.stride, module.conv2.stride = module.conv2.stride, module.conv1.stride
        if hasattr(module, "branch_pool"):
            module.branch_pool.register_forward_pre_hook(_LeavePaddingOut())
    pairs = list(zip_longest(parts, _torch_parts(twin)))
    for one, other in pairs:
        if one is None or other is None or one[2:] != other[2:]:
            raise _error(keras_model, f"{one and (one.name, *one[2:])}, where torchvision has {other and other[2:]}")
    _copy_weights(pairs, twin)
    return twin.eval()  # type: ignore[no-any-return]


def _error(model: Any, received: str) -> ModelError:
    return ModelError(
        "Expected Keras' ResNet50, DenseNet121 or InceptionV3 with its classifier (include_top=True), neither adapted "
        f"nor built into another model; received {type(model).__name__} with {received}. Try: the unchanged model."
    )


def _keras_parts(model: Any) -> Iterator[_Part]:
    """Yield the layers with weights, each after the layers of its inputs, branches in the order of joining.

    torchvision registers its modules in this order. `model.layers` is sorted by depth, which interleaves branches, and
    the numbers in the names of InceptionV3's layers differ from model to model.
    """
    if len(getattr(model, "outputs", None) or ()) != 1:
        raise _error(model, "no single output")
    stack: list[tuple[Any, bool]] = [(model.outputs[0], False)]  # no recursion: DenseNet121 is 400 layers deep
    seen: set[int] = set()
    while stack:
        tensor, ready = stack.pop()
        layer, node, _ = tensor._keras_history
        if ready and getattr(layer, "weights", None):
            yield _keras_part(layer, model)
        elif not ready and id(layer) not in seen:
            seen.add(id(layer))
            stack.append((tensor, True))
            stack.extend((given, False) for given in reversed(layer._inbound_nodes[node].input_tensors))


def _keras_part(layer: Any, model: Any) -> _Part:
    from keras import layers

    if type(layer) is layers.Conv2D:
        height, width, inner, outer = layer.kernel.shape
        return _Part(layer.name, layer, "convolution", (outer, inner, height, width), tuple(layer.strides))
    if type(layer) is layers.BatchNormalization:
        return _Part(layer.name, layer, "BatchNorm", tuple(layer.moving_mean.shape))
    if type(layer) is layers.Dense:
        return _Part(layer.name, layer, "dense", tuple(reversed(layer.kernel.shape)))
    raise _error(model, f"a {type(layer).__name__} ({layer.name})")


def _torch_parts(module: Any, prefix: str = "") -> Iterator[_Part]:
    """Yield the modules with weights in the order in which Keras joins the branches."""
    # Keras joins [shortcut, residual]; torchvision registers a block's shortcut, `downsample`, last.
    for name, child in sorted(module.named_children(), key=lambda child: child[0] != "downsample"):
        yield from _torch_parts(child, f"{prefix}{name}.")
    if hasattr(module, "weight"):
        kind = {"Conv2d": "convolution", "Linear": "dense"}.get(type(module).__name__, "BatchNorm")
        yield _Part(prefix[:-1], module, kind, tuple(module.weight.shape), getattr(module, "stride", ()))


class _LeavePaddingOut:
    """Turns a mean over 3×3 positions that counts the padding into one that does not.

    It is a hook that runs before the module that Inception3 calls on F.avg_pool2d(x, 3, 1, 1). The mean of ones is the
    share of positions inside the image.
    """

    def __call__(self, module: nn.Module, args: tuple[torch.Tensor]) -> torch.Tensor:
        import torch

        inside = torch.ones_like(args[0][:1, :1])
        return args[0] / torch.nn.functional.avg_pool2d(inside, kernel_size=3, stride=1, padding=1)


def _copy_weights(pairs: list[tuple[_Part, _Part]], twin: nn.Module) -> None:
    import torch
    from keras.ops import convert_to_numpy as read

    state = {name: value for name, value in twin.state_dict().items() if name.endswith("num_batches_tracked")}
    bias: Any = 0.0  # of a convolution; in all these networks its BatchNorm comes next
    for (_, ours, kind, shape, _), (name, theirs, *_) in pairs:
        if kind == "BatchNorm":
            gamma = read(ours.gamma) if ours.scale else np.ones(shape)
            mean, bias, theirs.eps = read(ours.moving_mean) - bias, 0.0, ours.epsilon
            arrays = {"weight": gamma, "bias": read(ours.beta), "running_mean": mean}
            arrays["running_var"] = read(ours.moving_variance)
        elif kind == "convolution":
            bias = read(ours.bias) if ours.use_bias else 0.0
            arrays = {"weight": read(ours.kernel).transpose(3, 2, 0, 1)}
        else:
            arrays = {"weight": read(ours.kernel).T, "bias": read(ours.bias)}
        state |= {f"{name}.{key}": torch.from_numpy(np.array(array, np.float32)) for key, array in arrays.items()}
    twin.load_state_dict(state)  # strict: every weight is loaded
