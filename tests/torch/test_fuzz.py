"""Random networks and images: an answer equals the float64 reference's, or is refused as it should be."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any

import pytest
import random_networks
import row_reference
import torch
from hypothesis import HealthCheck, assume, event, example, given, note, settings
from hypothesis import strategies as st
from random_networks import Spec
from row_reference import Method
from torch import nn

import sita_adapters as sita

pytestmark = pytest.mark.filterwarnings("ignore:.*does not call:sita_adapters.errors.SitaWarning")

FUZZ = settings(
    max_examples=max(1, settings.default.max_examples // 4),
    derandomize=settings.default.max_examples < 1000,  # a short run is the same every time
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@dataclass(frozen=True)
class Images:
    """What a network is given."""

    seed: int = 0
    count: int = 1
    size: tuple[int, int] = (6, 6)
    dtype: torch.dtype = torch.float32
    content: str = "random"
    strides: str = "contiguous"
    not_finite: str = "nothing"
    """What one image of the batch is full of, or has in one pixel."""
    mode: str = "no_grad"


SCALES = {"random": 1.0, "huge": 1e20, "larger": 1e30, "denormal": 1e-41, "small": 1e-6, "offset": 1.0, "flat": 1.0}


def make_images(spec: Spec, images: Images) -> list[torch.Tensor]:
    """Return the arguments of a call: the images, and what goes along with them."""
    random = torch.Generator().manual_seed(images.seed)
    shape = (images.count, *([spec.frames] if spec.frames else []), spec.channels, *images.size)
    values = torch.randn(shape, generator=random, dtype=torch.float64)
    if images.content == "constant":
        values = torch.full(shape, 0.75, dtype=torch.float64)
    elif images.content == "constant huge":
        values = torch.full(shape, 1e20, dtype=torch.float64)
    elif images.content == "zero":
        values = torch.zeros(shape, dtype=torch.float64)
    elif images.content == "one channel is constant":
        values[..., 0, :, :] = 0.25
    elif images.content == "offset":
        values = 100 + values
    elif images.content == "flat":
        values = 0.5 + 1e-5 * values
    else:
        values *= SCALES[images.content]
    if spec.converts:
        first = (values * 60 + 120).clamp(0, 255).to(torch.uint8)
    else:
        first = values.to(images.dtype)
        if images.not_finite != "nothing":
            value = {"n": math.nan, "i": math.inf, "-": -math.inf}[images.not_finite[0]]
            image = first[images.count // 2]
            image.fill_(value) if images.not_finite.endswith("everywhere") else image.view(-1)[:1].fill_(value)
    arguments = [lay_out(first, images.strides)]
    others = {
        "image": lambda: torch.randn(shape, generator=random),
        "smaller image": lambda: torch.randn((*shape[:-2], 2, shape[-1] + 1), generator=random),
        "vector": lambda: torch.randn((images.count, 5), generator=random),
        "mask": lambda: torch.randn((1, *([1] if spec.frames else []), 1, *images.size), generator=random),
    }
    if spec.second != "none":
        other = others[spec.second]()
        arguments.append(other.to(images.dtype))
    return arguments


def lay_out(x: torch.Tensor, strides: str) -> torch.Tensor:
    """Return the same values, stored in another way."""
    if strides == "channels_last" and x.ndim == 4:
        return x.contiguous(memory_format=torch.channels_last)
    if strides == "every second":
        wide = torch.zeros((*x.shape[:-1], 2 * x.shape[-1]), dtype=x.dtype)
        wide[..., ::2] = x
        return wide[..., ::2]
    if strides == "transposed":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if strides == "expanded":
        return x[:1].expand(x.shape)
    return x


def fingerprint(model: nn.Module, made: list[nn.Module]) -> list[Any]:
    """Return everything of a source that must stay as it was."""
    seen: list[Any] = []
    for module in dict.fromkeys(m for part in made for m in part.modules()):
        tensors = {**module._parameters, **module._buffers}
        for name, tensor in tensors.items():
            if tensor is not None:
                raw = tensor.detach().clone().flatten().view(torch.uint8) if tensor.ndim else tensor.detach().reshape(1)
                seen.append((name, id(tensor), tensor._version, tensor.requires_grad, raw.tolist(), str(tensor.dtype)))
        seen.append((id(module), type(module), module.training, sorted(vars(module))))
        for name, value in vars(module).items():
            if "hooks" in name:
                seen.append((name, list(value)))
            elif isinstance(value, int | float | str | list | tuple | dict) and not name.startswith("_"):
                seen.append((name, id(value), repr(value)))
    seen.append(vars(model.helper).copy())
    return seen


def check(spec: Spec, method: Method, images: Images, max_rows: int | None) -> None:
    """Compare an adapted network with the reference."""
    dtype = torch.float32 if spec.converts else images.dtype
    arguments = make_images(spec, images)
    model, made = random_networks.build(spec, dtype)
    with torch.no_grad():
        try:
            random_networks.build(spec, dtype)[0](*arguments)
        except RuntimeError as error:
            note(f"the source fails: {error}")
            assume(False)
    before, generator = fingerprint(model, made), torch.get_rng_state()
    kept = [(argument.clone(), argument._version) for argument in arguments]
    settings_of = {} if method.recipe == "auto" else {"priors": method.priors}
    settings_of |= {"n_views": method.views} if method.views else {}
    if method.recipe.startswith("ops"):
        settings_of["top_k"] = method.top_k
    adapted = sita.adapt(model, method.recipe, max_rows=max_rows, **settings_of)
    mode = {"no_grad": torch.no_grad, "inference": torch.inference_mode}.get(images.mode, contextlib.nullcontext)
    if images.mode == "grad" and not spec.converts:
        arguments = [argument.detach().requires_grad_(place == 0) for place, argument in enumerate(arguments)]
    try:
        with mode():
            if is_refused(spec, method):
                with pytest.raises(sita.SitaError):
                    adapted(*arguments)
                return
            answers = [adapted(*arguments) for _ in range(2)]
    finally:
        assert fingerprint(model, made) == before, "the source changed"
        assert torch.equal(torch.get_rng_state(), generator), "random numbers were drawn"
        for argument, (values, version) in zip(arguments, kept, strict=True):
            assert torch.equal(argument.nan_to_num(), values.nan_to_num()), "the images changed"
            assert images.mode == "grad" or argument._version == version
    first, second = (row_reference.flatten(answer) for answer in answers)
    for place in range(images.count):
        sample = [a[place : place + 1] if len(a) == images.count else a for a in map(torch.Tensor.detach, arguments)]
        if not all(each.isfinite().all() for each in sample):
            event("an image that is not finite")
            continue
        expected = row_reference.expect(spec, dtype, method, sample)
        if expected is None:
            event("out of the range of the dtype")
            continue
        assert list(first) == list(expected)
        for path, value in expected.items():
            for answer in (first, second):
                compare(path, answer[path], value, place, turned=(spec.output, path) in random_networks.TURNED)


def is_refused(spec: Spec, method: Method) -> bool:
    """Whether a network violates the contract, or has a map beside its images that views would have to move."""
    moves = method.views > 0 and spec.second in ("image", "mask")
    holds_source = spec.holder == "lambda over self" and bool(spec.blocks)
    return spec.streams or holds_source or spec.writes not in random_networks.HARMLESS or moves


def compare(path: str, answer: Any, value: Any, place: int, turned: bool) -> None:
    if not isinstance(value, row_reference.Expected):
        assert torch.equal(answer, value) if isinstance(value, torch.Tensor) else answer == value
        return
    row = (answer.movedim(1, 0) if turned else answer)[place].detach()
    assert row.shape == value.value.shape
    distance = value.differs(row)
    uncertain = 1 - value.certain.double().mean()
    event("certain" if uncertain == 0 else "partly uncertain" if uncertain < 1 else "uncertain")
    assert distance <= 1, (
        f"{path or 'the output'} of image {place} is {distance:.3g} tolerances ({value.tolerance:.2g}) away"
    )


def few(options: tuple[str, ...]) -> st.SearchStrategy[str]:
    return st.sampled_from(options)


priors = st.one_of(
    st.just(tuple(0.5 + 0.5 * p / 7 for p in range(8))),
    st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.8, 0.9, 1.0]), min_size=2, max_size=4, unique=True).map(tuple),
)


@st.composite
def methods(draw: st.DrawFn) -> Method:
    recipe = draw(few(("auto", "augbn", "ops", "bn", "ops_shared")))
    views = 0 if recipe in ("auto", "bn") else draw(st.integers(1, 4))
    if recipe == "auto":
        return Method(recipe, (1.0,), 0)
    if recipe in ("augbn", "bn"):
        return Method(recipe, (draw(st.sampled_from([0.0, 0.3, 0.8, 16 / 17, 1.0])),), views)
    chosen = draw(priors)
    return Method(recipe, chosen, views, draw(st.integers(1, len(chosen))))


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    return Spec(
        seed=draw(st.integers(0, 99)),
        channels=draw(st.sampled_from([3, 1, 4, 13])),
        blocks=tuple(draw(st.lists(few(random_networks.BLOCKS), min_size=0, max_size=3))),
        holder=draw(few((*random_networks.HOLDERS[:2] * 3, *random_networks.HOLDERS))),
        frames=draw(st.sampled_from([0, 0, 1, 2, 3])),
        second=draw(few(("none", "none", "image", "smaller image", "vector", "mask"))),
        head=draw(few(("linear", "bn1d", "dense"))),
        output=draw(few(random_networks.OUTPUTS)),
        writes=draw(few((*random_networks.HARMLESS * 3, *random_networks.WRITES))),
        streams=draw(st.sampled_from([False] * 7 + [True])),
        activation=draw(few(("relu", "relu_", "silu", "tanh"))),
        epsilon=draw(st.sampled_from([1e-5, 1e-3])),
        affine=draw(st.booleans()),
        degenerate=draw(st.sampled_from([False, False, True])),
    )


@st.composite
def plain_specs(draw: st.DrawFn) -> Spec:
    """Networks that differ less: it is the images that are odd."""
    return Spec(
        seed=draw(st.integers(0, 99)),
        channels=draw(st.sampled_from([3, 1, 4, 13])),
        blocks=tuple(draw(st.lists(few(("plain", "frozen", "residual", "tokens", "gate")), max_size=2))),
        head=draw(few(("linear", "bn1d", "dense"))),
        converts=draw(st.sampled_from([False, False, False, True])),
        streams=draw(st.sampled_from([False] * 7 + [True])),
        activation=draw(few(("relu", "silu"))),
    )


CONTENTS = (*SCALES, "constant", "constant huge", "zero", "one channel is constant")
NOT_FINITE = (*["nothing"] * 4, "nan everywhere", "nan once", "inf everywhere", "inf once", "-inf once")
SIZES = ((6, 6), (1, 1), (7, 7), (5, 8), (1, 4), (9, 3), (2, 2))


@st.composite
def odd_images(draw: st.DrawFn) -> Images:
    dtype = draw(st.sampled_from([torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16]))
    content = draw(few(CONTENTS))
    assume(dtype is not torch.float16 or content not in ("huge", "larger", "constant huge"))
    return Images(
        seed=draw(st.integers(0, 99)),
        count=draw(st.integers(1, 4)),
        size=draw(st.sampled_from(SIZES)),
        dtype=dtype,
        content=content,
        strides=draw(few(("contiguous", "channels_last", "every second", "transposed", "expanded"))),
        not_finite=draw(few(NOT_FINITE)),
        mode=draw(few(("no_grad", "inference", "grad"))),
    )


plain_images = st.builds(
    Images, seed=st.integers(0, 99), count=st.integers(1, 4), size=st.sampled_from([(6, 6), (5, 8), (4, 4), (1, 1)])
)
room = st.sampled_from([None, None, 6, 12, 40])


@FUZZ
@given(spec=specs(), method=methods(), images=plain_images, max_rows=room)
def test_any_network_answers_as_the_reference(spec: Spec, method: Method, images: Images, max_rows: int | None) -> None:
    check(spec, method, images, max_rows)


@FUZZ
@example(
    spec=Spec(seed=1, blocks=("residual",), head="bn1d"),
    method=Method("ops", tuple(0.5 + 0.5 * p / 7 for p in range(8)), 1, 5),
    images=Images(size=(1, 1), content="larger", mode="grad"),
    max_rows=40,
)
@given(spec=plain_specs(), method=methods(), images=odd_images(), max_rows=room)
def test_any_images_are_answered_as_by_the_reference(
    spec: Spec, method: Method, images: Images, max_rows: int | None
) -> None:
    check(spec, method, images, max_rows)
