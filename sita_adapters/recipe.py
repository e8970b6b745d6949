"""Recipe: what to compute. Every setting of the method is a field of it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from numbers import Real
from typing import Any, Literal, TypeAlias, cast

from .errors import RecipeError, expect_integer
from .shift import ByShift
from .views import PRESETS, Augment, is_random, listed_views, resolve_augment

Prior: TypeAlias = float | ByShift
"""λ, or a rule that sets it."""

PAPER_PRIORS = tuple(0.5 + 0.5 * p / 7 for p in range(8))
"""The eight priors of OPS: evenly spaced from 0.5 to 1."""

_DEFAULT_VIEWS = 2
_DEFAULT_TOP_K = 3
_DEFAULT_TOP_K_SHARED = 5
"""The paper keeps 3. With shared views, two more voters make up for what the priors lose (docs/results.md)."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one image is adapted to. Immutable, and checked when it is made.

    Attributes:
        priors: λ, the weight of the source's statistics: 1 is the source model, 0 the test image alone. With
            several numbers, the image runs under each, and the most confident answers decide (OPS). A rule, `ByShift`,
            sets λ in every layer: alone, or together with 1.
        n_views: Number of augmented views that contribute statistics. None: as many as `augment` lists; 2 of a preset
            or of random views.
        augment: "lossless" (flips and quarter turns, in a fixed order), "paper" or "paper_segmentation" (the paper's
            random sets), names (`sita_adapters.views.NAMES`), or your own functions of a batch of images: one, or a
            sequence with one for each view.
        shared_views: Run the views once, under the lowest prior, for all priors.
        candidates: The outputs that may answer: "priors", the image under each prior; "views", the views as well
            (test-time augmentation).
        combine: How several candidates make one answer. "vote": the majority of the most confident; "mean": the mean
            of the probabilities; "mix": a weighted mean of the source's and the adapted output, by the measured shift.
        top_k: Number of candidates, those of lowest entropy, that decide. None: 3 of a vote (5 with shared views), all
            of a mean.
        share: "image", or "batch": all images of a call share their statistics, and an answer then depends on the
            other images of its batch.
        seed: Seed of random views. The same image and seed give the same answer.
        resample: Draw new views for every image, from the seed and its content, as the paper does. Otherwise random
            views are drawn once. It cannot be compiled or exported.
        name: Name in reports.

    Example:
        >>> print(sita.Recipe(priors=0.8, n_views=2))
        custom: λ = 0.8; 2 views, lossless
    """

    priors: Prior | Sequence[Prior] = PAPER_PRIORS
    n_views: int | None = None
    augment: Augment = "lossless"
    shared_views: bool = False
    candidates: Literal["priors", "views"] = "priors"
    combine: Literal["vote", "mean", "mix"] = "vote"
    top_k: int | None = None
    share: Literal["image", "batch"] = "image"
    seed: int = 0
    resample: bool = False
    name: str = "custom"

    def __post_init__(self) -> None:
        object.__setattr__(self, "priors", _resolve_priors(self.priors))
        expect_one_of("candidates", self.candidates, ("priors", "views"))
        expect_one_of("combine", self.combine, ("vote", "mean", "mix"))
        expect_one_of("share", self.share, ("image", "batch"))
        for field, kind in (("shared_views", bool), ("resample", bool), ("name", str)):
            if not isinstance(getattr(self, field), kind):
                raise RecipeError(f"{field}: expected a {kind.__name__}; received {getattr(self, field)!r:.80}.")
        for field, least in (("n_views", 0), ("seed", 0), ("top_k", 1)):
            if getattr(self, field) is not None or field == "seed":
                object.__setattr__(self, field, expect_integer(field, getattr(self, field), least, RecipeError))
        object.__setattr__(self, "augment", resolve_augment(self.augment, self.n_views))
        if message := self._contradiction():
            raise RecipeError(message)

    def _contradiction(self) -> str | None:
        """Return the message if fields contradict each other."""
        priors = ", ".join(map(prior_text, self.prior_values))
        if self.resample and not (self.view_count and is_random(self.augment)):
            return (
                f"resample: nothing in augment={self.augment!r} with {self.view_count} views is random. "
                "Try: augment='paper', or leave resample out."
            )
        if (self.shared_views or self.candidates == "views") and self.view_count == 0:
            return "n_views: shared_views=True and candidates='views' need at least one view; received 0."
        if self.shared_views and (self.candidates == "views" or self.rule):
            return (
                "shared_views: expected candidates='priors' and priors that are numbers, since shared views run once, "
                f"under the lowest prior; received {self.candidates!r} and {priors}. Try: leave shared_views out."
            )
        if self.top_k is not None and (self.top_k > self.candidate_count or self.combine == "mix"):
            return (
                f"top_k: expected at most {self.candidate_count}, the number of candidates, and none with "
                f"combine='mix'; received {self.top_k}. Try: leave top_k out."
            )
        mixable = self.candidates == "priors" and self.rule is not None and self.has_source
        if self.combine == "mix" and not mixable:
            return (
                "combine: 'mix' expects priors=(1, ByShift(…)) and candidates='priors'; received "
                f"{priors} and {self.candidates!r}. Try: combine='vote', or 'bn' with one number."
            )
        return None

    @property
    def prior_values(self) -> tuple[Prior, ...]:
        """The priors as a tuple."""
        return cast("tuple[Prior, ...]", self.priors)

    @property
    def rule(self) -> ByShift | None:
        """The prior that is a rule."""
        return next((prior for prior in self.prior_values if isinstance(prior, ByShift)), None)

    @property
    def has_source(self) -> bool:
        """Whether the source model, λ = 1, is a candidate."""
        return 1.0 in self.prior_values

    @property
    def view_count(self) -> int:
        """Number of views of an image whose shape allows them all."""
        if self.n_views is not None:
            return self.n_views
        listed = listed_views(self.augment)
        return _DEFAULT_VIEWS if listed is None else listed

    @property
    def candidate_count(self) -> int:
        """Number of outputs that the answer is made of."""
        return len(self.prior_values) * (1 + self.view_count if self.candidates == "views" else 1)

    @property
    def effective_top_k(self) -> int:
        """Number of candidates that decide."""
        if self.top_k is not None:
            return self.top_k
        if self.combine != "vote":
            return self.candidate_count
        return min(_DEFAULT_TOP_K_SHARED if self.shared_views else _DEFAULT_TOP_K, self.candidate_count)

    def to_json(self) -> str:
        """Return the recipe as text for `from_json`, in any framework. Functions cannot be stored."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["priors"] = [{"by_shift": asdict(p)} if isinstance(p, ByShift) else p for p in self.prior_values]
        try:
            return json.dumps(values, ensure_ascii=False)
        except TypeError:
            raise RecipeError(f"augment: functions cannot be stored; received {self.augment!r}. Try: names.") from None

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """Return the recipe that `to_json` stored."""
        try:
            values = json.loads(text)
            stored = values.get("priors", PAPER_PRIORS)
            listed = stored if isinstance(stored, list | tuple) else [stored]
            values["priors"] = [ByShift(**p["by_shift"]) if isinstance(p, dict) else p for p in listed]
            return cls(**values)
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            if isinstance(error, RecipeError):
                raise
            raise RecipeError(
                f"Expected a recipe that Recipe.to_json of this version stored; received {text!r:.200} ({error})."
            ) from error

    def __str__(self) -> str:
        priors = ", ".join(map(prior_text, self.prior_values))
        parts = [f"λ {priors}" if self.rule else f"λ = {priors}"]
        if self.view_count:
            source = f", {self.augment}" if isinstance(self.augment, str) and self.augment in PRESETS else ""
            shared = ", shared by all priors" if self.shared_views else ""
            drawn = ", drawn for every image" if self.resample else ""
            parts.append(f"{self.view_count} {'view' if self.view_count == 1 else 'views'}{source}{drawn}{shared}")
        if self.share == "batch":
            parts.append("statistics of the whole batch")
        if self.candidate_count > 1:
            most = self.effective_top_k
            parts.append(
                self.combine if most == self.candidate_count else f"{self.combine} of the {most} most confident"
            )
        return f"{self.name}: {'; '.join(parts)}"


