"""The same network in two frameworks: Keras' ResNet50, DenseNet121 and InceptionV3 as torchvision models.

    twin = torch_twin(keras_model)       # a torchvision model that computes the Keras model's logits
    model = keras_twin(twin)             # and back

The two libraries build these networks differently. A twin compensates for it:

- Keras' ResNet50 is the first version of He et al.: a block's stride is in its first convolution, not in its second.
- Its convolutions have biases, torchvision's have none. BatchNorm absorbs them exactly: mean' = mean − bias.
- The libraries' BatchNorms differ in ε.
- Keras' InceptionV3 has no γ, and its average pooling does not count the padding.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sita_adapters.errors import ModelError

if TYPE_CHECKING:
    import torch
    from torch import nn

_NAMES = {53: ("ResNet50", "resnet50"), 120: ("DenseNet121", "densenet121"), 94: ("InceptionV3", "inception_v3")}
"""A network's name in Keras and in torchvision, by its number of convolutions."""

_KNOWN = ", ".join(name for name, _ in _NAMES.values())

_TORCH_AXES = {"convolution": (3, 2, 0, 1), "dense": (1, 0), "BatchNorm": (0,)}
"""Where the axes of a Keras kernel are in torch."""


class _Part(NamedTuple):
    """A layer with weights. Shapes are torch's: (out, in, height, width), (out, in), or a BatchNorm's (channels,)."""

    name: str
    layer: Any
    kind: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] = ()


def torch_twin(keras_model: Any) -> nn.Module:
    """Return the torchvision model, in eval mode, that computes the same as a model of `keras.applications`.

    `keras_model` is ResNet50, DenseNet121 or InceptionV3 with its classifier; any other raises a ModelError. The twin
    takes images (N, C, H, W) instead of (N, H, W, C). It returns logits, whether or not the Keras model ends in a
    softmax.
    """
    from . import torchvision_compat  # noqa: F401  (before torchvision)
    from torchvision import models  # isort: skip

    parts = _keras_parts(keras_model)
    keras_name, name = _NAMES.get([part.kind for part in parts].count("convolution"), ("", ""))
    if not name or parts[-1].kind != "dense":
        raise ModelError(
            f"Expected one of {_KNOWN}, with its classifier (include_top=True); received {type(keras_model).__name__}, "
            f"{keras_model.name!r}."
        )
    extra = {"aux_logits": False, "init_weights": False} if name == "inception_v3" else {}
    twin: Any = models.get_model(name, weights=None, num_classes=parts[-1].shape[0], **extra)
    for module in twin.modules():
        if name == "resnet50" and hasattr(module, "conv3"):
            module.conv1.stride, module.conv2.stride = module.conv2.stride, module.conv1.stride
        if hasattr(module, "branch_pool"):
            module.branch_pool.register_forward_pre_hook(_leave_padding_out)
    _keras_to_torch(_matched(keras_model, twin), twin)
    twin.twin_of = keras_name
    return twin.eval()  # type: ignore[no-any-return]


def keras_twin(torch_model: nn.Module, *, size: int | None = None, activation: str | None = "softmax") -> Any:
    """Return the model of `keras.applications` that computes the same as a model that `torch_twin` returned.

    `size` is the height and width of its images; None: the architecture's default. `activation` is the last activation;
    None: the model returns logits.
    """
    name = getattr(torch_model, "twin_of", None)
    if name is None:  # torchvision's own has other strides, or counts padding
        raise ModelError(f"Expected a model that torch_twin returned; received {type(torch_model).__name__}.")
    import keras

    *_, last = _torch_parts(torch_model)
    shape = None if size is None else (size, size, 3)
    model = getattr(keras.applications, name)(
        weights=None, input_shape=shape, classes=last.shape[0], classifier_activation=activation
    )
    _torch_to_keras(_matched(model, torch_model))
    return model


def _matched(keras_model: Any, torch_model: nn.Module) -> list[tuple[_Part, _Part]]:
    """Return the corresponding layers, in the order of their calls; raise where kind, shape or stride differs."""
    pairs = []
    for one, other in zip_longest(_keras_parts(keras_model), _torch_parts(torch_model)):
        if one is None or other is None or one[2:] != other[2:]:
            received = [part and (part.name, *part[2:]) for part in (one, other)]
            raise ModelError(f"Expected the layers of {_KNOWN}; received {received[0]}, in torchvision {received[1]}.")
        pairs.append((one, other))
    return pairs


def _keras_parts(model: Any) -> list[_Part]:
    """Return the layers with weights in the order in which branches are joined, whatever their names."""
    # On Keras' torch backend, its models are torch modules too. Whoever has a Keras model has imported Keras.
    keras = sys.modules.get("keras")
    if keras is None or not isinstance(model, keras.Model) or len(getattr(model, "outputs", None) or ()) != 1:
        raise ModelError(f"Expected a functional Keras model, one of {_KNOWN}; received {type(model).__name__}.")
    return [_keras_part(layer) for layer in _in_call_order(model) if getattr(layer, "weights", None)]


