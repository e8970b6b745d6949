"""The `backend` that this process tests the promises on."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest

NAME = f"keras-{os.environ['KERAS_BACKEND']}" if "KERAS_BACKEND" in os.environ else "torch"

HERE = Path(__file__).parent

EVERY_TIME = {
    "keras-tensorflow": ("equations", "errors", "export", "independence", "mix", "source"),
    "keras-jax": ("equations", "independence", "mix", "source"),
}
"""The files that run every time. All others are of what is Keras' own code, which its torch backend always tests."""

ALSO = (
    "test_a_file_says_what_observe_says[model]",
    "test_fewer_rows_at_once_give_the_same_answers[augbn-3]",
)
"""What of the other files runs every time."""

LENGTHY = (
    "test_a_file_answers_as_the_adapted_model_for_any_number_of_images[model-ops]",
    "test_a_file_answers_as_the_adapted_model_for_any_number_of_images[model.onnx-ops]",
    "test_a_file_answers_as_the_adapted_model_for_any_number_of_images[model.tflite-ops]",
    "test_a_stored_model_comes_back_adapted[{'max_rows'",
    "test_a_stored_model_comes_back_adapted[{}]",
    "test_an_images_answer_does_not_depend_on_its_batch[ensemble]",
    "test_cycles_of_adapt_and_unwrap_leave_nothing_behind",
    "test_every_recipe_runs_on_segmentation",
    "test_models_with_and_without_a_softmax_agree",
    "test_one_image_shares_with_nobody",
    "test_seed_decides_the_papers_views_and_nothing_else",
    "test_sigmoids_and_their_logits_agree",
    "test_the_candidates_of_some_layers_equal_the_reference",
)
"""What of these files takes seconds on TensorFlow and on JAX."""

LENGTHY_ON_JAX = (
    "test_a_model_with_and_one_without_softmax_agree",
    "test_a_stored_model_comes_back_adapted",
    "test_an_images_answer_does_not_depend_on_its_batch[bn]",
    "test_an_images_answer_does_not_depend_on_its_batch[ops]",
    "test_an_images_answer_does_not_depend_on_its_batch[ptn]",
    "test_both_rows_and_the_shift_are_observed",
    "test_each_label_with_a_sigmoid_is_decided_as_two_classes",
    "test_ensemble_is_the_mean_softmax_over_the_views",
    "test_images_that_are_not_square_take_the_views_that_keep_their_shape",
    "test_one_adapted_model_takes_images_of_several_sizes",
    "test_rows_that_run_one_after_the_other_give_the_same_answers",
    "test_sigmoid_labels_are_mixed_as_log_odds",
    "test_threads_with_different_batch_sizes_get_the_single_threaded_answers",
    "test_views_are_drawn_by_seed_and_content",
    "test_without_scores_the_shift_is_observed_and_labels_are_not",
)
"""JAX compiles every operation of an uncompiled call by itself; TensorFlow, too, runs these every time."""


@functools.cache
def framework() -> Any:
    if NAME == "torch":
        from torch_framework import TorchFramework

        return TorchFramework()
    from keras_framework import KerasFramework

    return KerasFramework()


@pytest.fixture(scope="session", params=[NAME])
def backend() -> Any:
    """What builds, runs and looks into the models of one framework."""
    return framework()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if NAME in EVERY_TIME:
        lengthy = LENGTHY + LENGTHY_ON_JAX if NAME == "keras-jax" else LENGTHY
        for item in items:
            name = item.name.replace(f"{NAME}-", "")
            if item.path.parent == HERE and (
                name.startswith(lengthy)
                or not (item.path.stem.removeprefix("test_") in EVERY_TIME[NAME] or name.startswith(ALSO))
            ):
                item.add_marker(pytest.mark.slow)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `file` or `network` runs for each that the framework has."""
    if "file" in metafunc.fixturenames:
        # JAX writes by way of TensorFlow, and takes half a minute; torch.export a quarter.
        lengthy = framework().files if NAME == "keras-jax" else ("model.pt2",)
        marks = {name: [pytest.mark.slow] for name in lengthy}
        metafunc.parametrize("file", [pytest.param(name, marks=marks.get(name, [])) for name in framework().files])
    if "network" in metafunc.fixturenames:
        # tests/torch compares all three with a reference, and tests/keras with PyTorch's; the zoo's sample has others.
        often = framework().networks[:1] if NAME == "torch" else ()
        group = pytest.mark.xdist_group("networks")  # which are built once a process
        metafunc.parametrize(
            "network",
            [
                pytest.param(name, marks=[group] if name in often else [group, pytest.mark.slow])
                for name in framework().networks
            ],
        )
