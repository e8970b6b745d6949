"""From an upload to pixels, within limits. Whatever is wrong with an upload is the client's error, told in one line.

Nothing is decoded before its size is known: a picture of a few kilobytes can say that it is 100,000 pixels wide.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ..data.images import ImageError, read_rgb

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..models.loaded import LoadedModel

FIELDS = ("image", "file")
"""The names of a form's field that holds the image; where there is no such field, the first file does."""

_FORM = 1 << 16
"""How many bytes a form may have beside its image."""

_STATUS = {"not_an_image": 415, "depth": 415, "damaged": 400, "too_many_pixels": 413}
"""The HTTP status for each kind of `ImageError`."""

_PATIENCE = 4
"""How many times the largest body is read, and dropped, before the connection is closed."""


class UploadError(Exception):
    """An upload that cannot be answered: an HTTP status, a word for the metrics, and a line for the client."""

    def __init__(self, status: int, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.outcome, self.reason = status, outcome, reason


async def read_upload(request: Request, max_bytes: int) -> bytes:
    """Return the image's bytes from the body of a request: the body itself, or a file in a form."""
    from starlette.requests import ClientDisconnect

    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    form = kind == "multipart/form-data"
    if not form and kind and kind != "application/octet-stream" and not kind.startswith("image/"):
        raise UploadError(
            415, "wrong_type", f"Expected image/… or application/octet-stream, or multipart/form-data; received {kind}."
        )
    try:
        body = await _read_body(request, max_bytes + (_FORM if form else 0), max_bytes)
    except ClientDisconnect as error:
        raise UploadError(400, "disconnected", "Expected a whole body; the client has gone.") from error
    data = await _file_of_form(request, body) if form else body
    if len(data) > max_bytes:
        _refuse_size(max_bytes)
    if not data:
        raise UploadError(400, "empty", "Expected an image; received nothing.")
    return data


async def _read_body(request: Request, most: int, max_bytes: int) -> bytes:
    """Return the body; keep nothing of one that is larger than what is allowed, whatever its header says.

    A client reads no answer while it sends. So the rest of a body that is somewhat too large is taken, and dropped.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > _PATIENCE * most:
        _refuse_size(max_bytes)
    parts: list[bytes] = []
    total = 0
    async for part in request.stream():
        total += len(part)
        if total > _PATIENCE * most:
            break
        if total > most:
            parts.clear()
        else:
            parts.append(part)
    if total > most:
        _refuse_size(max_bytes)
    return b"".join(parts)


def _refuse_size(max_bytes: int) -> NoReturn:
    raise UploadError(413, "too_large", f"Expected at most {max_bytes / 1e6:g} MB (--max-mb); received more.")


async def _file_of_form(request: Request, body: bytes) -> bytes:
    from starlette.datastructures import UploadFile
    from starlette.formparsers import MultiPartException, MultiPartParser

    async def stream() -> AsyncIterator[bytes]:
        yield body

    parser = MultiPartParser(request.headers, stream(), max_files=8, max_fields=8)  # type: ignore[arg-type]
    parser.spool_max_size = len(body) + 1  # an image is not to be written to a disk
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        reason = f"Expected a form with an image in it; it cannot be read: {_line(error)}"
        raise UploadError(400, "bad_form", reason) from error
    try:
        files = {name: value for name, value in form.multi_items() if isinstance(value, UploadFile)}
        chosen = next((files[name] for name in FIELDS if name in files), next(iter(files.values()), None))
        if chosen is None:
            raise UploadError(400, "bad_form", f"Expected a file in the form, as {' or '.join(FIELDS)}; received none.")
        return await chosen.read()
    finally:
        await form.close()


def decode(data: bytes, loaded: LoadedModel, max_pixels: int) -> np.ndarray:
    """Return an image in bytes (h, w, 3), at the size that the model takes."""
    try:
        return loaded.fit(read_rgb(data, max_pixels))
    except ImageError as error:
        raise UploadError(_STATUS[error.kind], error.kind, str(error)) from error


def _line(error: Exception) -> str:
    """Return the first line of an error."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
