"""The same network in two frameworks: Keras' ResNet50, DenseNet121 and InceptionV3 as torchvision models.

    twin = torch_twin(keras_model)       # a torchvision model that computes the Keras model's logits
    model = keras_twin(twin)             # and back
    port_weights(keras_model, twin)      # only the weights, in either direction

The two libraries build these networks differently. A twin compensates for it:

- Keras' ResNet50 is the first version of He et al.: a block's stride is in its first convolution, not in its second.
- Its convolutions have biases, torchvision's have none. BatchNorm absorbs them exactly: mean' = mean − bias.
- The libraries' BatchNorms differ in ε.
- Keras' InceptionV3 has no γ, and its average pooling does not count the padding.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sita_adapters.errors import BackendImportError, ModelError

if TYPE_CHECKING:
    import torch
    from torch import nn


class _Architecture(NamedTuple):
    """What each library calls a network, its image size, and how many convolutions and BatchNorms identify it."""

    keras_name: str
    torch_name: str
    torch_class: str
    size: int
    counts: tuple[int, int]


_ARCHITECTURES = (
    _Architecture("ResNet50", "resnet50", "ResNet", 224, (53, 53)),
    _Architecture("DenseNet121", "densenet121", "DenseNet", 224, (120, 121)),
    _Architecture("InceptionV3", "inception_v3", "Inception3", 299, (94, 94)),
)
_KNOWN = ", ".join(architecture.keras_name for architecture in _ARCHITECTURES)
_EXPECTED = f"expected the same of {_KNOWN}, with as many classes, and the torch model one that torch_twin built."


class _Part(NamedTuple):
    """A layer with weights. Shapes are torch's: (out, in, height, width), (out, in), or a BatchNorm's (channels,)."""

    name: str
    kind: str
    layer: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...] = ()


def torch_twin(keras_model: Any) -> nn.Module:
    """Return the torchvision model, in eval mode, that computes the same as a model of `keras.applications`.

    It takes images (N, C, H, W) instead of (N, H, W, C). It returns logits, whether or not the Keras model ends in a
    softmax.

    Args:
        keras_model: ResNet50, DenseNet121 or InceptionV3 with its classifier.

    Returns:
        The torchvision model with the same weights.

    Raises:
        ModelError: The model is not one of these.
        BackendImportError: torchvision cannot be imported.

    Example:
        >>> keras_model = keras.applications.ResNet50(weights=None)
        >>> twin = torch_twin(keras_model)
        >>> twin(torch.rand(1, 3, 224, 224)).shape
        torch.Size([1, 1000])
    """
    parts = _keras_parts(keras_model)
    architecture = _architecture(parts, keras_model)
    extra = {"aux_logits": False, "init_weights": False} if architecture.torch_class == "Inception3" else {}
    make = getattr(_torchvision_models(), architecture.torch_name)
    twin: nn.Module = make(weights=None, num_classes=parts[-1].shape[0], **extra)
    if architecture.torch_class == "ResNet":
        _move_strides(twin)
    for pool in _average_pooled(twin):
        pool.register_forward_pre_hook(_leave_padding_out)
    port_weights(keras_model, twin)
    return twin.eval()


def keras_twin(torch_model: nn.Module, *, size: int | None = None, activation: str | None = "softmax") -> Any:
    """Return the model of `keras.applications` that computes the same as a model of `torch_twin`.

    Args:
        torch_model: A model that `torch_twin` returned.
        size: The height and width of its images; None: the architecture's default.
        activation: The last activation; None: the model returns logits.

    Returns:
        The Keras model with the same weights.

    Raises:
        ModelError: The model is not one that `torch_twin` returns.

    Example:
        >>> model = keras_twin(torch_twin(keras_model), activation=None)
    """
    parts = _torch_parts(torch_model)
    architecture = _architecture(parts, torch_model)
    import keras

    size = architecture.size if size is None else size
    model = getattr(keras.applications, architecture.keras_name)(
        weights=None, input_shape=(size, size, 3), classes=parts[-1].shape[0], classifier_activation=activation
    )
    port_weights(torch_model, model)
    return model


def port_weights(source: Any, target: Any) -> None:
    """Copy the weights and ε of a Keras model to its torchvision twin, or of the twin to a Keras model.

    Everything is checked before anything is written: layers are matched one by one, in the order in which they are
    called, by kind, shape and stride.

    Args:
        source: The model to copy from.
        target: The model to copy to, of the other framework.

    Raises:
        ModelError: The two models do not correspond.

    Example:
        >>> port_weights(keras_model, twin)
    """
    if _is_keras(source) == _is_keras(target):
        raise ModelError(
            "Expected a Keras model and its torchvision twin, in either order; "
            f"received {type(source).__name__} and {type(target).__name__}."
        )
    if _is_keras(source):
        _keras_to_torch(_matched(source, target), target)
    else:
        _torch_to_keras(_matched(target, source), target)


def _is_keras(model: Any) -> bool:
    # On Keras' torch backend, its models are torch modules too. Whoever has a Keras model has imported Keras.
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(model, keras.Model)


def _architecture(parts: list[_Part], model: Any) -> _Architecture:
    kinds = [part.kind for part in parts]
    counts = [kinds.count(kind) for kind in ("convolution", "BatchNorm", "dense")]
    for architecture in _ARCHITECTURES:
        if counts == [*architecture.counts, 1]:
            return architecture
    raise ModelError(
        f"Expected one of {_KNOWN}, with its classifier (include_top=True); received {type(model).__name__} with "
        f"{counts[0]} convolutions, {counts[1]} BatchNorms and {counts[2]} dense layers."
    )


def _matched(keras_model: Any, torch_model: Any) -> list[tuple[_Part, _Part]]:
    """Return the corresponding layers of the two models."""
    in_keras, in_torch = _keras_parts(keras_model), _torch_parts(torch_model)
    for one, other in zip_longest(in_keras, in_torch):
        if one is None or other is None:
            raise ModelError(f"{(one or other).name!r} has no counterpart: {_EXPECTED}")
        for what in ("kind", "shape", "stride"):
            if getattr(one, what) != getattr(other, what):
                raise ModelError(
                    f"{one.name!r} has the {what} {getattr(one, what)}, {other.name!r}, its counterpart, "
                    f"{getattr(other, what)}: {_EXPECTED}"
                )
    return list(zip(in_keras, in_torch, strict=True))


def _keras_parts(model: Any) -> list[_Part]:
    """Return the layers with weights in the order in which branches are joined, whatever their names."""
    if not _is_keras(model):
        raise ModelError(f"Expected a Keras model, one of {_KNOWN}; received {type(model).__name__}.")
    if len(getattr(model, "outputs", None) or ()) != 1:
        raise ModelError(f"Expected a functional Keras model with one output; received {type(model).__name__}.")
    return [_keras_part(layer) for layer in _in_call_order(model) if getattr(layer, "weights", None)]


def _in_call_order(model: Any) -> Iterator[Any]:
    """Yield every layer after those that it takes its inputs from, joined branches in the order of joining.

    That is the order of the calls, and the one in which torchvision registers its modules. `model.layers` is sorted by
    depth, which interleaves branches, and the names of InceptionV3's layers count on from model to model.
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
    import keras

    name, kind = f"Keras: {layer.name}", type(layer)
    if kind is keras.layers.Conv2D:
        height, width, inner, outer = layer.kernel.shape
        return _Part(name, "convolution", layer, (outer, inner, height, width), tuple(layer.strides))
    if kind is keras.layers.BatchNormalization:
        return _Part(name, "BatchNorm", layer, tuple(layer.moving_mean.shape))
    if kind is keras.layers.Dense:
        return _Part(name, "dense", layer, tuple(reversed(layer.kernel.shape)))
    raise ModelError(
        f"Expected the layers of {_KNOWN}; {layer.name!r} is a {type(layer).__name__} with weights. "
        "Try: port the plain model, before it is adapted or built into another."
    )


