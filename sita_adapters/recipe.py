"""Recipe: what to compute. Every setting of the method is a field. Common recipes have names."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast

from .errors import RecipeError, expect_integer, expect_number, expect_one_of, suggestion
from .reliability import rule_from_json
from .shift import ByShift, Rule
from .views import PRESETS, Augment, is_random, listed_views, resolve_augment

Task: TypeAlias = Literal["classification", "segmentation"]

Prior: TypeAlias = float | Rule
"""λ, or a rule that sets it."""

RecipeName: TypeAlias = Literal[
    "source", "auto", "restore", "shift", "ensemble", "ptn", "bn", "augbn", "ops", "ops_shared"
]

ADAPTED_WEIGHT = 2.0
"""In a mix, adapted outputs have twice the weight of the source's if they are equally confident (docs/study.md)."""

PAPER_PRIORS = tuple(0.5 + 0.5 * p / 7 for p in range(8))
"""The eight priors of OPS: evenly spaced from 0.5 to 1."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the model adapts to one image. A recipe is immutable, and its fields are checked when it is created.

    Attributes:
        priors: λ, the weight of the source's statistics: 1 is the source model, 0 the test image alone. With several
            priors, the image runs under each of them, and `combine` sets how they are combined. A rule (`ByShift`,
            `ByReliability`) sets λ in every layer.
        n_views: Number of augmented views. None: as many as `augment` lists; 2 for presets and random views.
        augment: "lossless" (flips and 90° rotations, in a fixed order), "paper" or "paper_segmentation" (the paper's
            random views), or a name (`sita_adapters.views.NAMES`), a function of a batch of images, or a sequence of
            names and functions with one for each view.
        shared_views: Run the views once, under the lowest prior, for all priors.
        candidates: "priors": the image under each prior is a candidate; "views": the views are candidates too. In a
            mix, the source model then runs the image, and each other prior runs each view with its own statistics.
        combine: How several candidates are combined. "vote": the majority of the most confident; "mean": the mean
            of the probabilities; "mix": a mean of the source's and the adapted outputs, weighted by confidence.
        adapted_weight: In a mix, the weight of all adapted outputs together, beside 1 for the source's, if they are
            equally confident.
        top_k: Number of candidates that decide, those with the lowest entropy. None: 3 for a vote (5 with shared
            views), otherwise all.
        share: "image", or "batch": all images of a call share their statistics and influence each other's answers.
        seed: Seed of random views. The same image and seed give the same answer.
        resample: Draw new views for every image, from the seed and the image's content, as the paper does. Otherwise
            random views are drawn once. A recipe with `resample` cannot be compiled or exported.
        name: Name in reports.
        notes: Information for the reader, for example what `calibrate` measured. It has no effect.

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
    adapted_weight: float = ADAPTED_WEIGHT
    top_k: int | None = None
    share: Literal["image", "batch"] = "image"
    seed: int = 0
    resample: bool = False
    name: str = "custom"
    notes: str = dataclasses.field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "priors", _resolve_priors(self.priors))
        for text in ("name", "notes"):
            if not isinstance(getattr(self, text), str):
                raise RecipeError(f"{text}: expected a string; received {getattr(self, text)!r:.80}.")
        expect_one_of("candidates", self.candidates, ("priors", "views"))
        expect_one_of("combine", self.combine, ("vote", "mean", "mix"))
        expect_one_of("share", self.share, ("image", "batch"))
        expect_one_of("shared_views", self.shared_views, (False, True))
        expect_one_of("resample", self.resample, (False, True))
        for field, least in (("n_views", 0), ("seed", 0), ("top_k", 1)):
            if getattr(self, field) is not None or field == "seed":
                object.__setattr__(self, field, expect_integer(field, getattr(self, field), least, RecipeError))
        object.__setattr__(self, "adapted_weight", expect_number("adapted_weight", self.adapted_weight))
        object.__setattr__(self, "augment", resolve_augment(self.augment, self.n_views))
        self._check_combination()

    def _check_combination(self) -> None:
        """Raise if fields contradict each other."""
        views, of_views = self.view_count, self.candidates == "views"
        mixable = self.has_source and self.candidate_count > 1
        fixed = not (views and is_random(self.augment))
        too_many = (self.top_k or 0) > self.candidate_count
        for field, contradicts, expected in (
            (
                "n_views",
                not views and (of_views or self.shared_views or self.resample),
                "at least one view, which shared_views, candidates='views' and resample need",
            ),
            ("resample", self.resample and fixed, "random views, such as augment='paper'"),
            ("shared_views", self.shared_views and of_views, "candidates='priors'"),
            ("shared_views", self.shared_views and self.rule, "priors that are numbers"),
            ("top_k", too_many, f"at most {self.candidate_count}, the number of candidates"),
            ("top_k", self.top_k and self.combine == "mix", "combine='vote' or 'mean'"),
            ("combine", self.combine == "mix" and not mixable, "1 and another prior"),
            ("adapted_weight", self.adapted_weight != ADAPTED_WEIGHT and self.combine != "mix", "combine='mix'"),
        ):
            if contradicts:
                received = f"{field}={getattr(self, field)!r} in {self}"
                remedy = "Try: another value for one of these fields."
                raise RecipeError(f"{field}: expected {expected}; received {received}. {remedy}")

    @property
    def prior_values(self) -> tuple[Prior, ...]:
        """The priors as a tuple."""
        return cast("tuple[Prior, ...]", self.priors)

    @property
    def rule(self) -> Rule | None:
        """The first prior that is a rule."""
        return next((prior for prior in self.prior_values if isinstance(prior, Rule)), None)

    @property
    def has_source(self) -> bool:
        """Whether the source model, λ = 1, is a candidate."""
        return 1.0 in self.prior_values

    @property
    def view_count(self) -> int:
        """Number of views of a square image. Other shapes may have fewer."""
        listed = listed_views(self.augment) if self.n_views is None else self.n_views
        return 2 if listed is None else listed

    @property
    def mixes_views(self) -> bool:
        """Whether adapted views are mixed with the source's output for the image."""
        return self.candidates == "views" and self.combine == "mix"

    def has_candidate_views(self, prior: Prior) -> bool:
        """Whether the views under this prior are candidates. In a mix, the source model runs the image only."""
        return self.candidates == "views" and (prior != 1.0 or self.combine != "mix")

    @property
    def candidate_count(self) -> int:
        """Number of candidates."""
        viewed = sum(self.has_candidate_views(prior) for prior in self.prior_values)
        return len(self.prior_values) + viewed * (self.view_count - self.mixes_views)

    @property
    def effective_top_k(self) -> int:
        """Number of candidates that decide."""
        if self.top_k is not None or self.combine != "vote":
            return self.top_k or self.candidate_count
        # The paper keeps 3. With shared views, two more voters compensate for the loss of accuracy (docs/paper.md).
        return min(5 if self.shared_views else 3, self.candidate_count)

    def to_json(self) -> str:
        """Return the recipe as JSON for `from_json`. It works in any framework. Functions cannot be stored."""
        priors = [{type(p).__name__: p.to_dict()} if isinstance(p, Rule) else p for p in self.prior_values]
        try:
            return json.dumps({**vars(self), "priors": priors}, ensure_ascii=False)
        except TypeError:
            raise RecipeError(f"augment: functions cannot be stored; received {self.augment!r}. Try: names.") from None

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """Return the recipe that `to_json` stored."""
        try:
            return cls(**json.loads(text, object_hook=rule_from_json))
        except RecipeError:
            raise
        except (TypeError, ValueError, KeyError, RecursionError) as error:
            raise RecipeError(
                f"Expected a recipe stored by this version's Recipe.to_json; received {text!r:.200} ({error})."
            ) from error

    def __str__(self) -> str:
        rules = [f"λ {prior}" for prior in self.prior_values if isinstance(prior, Rule)]
        numbers = [prior_text(prior) for prior in self.prior_values if not isinstance(prior, Rule)]
        parts = [" and ".join(([f"λ = {', '.join(numbers)}"] if numbers else []) + rules)]
        if self.view_count:
            preset = f", {self.augment}" if isinstance(self.augment, str) and self.augment in PRESETS else ""
            shared = ", shared by all priors" if self.shared_views else ""
            drawn = ", drawn for every image" if self.resample else ""
            parts.append(f"{self.view_count} {'view' if self.view_count == 1 else 'views'}{preset}{drawn}{shared}")
        if self.share == "batch":
            parts.append("statistics of the whole batch")
        if self.candidate_count > 1:
            everything = "both" if self.candidate_count == 2 else "all"
            some = f"the {self.effective_top_k} most confident"
            voters = some if self.effective_top_k < self.candidate_count else everything
            parts.append(f"{self.combine} of {voters}")
        return f"{self.name}: {'; '.join(parts)}"


