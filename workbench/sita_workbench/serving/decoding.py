"""From an upload to pixels, within limits. A bad upload raises an ImageError: one line for the client.

Nothing is decoded before its size is known: an image of a few kilobytes can claim to be 100,000 pixels wide.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from ..data.images import ImageError, read_rgb
from ..models.loaded import LoadedModel

STATUS = {
    "incomplete": 408,
    "too_large": 413,
    "too_many_pixels": 413,
    "not_an_image": 415,
    "depth": 415,
    "busy": 503,
}
"""The HTTP status for each kind of `ImageError`; for others it is 400."""

READ_SECONDS = 30
"""How long a client may take to send an image."""

_PATIENCE = 4
"""A body of up to this many times the limit is read to its end and dropped. Then the connection is closed."""


async def read_upload(request: Request, max_bytes: int) -> bytes:
    """Return the image's bytes from a request: its body, or the file in a form."""
    try:
        data = await asyncio.wait_for(_read_body(request, max_bytes), READ_SECONDS)
    except (ClientDisconnect, asyncio.TimeoutError) as error:
        reason = f"Expected the whole image within {READ_SECONDS} s; received a part of it."
        raise ImageError("incomplete", reason) from error
    if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        data = await _file_of_form(request, data)
    if not data:
        raise ImageError("empty", "Expected an image; received nothing.")
    return data


async def _read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body; raise if it is too large, whatever its header says.

    A client reads no answer while it sends. Therefore the server reads a body to its end if it is only slightly too
    large.
    """
    body, total = bytearray(), 0
    async for part in request.stream():
        total += len(part)
        if total <= max_bytes:
            body += part
        elif total > _PATIENCE * max_bytes:
            break
    if total > max_bytes:
        raise ImageError("too_large", f"Expected at most {max_bytes / 1e6:g} MB (--max-mb); received more.")
    return bytes(body)


async def _file_of_form(request: Request, body: bytes) -> bytes:
    async def stream() -> AsyncIterator[bytes]:
        yield body

    parser = MultiPartParser(request.headers, stream(), max_files=1, max_fields=8)  # type: ignore[arg-type]
    parser.spool_max_size = len(body) + 1  # an image is never written to a disk
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise ImageError("bad_form", f"Expected a form with one image; it cannot be read: {error}") from error
    files = [value for value in form.values() if isinstance(value, UploadFile)]
    if not files:
        raise ImageError("bad_form", "Expected a file in the form, as image; received none.")
    return await files[0].read()


def decode(data: bytes, loaded: LoadedModel, max_pixels: int) -> np.ndarray:
    """Return an image in bytes (h, w, 3), at the size that the model takes."""
    return loaded.fit(read_rgb(data, max_pixels))