def _in_call_order(model: Any) -> Iterator[Any]:
    """Yield every layer after those that it takes its inputs from, joined branches in the order of joining.

    That is the order of the calls, and the one in which torchvision registers its modules. `model.layers` is sorted by
    depth, which interleaves branches, and the numbers in the names of InceptionV3's layers differ from model to model.
    """
    # A stack, and no recursion: DenseNet121 is more than 400 layers deep.
    stack: list[tuple[Any, bool]] = [(model.outputs[0], False)]
    seen: set[int] = set()
    while stack:
        tensor, ready = stack.pop()
        layer, node, _ = tensor._keras_history
        if ready:
            yield layer
        elif id(layer) not in seen:
            seen.add(id(layer))
            stack.append((tensor, True))
            stack.extend((given, False) for given in reversed(layer._inbound_nodes[node].input_tensors))


def _keras_part(layer: Any) -> _Part:
    from keras import layers

    if type(layer) is layers.Conv2D:
        height, width, inner, outer = layer.kernel.shape
        return _Part(layer.name, layer, "convolution", (outer, inner, height, width), tuple(layer.strides))
    if type(layer) is layers.BatchNormalization:
        return _Part(layer.name, layer, "BatchNorm", tuple(layer.moving_mean.shape))
    if type(layer) is layers.Dense:
        return _Part(layer.name, layer, "dense", tuple(reversed(layer.kernel.shape)))
    raise ModelError(
        f"Expected the layers of {_KNOWN}; {layer.name!r} is a {type(layer).__name__} with weights. "
        "Try: port the plain model, before it is adapted or built into another."
    )


def _torch_parts(module: Any, prefix: str = "") -> Iterator[_Part]:
    """Yield the modules with weights in the order in which Keras joins the branches."""
    # Keras joins [shortcut, residual]; torchvision registers a block's shortcut, `downsample`, last.
    for name, child in sorted(module.named_children(), key=lambda child: child[0] != "downsample"):
        yield from _torch_parts(child, f"{prefix}{name}.")
    if hasattr(module, "weight"):
        kind = {"Conv2d": "convolution", "Linear": "dense"}.get(type(module).__name__, "BatchNorm")
        yield _Part(prefix[:-1], module, kind, tuple(module.weight.shape), getattr(module, "stride", ()))


def _leave_padding_out(module: nn.Module, args: tuple[torch.Tensor]) -> torch.Tensor:
    """Turn a mean over 3×3 positions that counts the padding into one that does not.

    Runs before the module that Inception3 calls on F.avg_pool2d(x, 3, 1, 1): the mean of ones is the share of
    positions inside the image.
    """
    import torch

    inside = torch.ones_like(args[0][:1, :1])
    return args[0] / torch.nn.functional.avg_pool2d(inside, kernel_size=3, stride=1, padding=1)


def _variables(part: _Part) -> dict[str, Any]:
    """Return the variables of a Keras layer by torch's names for them; None for one that it does not have."""
    layer = part.layer
    if part.kind == "BatchNorm":
        statistics = {"running_mean": layer.moving_mean, "running_var": layer.moving_variance}
        return {"weight": layer.gamma if layer.scale else None, "bias": layer.beta, **statistics}
    return {"weight": layer.kernel, "bias": layer.bias} if layer.use_bias else {"weight": layer.kernel}


def _keras_to_torch(pairs: list[tuple[_Part, _Part]], target: nn.Module) -> None:
    import keras
    import torch

    state = {key: tensor for key, tensor in target.state_dict().items() if key.endswith("num_batches_tracked")}
    bias: Any = 0.0  # of a convolution; in all these networks its BatchNorm comes next
    for in_keras, in_torch in pairs:
        arrays = {
            name: np.ones(in_keras.shape) if variable is None else keras.ops.convert_to_numpy(variable)
            for name, variable in _variables(in_keras).items()
        }
        if in_keras.kind == "BatchNorm":
            arrays["running_mean"], bias = arrays["running_mean"] - bias, 0.0
            in_torch.layer.eps = in_keras.layer.epsilon
        elif in_keras.kind == "convolution":
            bias = arrays.pop("bias", 0.0)
        arrays["weight"] = arrays["weight"].transpose(_TORCH_AXES[in_keras.kind])
        state |= {f"{in_torch.name}.{key}": torch.from_numpy(array.astype(np.float32)) for key, array in arrays.items()}
    target.load_state_dict(state)  # strict: every weight is loaded


def _torch_to_keras(pairs: list[tuple[_Part, _Part]]) -> None:
    for in_keras, in_torch in pairs:
        arrays = {name: value.float().cpu().numpy() for name, value in in_torch.layer.state_dict().items()}
        arrays["weight"] = arrays["weight"].transpose(np.argsort(_TORCH_AXES[in_keras.kind]))
        for name, variable in _variables(in_keras).items():
            if variable is not None:
                variable.assign(arrays.get(name, np.zeros(in_keras.shape[0], np.float32)))
            elif np.any(arrays[name] != 1):
                raise ModelError(
                    f"{in_torch.name!r} scales its output, and {in_keras.name!r}, its counterpart, has no gamma. "
                    "Expected weights of 1, as torch_twin(keras_model) sets them."
                )
        if in_keras.kind == "BatchNorm":
            in_keras.layer.epsilon = in_torch.layer.eps