def prior_text(prior: Prior) -> str:
    """Return λ, or its rule, for a reader."""
    return str(prior) if isinstance(prior, ByShift) else f"{prior:.3g}"


def expect_one_of(field: str, value: Any, allowed: Sequence[str]) -> None:
    """Raise a RecipeError unless the value is one of these strings."""
    if not isinstance(value, str) or value not in allowed:
        raise RecipeError(f"{field}: expected {' or '.join(map(repr, allowed))}; received {value!r}.")


def _resolve_priors(priors: Any) -> tuple[Prior, ...]:
    listed = priors.tolist() if hasattr(priors, "tolist") else priors
    values: tuple[Prior, ...]
    try:
        each = [listed] if isinstance(listed, Real | ByShift) else [] if isinstance(listed, str) else list(listed)
        values = tuple(value if isinstance(value, ByShift) else float(value) for value in each)
    except (TypeError, ValueError):
        values = ()
    if not values or not all(isinstance(p, ByShift) or (math.isfinite(p) and 0.0 <= p <= 1.0) for p in values):
        raise RecipeError(
            "priors: expected one or more numbers from 0 (the test image alone) to 1 (the source model), or a rule "
            f"(ByShift); received {priors!r}."
        )
    others = [p for p in values if p != 1.0]
    if len(others) > 1 and any(isinstance(p, ByShift) for p in others):
        raise RecipeError(f"priors: a rule can only be combined with 1, since it sets λ itself; received {priors!r}.")
    if len(set(values)) < len(values):
        raise RecipeError(f"priors: expected each number once; received {priors!r}.")
    return values
