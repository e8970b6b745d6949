"""Recipe: what to compute, the only place where a setting of the method is defined, and the recipes by name."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from .errors import RecipeError, suggestion
from .shift import ByShift
from .views import PRESETS, Augment, check_augment, is_random, listed_views, make_views

Prior: TypeAlias = float | ByShift
"""λ, or a rule that sets it."""

PAPER_PRIORS = tuple(0.5 + 0.5 * p / 7 for p in range(8))
"""The eight priors of OPS: evenly spaced from 0.5 to 1."""

_SETTINGS = ("task", "inputs", "scores", "output", "layers", "max_rows")
"""What `adapt` takes beside a recipe's fields."""

_SAMPLE = 256
"""So many places of a layer's features are enough for its moments (docs/study.md)."""

_DEFAULT_VIEWS = 2
_DEFAULT_KEPT = 3
_DEFAULT_KEPT_SHARED = 5
"""The paper keeps 3. Where the views are shared, more voters make up for what the priors lose (docs/results.md)."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one image is adapted to. Frozen, and checked when it is made.

    - `priors`: λ, the weight of the source's statistics: 1 is the source model, 0 the test image alone. With
      several, every one is run and the most certain answers decide (OPS). Or a rule, `ByShift`, by which every layer
      sets it: alone, or beside 1.
    - `n_views`: how many augmented views lend their statistics; None: as many as `augment` lists, 2 of a preset or
      of random views.
    - `augment`: "lossless" (flips and quarter turns, in a fixed order), "paper" and "paper_segmentation" (the paper's
      random sets), one or more names (`sita_adapters.views.NAMES`), or callables of your own on a batch of images,
      which treat every image by itself. In a sequence every entry is a view; an entry that is itself a
      sequence is applied step by step.
    - `shared_views`: the views run once, under the lowest prior, and serve all priors.
    - `candidates`: which outputs the answer is made of: "priors", the image under each prior; "views", the views
      as well (test-time augmentation).
    - `top_k`: how many candidates, those of lowest entropy, decide; None: 3 of a vote (5 where the views are shared),
      all of a mean.
    - `combine`: "vote", the majority's label; "mean", the mean of the probabilities; or weights for it, one for each
      candidate.
    - `share`: "image", or "batch": all images of a call share their statistics, each of B images weighing ½B and each
      of its n views ½nB. An answer then depends on the other images of its batch.
    - `places`: take the moments of a layer's features from about so many of their places, whole lines at even
      distances; None: from all of them, as the paper does.
    - `seed`: draws what is random in the views. The same image and seed give the same answer.
    - `resample`: draw views for every image, by the seed and what is in the image, as the paper does; else random views
      are drawn once and are the same for all. It cannot be compiled or exported.
    - `name`: what reports call it.
    """

    priors: Prior | Sequence[Prior] = PAPER_PRIORS
    n_views: int | None = None
    augment: Augment = "lossless"
    shared_views: bool = False
    candidates: Literal["priors", "views"] = "priors"
    top_k: int | None = None
    combine: Literal["vote", "mean"] | Sequence[float] = "vote"
    share: Literal["image", "batch"] = "image"
    places: int | None = None
    seed: int = 0
    resample: bool = False
    name: str = "custom"

    def __post_init__(self) -> None:
        object.__setattr__(self, "priors", _read_priors(self.priors))
        object.__setattr__(self, "augment", _freeze(self.augment))
        _expect_one_of("candidates", self.candidates, ("priors", "views"))
        object.__setattr__(self, "combine", _read_combine(self.combine))
        _expect_one_of("share", self.share, ("image", "batch"))
        _expect_bool("shared_views", self.shared_views)
        _expect_bool("resample", self.resample)
        if self.n_views is not None:
            object.__setattr__(self, "n_views", _read_whole("n_views", self.n_views, 0))
        if self.places is not None:
            object.__setattr__(self, "places", _read_whole("places", self.places, 16))
        object.__setattr__(self, "seed", _read_whole("seed", self.seed, 0))
        check_augment(self.augment, self.n_views)
        if self.top_k is not None:
            object.__setattr__(self, "top_k", _read_whole("top_k", self.top_k, 1))
            if self.top_k > self.candidate_count:
                raise RecipeError(
                    f"top_k: expected at most the number of candidates, {self.candidate_count}; "
                    f"received {self.top_k}. Keep fewer, or give more priors."
                )
        if isinstance(self.combine, tuple):
            _check_weights(self)
        if self.resample and not (self.view_count and is_random(self.augment)):
            raise RecipeError(
                f"resample: nothing in augment={self.augment!r} with {self.view_count} views is random, so that "
                "resample=True would do nothing. Remedy: augment='paper', or leave resample out."
            )
        if self.shared_views and self.candidates == "views":
            raise RecipeError(
                "shared_views: views that are run once for all priors cannot be candidates as well; received "
                "shared_views=True with candidates='views'. Choose one."
            )
        if self.shared_views and self.rules:
            raise RecipeError(
                "shared_views: views that are run once, under the lowest prior, need priors that are numbers; received "
                f"{self.rules[0]}. Remedy: leave shared_views out, or give numbers."
            )
        for field, needs in (("shared_views", self.shared_views), ("candidates", self.candidates == "views")):
            if needs and self.view_count == 0:
                raise RecipeError(f"n_views: {field}={getattr(self, field)!r} needs at least one view; received 0.")

    @property
    def lambdas(self) -> tuple[Prior, ...]:
        """The priors as a tuple, however they were given."""
        assert isinstance(self.priors, tuple)
        return self.priors

    @property
    def rules(self) -> tuple[ByShift, ...]:
        """Those of the priors that are rules."""
        return tuple(prior for prior in self.lambdas if isinstance(prior, ByShift))

    @property
    def view_count(self) -> int:
        """How many views an image has that admits them all."""
        if self.n_views is not None:
            return self.n_views
        listed = listed_views(self.augment)
        return _DEFAULT_VIEWS if listed is None else listed

    @property
    def candidate_count(self) -> int:
        """How many outputs the answer is made of."""
        return len(self.lambdas) * (1 + self.view_count if self.candidates == "views" else 1)

    @property
    def kept(self) -> int:
        """How many candidates decide."""
        if self.top_k is not None:
            return self.top_k
        if self.combine != "vote":
            return self.candidate_count
        return min(_DEFAULT_KEPT_SHARED if self.shared_views else _DEFAULT_KEPT, self.candidate_count)

    def to_json(self) -> str:
        """Return the recipe as text, for `from_json`, in any framework. Functions of your own cannot be stored."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if not _is_plain(self.augment):
            raise RecipeError(
                f"augment: functions cannot be stored as JSON; received {self.augment!r}. Remedy: names of views."
            )
        values["priors"] = [
            {"by_shift": asdict(prior)} if isinstance(prior, ByShift) else prior for prior in self.lambdas
        ]
        return json.dumps(values, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """Return the recipe that `to_json` stored."""
        try:
            values = json.loads(text)
        except (TypeError, ValueError) as error:
            raise RecipeError(f"Expected a recipe as Recipe.to_json writes it; received {text!r:.80}.") from error
        allowed = [field.name for field in fields(cls)]
        unknown = sorted(set(values) - set(allowed)) if isinstance(values, dict) else [type(values).__name__]
        if unknown:
            raise RecipeError(
                f"Expected the fields of a recipe ({', '.join(allowed)}); received {', '.join(unknown)}. Remedy: a "
                "recipe of this version, or of an older one."
            )
        if isinstance(values.get("priors"), list):
            values["priors"] = [_read_stored(prior) for prior in values["priors"]]
        return cls(**values)

    def __str__(self) -> str:
        lambdas = ", ".join(map(prior_text, self.lambdas))
        parts = [f"λ {lambdas}" if self.rules else f"λ = {lambdas}"]
        if self.view_count:
            source = f", {self.augment}" if isinstance(self.augment, str) and self.augment in PRESETS else ""
            shared = ", shared by all priors" if self.shared_views else ""
            drawn = ", drawn for every image" if self.resample else ""
            parts.append(f"{self.view_count} {'view' if self.view_count == 1 else 'views'}{source}{drawn}{shared}")
        if self.places is not None:
            parts.append(f"moments of about {self.places} places")
        if self.share == "batch":
            parts.append("statistics of the whole batch")
        if self.candidate_count > 1:
            among = "" if self.kept == self.candidate_count else f" of the {self.kept} most certain"
            weights = [] if isinstance(self.combine, str) else [f"{weight:.3g}" for weight in self.combine]
            parts.append(f"mean, weighted {', '.join(weights)}" if weights else f"{self.combine}{among}")
        return f"{self.name}: {'; '.join(parts)}"


def _read_combine(combine: Any) -> str | tuple[float, ...]:
    if combine in ("vote", "mean"):
        return str(combine)
    try:
        weights = () if isinstance(combine, str) else tuple(float(weight) for weight in combine)
    except (TypeError, ValueError):
        weights = ()
    if not weights or not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise RecipeError(
            f"combine: expected 'vote' or 'mean', or a weight above 0 for each candidate; received {combine!r}."
        )
    return weights


def _check_weights(recipe: Recipe) -> None:
    assert isinstance(recipe.combine, tuple)
    if len(recipe.combine) != recipe.candidate_count:
        raise RecipeError(
            f"combine: expected a weight for each of the {recipe.candidate_count} candidates; received "
            f"{len(recipe.combine)}. Remedy: as many weights, or another recipe to change: 'augbn' for one prior, "
            "'ops' for several."
        )
    if recipe.top_k not in (None, recipe.candidate_count):
        raise RecipeError(
            f"top_k: weights are for all {recipe.candidate_count} candidates; received top_k={recipe.top_k}. "
            "Remedy: leave top_k out, or combine='mean'."
        )


def _is_plain(augment: Any) -> bool:
    return isinstance(augment, str) or (isinstance(augment, tuple) and all(map(_is_plain, augment)))


def _read_stored(prior: Any) -> Any:
    if not isinstance(prior, dict):
        return prior
    rule = prior.get("by_shift")
    names = {field.name for field in fields(ByShift)}
    if set(prior) != {"by_shift"} or not isinstance(rule, dict) or set(rule) - names:
        raise RecipeError(f"priors: expected numbers, or by_shift with {', '.join(sorted(names))}; received {prior!r}.")
    return ByShift(**rule)


def prior_text(prior: Prior) -> str:
    """Return λ, or its rule, as a reader wants it."""
    return str(prior) if isinstance(prior, ByShift) else f"{prior:.3g}"


def _read_priors(priors: Any) -> tuple[Prior, ...]:
    listed = priors.tolist() if hasattr(priors, "tolist") else priors
    lambdas: tuple[Prior, ...]
    try:
        values = [listed] if isinstance(listed, int | float | ByShift) else list(listed)
        each = (value if isinstance(value, ByShift) else float(value) for value in values)
        lambdas = () if isinstance(listed, str) else tuple(each)
    except (TypeError, ValueError):
        lambdas = ()
    if not lambdas or not all(isinstance(p, ByShift) or (math.isfinite(p) and 0.0 <= p <= 1.0) for p in lambdas):
        raise RecipeError(
            f"priors: expected one or more numbers from 0 (the test image alone) to 1 (the source model), or a rule "
            f"(ByShift); received {priors!r}."
        )
    numbers = [p for p in lambdas if not isinstance(p, ByShift)]
    if len(numbers) < len(lambdas) and set(numbers) - {1.0}:
        raise RecipeError(
            f"priors: beside a rule, which sets λ by what it sees, expected no number but 1; received {priors!r}."
        )
    if len(set(lambdas)) < len(lambdas):
        raise RecipeError(f"priors: expected each number once; received {priors!r}.")
    return lambdas


def _freeze(augment: Any) -> Augment:
    """Turn lists into tuples, so that a recipe can be hashed and compared."""
    if isinstance(augment, str) or callable(augment):
        return augment  # type: ignore[no-any-return]
    if isinstance(augment, Sequence):
        return tuple(e if isinstance(e, str) or callable(e) else _freeze(e) for e in augment)  # type: ignore[misc]
    raise RecipeError(
        f"augment: expected 'lossless', 'paper', names, or callables on a batch of images; received {augment!r}."
    )


def check_share(recipe: Recipe, max_rows: int | None) -> None:
    """Raise where a batch that shares its statistics would be run in parts."""
    if recipe.share == "batch" and max_rows is not None:
        raise RecipeError(
            f"max_rows: with share='batch' the images of a call share their statistics and must run at once; received "
            f"max_rows={max_rows}. Remedy: smaller batches."
        )


def _expect_one_of(field: str, value: Any, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise RecipeError(f"{field}: expected {' or '.join(map(repr, allowed))}; received {value!r}.")


def _expect_bool(field: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise RecipeError(f"{field}: expected True or False; received {value!r}.")


def _read_whole(field: str, value: Any, least: int) -> int:
    whole = None if isinstance(value, bool) or not hasattr(value, "__index__") else operator.index(value)
    if whole is None or whole < least:
        raise RecipeError(f"{field}: expected a whole number of at least {least}; received {value!r}.")
    return whole


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe(name="source", priors=1.0, n_views=0),
            Recipe(
                name="auto",
                priors=(1.0, ByShift(strength=1.0)),
                n_views=0,
                combine=(0.4, 0.6),
                places=_SAMPLE,
            ),
            Recipe(name="shift", priors=ByShift(), n_views=0, places=_SAMPLE),
            Recipe(name="ensemble", priors=1.0, candidates="views", combine="mean"),
            Recipe(name="ptn", priors=0.0, n_views=0),
            Recipe(name="bn", priors=16 / 17, n_views=0),
            Recipe(name="augbn", priors=ByShift()),
            Recipe(name="ops"),
            Recipe(name="ops_shared", shared_views=True),
        )
    }
)
"""The recipes by name. `ops` is the paper's, and so is `augbn` where `priors` is given; `auto` and `shift` are ours."""

