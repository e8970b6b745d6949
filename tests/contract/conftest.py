"""The `backend` that this process tests the promises on."""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest

NAME = f"keras-{os.environ['KERAS_BACKEND']}" if "KERAS_BACKEND" in os.environ else "torch"

LENGTHY = (
    "test_a_file_answers_as_the_adapted_model_for_any_number_of_images[model.onnx]",
    "test_a_file_computes_the_mean_of_what_a_rule_sets[model.onnx]",
    "test_a_file_computes_the_mean_of_what_a_rule_sets[model]",
    "test_a_file_says_what_observe_says[model.onnx]",
    "test_a_file_says_what_observe_says[model.tflite]",
    "test_every_pixel_has_diagnostics[rules]",
    "test_one_candidate_has_its_prior_for_every_image",
    "test_outputs_beside_the_scores_keep_their_names",
    "test_a_stored_model_comes_back_adapted[{}]",
    "test_adapted_answers_do_not_depend_on_the_batch_size",
    "test_an_images_answer_does_not_depend_on_its_batch[ensemble]",
    "test_every_recipe_runs_on_segmentation",
    "test_fewer_rows_at_once_give_the_same_answers[augbn-4]",
    "test_fewer_rows_at_once_give_the_same_answers[ensemble",
    "test_fewer_rows_at_once_give_the_same_answers[ops-8]",
    "test_fewer_rows_at_once_give_the_same_answers[source",
    "test_images_of_different_sizes_are_counted_but_not_stacked",
    "test_it_prints_as_a_table",
    "test_labels_decide_by_accuracy",
    "test_progress_is_told",
    "test_the_strongest_that_keeps_the_predictions_is_chosen",
    "test_where_nothing_keeps_the_predictions_it_warns",
    "test_models_with_and_without_a_softmax_agree",
    "test_one_candidate_has_an_entropy_too",
    "test_one_image_shares_with_nobody",
    "test_outputs_keep_their_structure[augbn]",
    "test_outputs_keep_their_structure[ensemble]",
    "test_outputs_keep_their_structure[ops_shared]",
    "test_outputs_keep_their_structure[source]",
    "test_seed_decides_the_papers_views_and_nothing_else",
    "test_sigmoids_and_their_logits_agree",
    "test_the_candidates_of_some_layers_equal_the_reference",
    "test_the_prior_is_that_of_the_most_confident_candidate",
    "test_the_summary_counts",
    "test_votes_are_recorded[{'max_rows': 4}]",
)
"""TensorFlow and JAX take seconds for each, of what is Keras' own code and tested every time on its torch backend."""

LENGTHY_ON_JAX = (
    "test_every_pixel_and_compare_know_a_rule",
    "test_every_pixel_has_diagnostics",
    "test_no_shift_is_the_source_model",
    "test_one_number_is_calibrated_too",
    "test_rules_equal_the_reference[beside the source, with views",
    "test_rules_equal_the_reference[with views",
    "test_rules_equal_the_reference[two rules",
    "test_what_the_layers_measure_is_observed[{'max_rows': 1}]",
    "test_cycles_of_adapt_and_unwrap_leave_nothing_behind",
    "test_every_pixel_has_a_vote",
    "test_only_the_observed_model_is_heard",
    "test_outputs_keep_their_structure[ops]",
    "test_views_are_drawn_by_seed_and_content",
    "test_votes_are_recorded",
    "test_what_is_not_voted_on_is_the_most_confident_candidates",
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
    if NAME in ("keras-tensorflow", "keras-jax"):
        lengthy = LENGTHY + LENGTHY_ON_JAX if NAME == "keras-jax" else LENGTHY
        for item in items:
            if item.name.replace(f"{NAME}-", "").startswith(lengthy):
                item.add_marker(pytest.mark.slow)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `file` or `network` runs for each that the framework has."""
    if "file" in metafunc.fixturenames:
        # JAX writes by way of TensorFlow, and takes half a minute; torch.export a quarter.
        lengthy = framework().files if NAME == "keras-jax" else ("model.pt2",)
        marks = {name: [pytest.mark.slow] for name in lengthy}
        metafunc.parametrize("file", [pytest.param(name, marks=marks.get(name, [])) for name in framework().files])
    if "network" in metafunc.fixturenames:
        # Of Keras only ResNet50 every time: tests/keras holds all three against PyTorch's.
        often = {"torch": framework().networks, "keras-tensorflow": ("ResNet50",)}.get(NAME, ())
        group = pytest.mark.xdist_group("networks")  # which are built once a process
        metafunc.parametrize(
            "network",
            [
                pytest.param(name, marks=[group] if name in often else [group, pytest.mark.slow])
                for name in framework().networks
            ],
        )