def prior_text(prior: Prior) -> str:
    """Return λ, or its rule, as text."""
    return str(prior) if isinstance(prior, Rule) else f"{prior:.3g}"


def _resolve_priors(priors: Any) -> tuple[Prior, ...]:
    """Return one or more priors as a tuple, after checking them."""
    given = priors.tolist() if hasattr(priors, "tolist") else priors
    each = tuple(given) if isinstance(given, Iterable) else (given,)
    if not each or not all(isinstance(p, Rule) or (isinstance(p, Real) and 0.0 <= float(p) <= 1.0) for p in each):
        raise RecipeError(
            "priors: expected one or more numbers from 0 (the test image alone) to 1 (the source model), or a rule "
            f"(ByShift, ByReliability); received {priors!r}."
        )
    values = tuple(p if isinstance(p, Rule) else float(p) for p in each)
    if len(set(values)) < len(values):
        raise RecipeError(f"priors: expected each number or rule once; received {priors!r}.")
    return values


DEFAULT: RecipeName = "auto"

_RECIPES = (
    Recipe(name="source", priors=1.0, n_views=0),
    Recipe(name="auto", priors=(1.0, ByShift(strength=1.0)), n_views=0, combine="mix"),
    Recipe(
        name="restore",
        priors=(1.0, ByShift(strength=1.0)),
        augment=("median", "sharpen"),
        candidates="views",
        combine="mix",
        adapted_weight=4.0,
    ),
    Recipe(name="shift", priors=ByShift(), n_views=0),
    Recipe(name="ensemble", priors=1.0, candidates="views", combine="mean"),
    Recipe(name="ptn", priors=0.0, n_views=0),
    Recipe(name="bn", priors=16 / 17, n_views=0),
    Recipe(name="augbn", priors=ByShift()),
    Recipe(name="ops"),
    Recipe(name="ops_shared", shared_views=True),
)
RECIPES: Mapping[str, Recipe] = MappingProxyType({recipe.name: recipe for recipe in _RECIPES})
"""The recipes by name. `ops`, and `augbn` with a number for `priors`, are the paper's. The rest are ours,
or baselines."""