DEFAULT = "auto"
"""What `adapt` does unless it is told otherwise: as the study in docs/study.md found, it gains and does no harm."""


Task: TypeAlias = Literal["classification", "segmentation"]

_SEGMENTATION: Mapping[str, Any] = MappingProxyType({"augment": ("hflip", "vflip", "rot180"), "n_views": 1})
_SEGMENTATION_ENSEMBLE: Mapping[str, Any] = MappingProxyType({"augment": "blur", "n_views": 2})
"""The views of the named recipes where every pixel gets a label, in the order in which they are taken.

Chosen on the validation pictures of CamVid: one mirrored view gave more than the paper's blur and rotation, under noise
above all, and as much as two or three. An ensemble's views must keep the pixels in place.
"""


def read_recipe(recipe: Recipe | str, changes: Mapping[str, Any], task: Task = "classification") -> Recipe:
    """Return the recipe that a caller named or gave, with these fields changed.

    The task decides the views of a named recipe, unless they are given; a Recipe has its own.
    """
    _expect_one_of("task", task, ("classification", "segmentation"))
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise RecipeError(
                f"recipe: expected one of {', '.join(RECIPES)} or a Recipe; received {recipe!r}."
                f"{suggestion(recipe, RECIPES)}"
            )
        chosen = RECIPES[recipe]
    elif isinstance(recipe, Recipe):
        chosen = recipe
    else:
        raise RecipeError(
            f"recipe: expected one of {', '.join(RECIPES)} or a Recipe; received {type(recipe).__name__}."
        )
    allowed = [field.name for field in fields(Recipe)]
    for name in changes:
        if name not in allowed:
            raise RecipeError(
                f"{name}: not a field of a recipe ({', '.join(allowed)}) nor a setting of adapt "
                f"({', '.join(_SETTINGS)}).{suggestion(name, [*allowed, *_SETTINGS])}"
            )
    if chosen.view_count and changes.get("n_views") == 0:
        raise RecipeError(
            f"n_views: {chosen.name!r} estimates statistics from views and needs at least one; received 0. "
            "For the image alone take 'bn', with priors= of your choice."
        )
    if task == "segmentation":
        chosen, changes = _for_segmentation(chosen, changes, named=isinstance(recipe, str))
    changed = replace(chosen, **changes)
    if task == "segmentation":
        _check_segmentation(changed)
    if "augment" in changes and changed.view_count == 0:
        raise RecipeError(
            f"augment: {chosen.name!r} takes no views, so that augment={changes['augment']!r} would do nothing. "
            "Take 'augbn', or give n_views= as well."
        )
    return changed


def _for_segmentation(chosen: Recipe, changes: Mapping[str, Any], named: bool) -> tuple[Recipe, Mapping[str, Any]]:
    """Return a named recipe with the task's views, and the changes with what "paper" means there."""
    if changes.get("augment") == "paper":
        changes = {"n_views": 1, **changes, "augment": "paper_segmentation"}
    elif named and chosen.view_count and "augment" not in changes:
        views = _SEGMENTATION_ENSEMBLE if chosen.candidates == "views" else _SEGMENTATION
        chosen = replace(chosen, **views)
        if chosen.shared_views and not {"priors", "combine", "top_k"} & set(changes):
            chosen = replace(chosen, top_k=_DEFAULT_KEPT)  # as it was measured here
    return chosen, changes


def _check_segmentation(recipe: Recipe) -> None:
    if recipe.candidates != "views":
        return
    moving = [v.name for v in make_views(recipe.augment, recipe.view_count, recipe.seed, "square") if v.moves_pixels]
    if moving:
        raise RecipeError(
            f"augment: {recipe.name!r} averages what its views say pixel by pixel, and these move the pixels: "
            f"{', '.join(moving)}. Expected views that keep them in place. Remedy: augment='blur', or functions of "
            "your own."
        )
