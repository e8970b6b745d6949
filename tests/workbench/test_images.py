"""The one reader of images: what it refuses, and that every command sees the same pixels."""

from __future__ import annotations

import io
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision import transforms

from sita_adapters.inputs import ENCODINGS
from sita_workbench.commands.image_files import read_image
from sita_workbench.data.images import Fit, ImageError, find_size, read_images, read_rgb
from sita_workbench.models.loaded import LoadedModel
from sita_workbench.serving.decoding import decode

LOADED = LoadedModel("test", None, ENCODINGS["unit"], 20, 1.0)
NOISE = np.random.default_rng(0).integers(0, 256, (20, 20, 3), np.uint8)


def stored(array: Any, form: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    (array if isinstance(array, Image.Image) else Image.fromarray(array)).save(buffer, form, **options)
    return buffer.getvalue()


def test_16_bits_are_scaled_not_clipped() -> None:
    levels = np.arange(400, dtype=np.uint16).reshape(20, 20) * 164
    found = np.asarray(read_rgb(stored(levels)))
    np.testing.assert_allclose(found[..., 0], levels / 257, atol=0.5)
    np.testing.assert_array_equal(found[..., 0], found[..., 2])


@pytest.mark.parametrize("value", [np.float32(0.5), np.int32(70_000), np.int32(200)])
def test_an_unknown_range_is_refused(value: Any) -> None:
    with pytest.raises(ImageError, match="8 or 16 bits per channel; received mode") as caught:
        read_rgb(stored(np.full((4, 4), value), "TIFF"))
    assert caught.value.kind == "depth"


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_white(mode: str) -> None:
    picture = Image.new("RGBA", (4, 4), (200, 0, 0, 255))
    picture.putpixel((0, 0), (0, 0, 0, 0))
    found = np.asarray(read_rgb(stored(picture.quantize(4) if mode == "P" else picture.convert(mode))))
    assert found[0, 0].tolist() == [255, 255, 255]
    assert found[1, 1].max() > 50


def test_postscript_and_pipes_are_no_images_whatever_they_are_called(tmp_path: Path) -> None:
    """Pillow would start Ghostscript for the one, and wait for the other."""
    script, pipe = tmp_path / "photo.png", tmp_path / "pipe.png"
    script.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n")
    os.mkfifo(pipe)
    for path, words in ((script, "received something else"), (pipe, "not a regular file")):
        with pytest.raises(ImageError, match=words):
            read_rgb(path)


@pytest.mark.parametrize("shape", [(1, 5000), (5000, 1), (1, 400_000)])
def test_a_thin_image_takes_little_memory(shape: tuple[int, int]) -> None:
    data = stored(np.zeros(shape, np.uint8))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert decode(data, LoadedModel("test", None, ENCODINGS["unit"], 224), 10**9).shape == (224, 224, 3)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


@pytest.mark.parametrize("shape", [(500, 333), (333, 500), (31, 47), (224, 224), (1000, 90), (20, 1000)])
@pytest.mark.parametrize("crop", [0.875, 0.95, 1.0])
def test_the_center_is_cropped_as_torchvision_does(shape: tuple[int, int], crop: float) -> None:
    picture = Image.fromarray(np.random.default_rng(1).integers(0, 256, (*shape, 3), np.uint8))
    resize = transforms.Resize(round(224 / crop), transforms.InterpolationMode.BICUBIC)
    wanted = np.asarray(transforms.CenterCrop(224)(resize(picture)))
    found = np.asarray(Fit((224, 224), crop).apply(picture))
    np.testing.assert_allclose(found.astype(int), wanted.astype(int), atol=1 if shape == (20, 1000) else 0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_command_reads_the_same_pixels(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "photo.png"
    path.write_bytes(stored(NOISE[:, :12], exif=exif))
    gray = tmp_path / "gray.tif"
    gray.write_bytes(stored(NOISE[:, :12, 0], "TIFF", exif=exif))
    np.testing.assert_array_equal(np.asarray(read_rgb(gray)), np.asarray(read_rgb(gray.read_bytes())))
    assert find_size([gray], Fit()) == np.asarray(read_rgb(gray)).shape[:2]
    found = read_image(path, LOADED)  # predict, score, calibrate, ui
    np.testing.assert_array_equal(found, decode(path.read_bytes(), LOADED, 10_000))  # serve
    np.testing.assert_array_equal(found, read_images([path], Fit((20, 20), 1.0), (20, 20))[0])  # bench
    assert find_size([path], Fit()) == ((20, 12) if orientation < 5 else (12, 20))
    np.testing.assert_array_equal(read_images([path], Fit(), find_size([path], Fit()))[0], np.asarray(read_rgb(path)))


def test_a_model_of_any_size_reads_what_fits_in_memory() -> None:
    any_size = LoadedModel("test", None, ENCODINGS["unit"])
    assert any_size.max_pixels < LOADED.max_pixels
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert any_size.max_pixels * 1024 <= memory
