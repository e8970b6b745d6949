"""What a worker has to know: the model as text, and the limits. A value, so that a process can be given it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from sita_adapters.recipe import Task

from ..models.loaded import LoadedModel

MAX_WAITING = 64
"""How many requests may wait in a worker; more are told to come back, before their images are read."""

MAX_PIXELS = 50_000_000
"""The largest image, unless the settings say otherwise."""

READ_SECONDS = 30
"""How long a client may take to send an image."""

HEADER_SECONDS = 10
"""How long a client may take to send the headers of a request."""

GRACE_SECONDS = 10
"""How long requests that are being answered may take when the server is told to end."""


@dataclass(frozen=True)
class ServeSettings:
    """What is served, and within which limits.

    - `model` … `providers`: as `load_model` and `open_predictor` take them.
    - `batch`: how many images run at once, at most.
    - `max_bytes`, `max_pixels`: how large an upload, and an image before it is decoded, may be. None: `MAX_PIXELS`, or
      less if the model takes any size.
    - `baseline`: results.json of `sita bench`, which says how many answers adaptation changes on clean images.
    - `threads`: how many a worker computes with.
    """

    model: str
    weights: str | None = None
    recipe: str | None = None
    inputs: str | None = None
    size: int | None = None
    task: Task | None = None
    crop: float | None = None
    names: tuple[str, ...] = ()
    trust: bool = False
    providers: tuple[str, ...] | None = None
    with_source: bool = True
    batch: int = 4
    max_bytes: int = 10_000_000
    max_pixels: int | None = None
    baseline: str | None = None
    threads: int = 1

    def to_json(self) -> str:
        """Return the settings as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ServeSettings:
        """Return the settings that `to_json` wrote."""
        values = json.loads(text)
        providers = None if values["providers"] is None else tuple(values["providers"])
        return cls(**{**values, "names": tuple(values["names"]), "providers": providers})

    def name_of(self, label: int, loaded: LoadedModel, classes: int) -> str | None:
        """Return a class's name, where it is known."""
        names = self.names or loaded.names
        return names[label] if len(names) == classes else None