def _torchvision_models() -> Any:
    try:
        return import_module("torchvision.models")
    except (ImportError, RuntimeError) as error:
        from .torchvision_compat import torchvision_hint

        raise BackendImportError(
            f"torchvision cannot be imported: {error}.{torchvision_hint(error) or ' Try: pip install torchvision.'}"
        ) from error


def _torch_parts(model: Any) -> list[_Part]:
    """Return the modules with weights in the order in which Keras joins the branches."""
    models = _torchvision_models()
    classes = tuple(getattr(models, architecture.torch_class) for architecture in _ARCHITECTURES)
    if not isinstance(model, classes):
        raise ModelError(f"Expected torchvision's {_KNOWN}; received {type(model).__name__}.")
    if getattr(model, "transform_input", False):
        raise ModelError("Expected an Inception3 with transform_input=False: Keras' takes its images as they are.")
    for pool in _average_pooled(model):
        if _leave_padding_out not in pool._forward_pre_hooks.values():
            raise ModelError(
                f"The average pooling of this Inception3 counts the padding, which Keras' does not: {_EXPECTED}"
            )
    return [_torch_part(name, module) for name, module in _weighted(model)]


def _weighted(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    # Keras joins [shortcut, residual]; torchvision registers a block's shortcut, `downsample`, last.
    for name, child in sorted(module.named_children(), key=lambda child: child[0] != "downsample"):
        yield from _weighted(child, f"{prefix}{name}.")
    if hasattr(module, "weight"):
        yield prefix[:-1], module


def _torch_part(name: str, module: Any) -> _Part:
    from torch import nn

    shape = tuple(module.weight.shape)
    if isinstance(module, nn.Conv2d):
        return _Part(f"torch: {name}", "convolution", module, shape, tuple(module.stride))
    return _Part(f"torch: {name}", "dense" if isinstance(module, nn.Linear) else "BatchNorm", module, shape)


def _move_strides(resnet: nn.Module) -> None:
    """Stride in a block's first convolution, as in the first version of ResNet."""
    blocks: list[Any] = [module for module in resnet.modules() if hasattr(module, "conv3")]
    for block in blocks:
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride


def _average_pooled(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that Inception3 hands an average-pooled feature map."""
    return (module for name, module in model.named_modules() if name.endswith(".branch_pool"))


def _leave_padding_out(module: nn.Module, args: tuple[torch.Tensor]) -> torch.Tensor:
    """Turn a mean over 3×3 positions that counts the padding into one that does not.

    Runs before the module that Inception3 calls on F.avg_pool2d(x, 3, 1, 1): the mean of ones is the share of
    positions inside the image.
    """
    import torch

    pooled = args[0]
    there = torch.ones_like(pooled[:1, :1])
    return pooled / torch.nn.functional.avg_pool2d(there, kernel_size=3, stride=1, padding=1)


_TORCH_AXES = {"convolution": (3, 2, 0, 1), "dense": (1, 0), "BatchNorm": (0,)}
"""Where the axes of a Keras kernel are in torch."""


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
    bias: Any = 0.0
    for in_keras, in_torch in pairs:
        arrays = {
            name: np.ones(in_keras.shape) if variable is None else keras.ops.convert_to_numpy(variable)
            for name, variable in _variables(in_keras).items()
        }
        if in_keras.kind == "BatchNorm":
            arrays["running_mean"], bias = arrays["running_mean"] - bias, 0.0
        elif np.any(bias):
            raise ModelError(f"Expected a BatchNorm after every convolution with a bias; {in_keras.name!r} is not one.")
        elif in_keras.kind == "convolution":
            bias = arrays.pop("bias", 0.0)
        arrays["weight"] = arrays["weight"].transpose(_TORCH_AXES[in_keras.kind])
        path = in_torch.name.removeprefix("torch: ")
        state |= {f"{path}.{name}": torch.from_numpy(array.astype(np.float32)) for name, array in arrays.items()}
    # Strict: every weight is loaded. An adapted model refuses, because it shares its source's weights.
    target.load_state_dict(state)
    for in_keras, in_torch in pairs:
        if in_keras.kind == "BatchNorm":
            in_torch.layer.eps = in_keras.layer.epsilon


def _torch_to_keras(pairs: list[tuple[_Part, _Part]], target: Any) -> None:
    assignments = []
    for in_keras, in_torch in pairs:
        arrays = {name: value.float().cpu().numpy() for name, value in in_torch.layer.state_dict().items()}
        arrays["weight"] = arrays["weight"].transpose(np.argsort(_TORCH_AXES[in_keras.kind]))
        for name, variable in _variables(in_keras).items():
            if variable is not None:
                assignments.append((variable, arrays.get(name, np.zeros(in_keras.shape[0], np.float32))))
            elif np.any(arrays[name] != 1):
                raise ModelError(
                    f"{in_torch.name!r} scales its output, and {in_keras.name!r}, its counterpart, has no gamma. "
                    "Expected weights of 1, as torch_twin(keras_model) sets them."
                )
    for variable, array in assignments:
        variable.assign(array)
    for in_keras, in_torch in pairs:
        if in_keras.kind == "BatchNorm":
            in_keras.layer.epsilon = in_torch.layer.eps
    target.predict_function = None  # a compiled one would keep the old ε