def resolve_recipe(recipe: Recipe | str, changes: Mapping[str, Any], task: Task = "classification") -> Recipe:
    """Return the recipe that a caller named or passed, with these fields changed.

    The task sets the views and the weights of a named recipe, unless the caller sets them. A `Recipe` keeps its own.
    """
    expect_one_of("task", task, ("classification", "segmentation"))
    chosen = RECIPES.get(recipe) if isinstance(recipe, str) else recipe
    if not isinstance(chosen, Recipe):
        received = f"{recipe!r}.{suggestion(recipe, RECIPES)}" if isinstance(recipe, str) else type(recipe).__name__
        raise RecipeError(f"recipe: expected one of {', '.join(RECIPES)} or a Recipe; received {received}")
    allowed = [field.name for field in fields(Recipe)]
    for name in changes:
        if name not in allowed:
            raise RecipeError(f"{name}: not a field of a recipe ({', '.join(allowed)}).{suggestion(name, allowed)}")
    if changes.get("combine", "mix") != "mix":
        changes = {"adapted_weight": ADAPTED_WEIGHT, **changes}
    for_task = _segmentation_changes(chosen, changes, isinstance(recipe, str)) if task == "segmentation" else changes
    changed = replace(chosen, **for_task)
    if "augment" in changes and changed.view_count == 0:
        raise RecipeError(
            f"augment: {chosen.name!r} uses no views, so augment={changes['augment']!r} would do nothing. "
            "Try: 'augbn', or give n_views= as well."
        )
    return changed


SEGMENTATION_WEIGHT = 8.0  # `adapted_weight`: the mean entropy of all pixels tells less about which row is right


def _segmentation_changes(chosen: Recipe, changes: Mapping[str, Any], named: bool) -> dict[str, Any]:
    """Return the changes for segmentation: "paper_segmentation" for "paper", and other defaults for a named recipe.

    The defaults were chosen on validation images of CamVid. One mirrored view was better than the paper's blur and
    rotation, especially under noise, and as good as two or three views.
    """
    own: dict[str, Any] = {}
    changes = dict(changes)
    if changes.get("combine", chosen.combine) == "mix":
        own = {"adapted_weight": SEGMENTATION_WEIGHT}
    elif changes.get("augment") == "paper":
        changes["augment"], own = "paper_segmentation", {"n_views": 1}
    elif not chosen.view_count or "augment" in changes or chosen.augment != "lossless":
        own = {}
    elif chosen.candidates == "views":
        own = {"augment": "blur", "n_views": 2}  # the views of an ensemble must keep the pixels in place
    else:
        own = {"augment": ("hflip", "vflip", "rot180"), "n_views": 1}
        if chosen.shared_views and not {"priors", "combine", "top_k"} & set(changes):
            own["top_k"] = 3  # as measured on CamVid
    return {**own, **changes} if named else changes
