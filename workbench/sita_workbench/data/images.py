"""Image files: listed, read, and resized to what a model takes."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from sita_adapters.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""What is decoded. Pillow knows others, some of which start programs (EPS)."""

MAX_PIXELS = 178_000_000
"""The largest image that is decoded, in pixels, unless a caller says otherwise; Pillow's own limit."""

Size: TypeAlias = tuple[int, int]
"""Height and width, in this order."""

_THIN = 16
"""From this ratio of its sides on, an image is thin."""


@dataclass(frozen=True)
class Fit:
    """How an image is resized to (height, width); None leaves it unchanged.

    It is resized (bicubic) to just cover size / crop, and cropped, as torchvision's Resize and CenterCrop do.
    """

    size: Size | None = None
    crop: float = 0.875

    def __post_init__(self) -> None:
        if not 0 < self.crop <= 1:
            raise InputError(f"Expected crop, the share that the center crop keeps, in (0, 1]; received {self.crop!r}.")

    def apply(self, image: Image) -> Image:
        """Return the image at the size."""
        if self.size is None:
            return image
        height, width = self.size
        tall, wide = round(height / self.crop), round(width / self.crop)
        if tall * image.width >= wide * image.height:
            wide = max(wide, int(tall * image.width / image.height))
        else:
            tall = max(tall, int(wide * image.height / image.width))
        from PIL.Image import Resampling

        left, top = round((wide - width) / 2), round((tall - height) / 2)
        if wide * tall <= _THIN * width * height / self.crop**2:
            return image.resize((wide, tall), Resampling.BICUBIC).crop((left, top, left + width, top + height))
        # A thin image would be scaled to gigabytes: crop first. Some pixels differ by 1, as Pillow rounds the box.
        across, down = image.width / wide, image.height / tall
        kept = (left * across, top * down, (left + width) * across, (top + height) * down)
        return image.resize((width, height), Resampling.BICUBIC, box=kept)


def memory_size() -> int:
    """Return the machine's memory in bytes; 8 GB if it does not say."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 8 << 30


def list_images(folder: Path) -> list[str]:
    """Return the names of the image files in a folder, in order; hidden ones are left out."""
    with os.scandir(folder) as entries:
        images = [entry.name for entry in entries if entry.name.lower().endswith(ENDINGS) and entry.is_file()]
    return sorted(name for name in images if not name.startswith("."))


def require_folder(folder: Path, layout: str) -> None:
    """Raise unless this folder exists; `layout` says what should be in it."""
    if not folder.is_dir():
        received = "a file" if folder.exists() else "nothing there"
        raise InputError(f"Expected a folder {folder}; received {received}. The layout is {layout}.")


class ImageError(InputError):
    """An image that cannot be used; `kind` is a word for it: not_an_image, damaged, too_many_pixels or depth."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@contextmanager
def opened(source: Path | bytes, max_pixels: int = MAX_PIXELS) -> Iterator[Image]:
    """Yield the image in a file, or in its bytes; only its header has been read. An error names the file."""
    from PIL import Image, UnidentifiedImageError

    where = "" if isinstance(source, bytes) else f" in {source}"
    if isinstance(source, Path) and source.exists() and not source.is_file():
        raise ImageError("not_an_image", f"Expected an image{where}; it is not a regular file.")  # a pipe would block
    try:
        # A file object, not a path: Pillow maps a path into memory, and then scrambles TIFFs that are turned.
        stream = io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
        with stream, Image.open(stream, formats=FORMATS) as image:
            if image.width * image.height > max_pixels:
                raise _too_many_pixels(where, max_pixels, f"{image.width} × {image.height}")
            yield image
    except InputError:
        raise
    except UnidentifiedImageError as error:
        kinds = ", ".join(FORMATS)
        raise ImageError("not_an_image", f"Expected an image ({kinds}){where}; received something else.") from error
    except Image.DecompressionBombError as error:
        raise _too_many_pixels(where, max_pixels, "more") from error
    # OSError: truncated. SyntaxError, ValueError, EOFError: damaged in some other way. Pillow's plugins raise more.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(".")
        reason = reason if isinstance(source, bytes) else f"{reason}. Try: download the file again, or remove it"
        raise ImageError("damaged", f"Expected an image{where}; it cannot be read: {reason}.") from error


def _too_many_pixels(where: str, max_pixels: int, received: str) -> ImageError:
    expected = f"Expected at most {max_pixels / 1e6:.4g} million pixels{where}"
    remedy = "Try: scale it down, or fix the model's size (--size)."
    return ImageError("too_many_pixels", f"{expected}; received {received}. {remedy}")


def read_rgb(source: Path | bytes, max_pixels: int = MAX_PIXELS) -> Image:
    """Return the image in a file, or in its bytes, as every command sees it.

    It is turned upright (EXIF), laid on white if it is transparent, and 16 bits are scaled to 8.
    """
    from PIL import Image as images
    from PIL import ImageOps

    with opened(source, max_pixels) as image:
        image.load()
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I;16") or (upright.mode == "I" and image.format in ("PNG", "PPM")):
            levels = np.asarray(upright).astype(np.float32) / 257
            return images.fromarray(levels.round().astype(np.uint8)).convert("RGB")
        if upright.mode in ("I", "F"):
            where = "" if isinstance(source, bytes) else f" in {source}"
            raise ImageError(
                "depth",
                f"Expected 8 or 16 bits per channel{where}; received mode {upright.mode}, whose range is unknown. Try: "
                "convert it to 8 bits.",
            )
        if upright.has_transparency_data:
            colors = upright.convert("RGBA")
            return images.alpha_composite(images.new("RGBA", colors.size, "white"), colors).convert("RGB")
        return upright.convert("RGB")


def upright_size(image: Image) -> Size:
    """Return the height and width that an image has when it is turned upright; only its header is read."""
    from PIL import ExifTags

    turn = image.getexif().get(ExifTags.Base.Orientation)
    quarter_turn = turn in (5, 6, 7, 8) and image.format != "TIFF"  # Pillow turns TIFFs itself
    return (image.width, image.height) if quarter_turn else (image.height, image.width)


def find_size(paths: Sequence[Path], fit: Fit) -> Size:
    """Return the size (height, width) that all of these files will have; raise if they differ."""
    if fit.size is not None:
        return fit.size
    sizes = []
    for path in paths:
        with opened(path) as image:
            sizes.append(upright_size(image))
        _check_size(path, sizes[-1], sizes[0])
    return sizes[0]


def read_images(paths: Sequence[Path], fit: Fit, size: Size) -> np.ndarray:
    """Return image files as RGB bytes (N, h, w, 3), all of the size that `find_size` returned."""
    images = np.empty((len(paths), *size, 3), np.uint8)
    for position, path in enumerate(paths):
        image = fit.apply(read_rgb(path))
        _check_size(path, (image.height, image.width), size)
        images[position] = np.asarray(image)
    return images


def _check_size(path: Path, received: Size, expected: Size) -> None:
    if received != expected:
        raise InputError(
            f"Expected images of one size, {expected[1]}×{expected[0]}; received {received[1]}×{received[0]} in "
            f"{path}. Try: --size, which resizes all images."
        )
