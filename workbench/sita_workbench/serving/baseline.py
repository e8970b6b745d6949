"""What a recipe changes on clean images, from the results of `sita bench`: what the gauge of shift is held against."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sita_adapters.errors import InputError


def read_baseline(path: Path, recipe: str) -> float:
    """Return the share of answers that a recipe changed on clean images, from the results of `sita bench`."""
    try:
        methods: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["methods"]
        shares = {method["recipe"]: (method.get("changed") or {}).get("clean") for method in methods}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"--baseline: expected results.json of sita bench; {path} cannot be read: {error!r}."
        ) from error
    if shares.get(recipe) is None:
        known = [name for name, share in shares.items() if share is not None]
        raise InputError(
            f"--baseline: expected results on clean images for {recipe!r}; {path} has "
            f"{'; '.join(known) or 'no such results'}. Try: sita bench --corrupt clean,… with the same recipe."
        )
    return float(shares[recipe])  # type: ignore[arg-type]
