"""The defects that `mutants.py` puts into a copy of the source, and the tests that have to find each of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One defect: in `file`, the text `old`, which is there exactly once, becomes `new`.

    `tests` are the few that should fail then. They run on PyTorch, or on Keras with this `keras` backend.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    keras: str | None = None


CORE = "tests/core/test_core.py"
EQUATIONS = "tests/contract/test_equations.py"
REFERENCE = f"{EQUATIONS}::test_answers_equal_the_reference"
MIX = "tests/contract/test_mix.py::test_class_scores_are_mixed_by_shift_and_confidence"
INDEPENDENCE = "tests/contract/test_independence.py::test_an_images_answer_does_not_depend_on_its_batch"
CASES = "tests/torch/test_cases.py"
ROUNDS = "tests/contract/test_outputs.py::test_fewer_rows_at_once_give_the_same_answers"

STATISTICS = (
    Mutant(
        "λ swapped with 1 − λ",
        "sita_adapters/statistics.py",
        "return lerp(mean, source_mean, priors), lerp(variance, source_variance, priors)",
        "return lerp(source_mean, mean, priors), lerp(source_variance, variance, priors)",
        (f"{CORE}::test_blend_equals_a_float64_loop",),
    ),
    Mutant(
        "ε left out of the shift",
        "sita_adapters/shift.py",
        "ratio = (variance + epsilon) / source_variance",
        "ratio = variance / source_variance",
        (f"{CORE}::test_shift_and_prior_equal_a_float64_loop",),
    ),
    Mutant(
        "a rule that forgets the number of positions",
        "sita_adapters/shift.py",
        "w = self.strength * area_weight(positions, first_positions, self.half_area)",
        "w = self.strength",
        (f"{CORE}::test_shift_and_prior_equal_a_float64_loop",),
    ),
    Mutant(
        "the source's row behind the blended row",
        "sita_adapters/blending.py",
        "[*[ops.for_every_image(source, blended)] * first, blended]",
        "[blended, *[ops.for_every_image(source, blended)] * first]",
        (MIX,),
    ),
    Mutant(
        "the source's row measured instead of the blended one",
        "backends/sita_torch/batchnorm.py",
        "x.view(-1, n, *x.shape[1:])[:, first:]",
        "x.view(-1, n, *x.shape[1:])[:, : n - first]",
        (MIX,),
    ),
    Mutant(
        "the spread between the views left out",
        "sita_adapters/statistics.py",
        "xp.matmul(weights, variances + offsets * offsets) - offset * offset",
        "xp.matmul(weights, variances)",
        (f"{CORE}::test_blend_equals_a_float64_loop",),
    ),
    Mutant(
        "the variance unbiased",
        "backends/sita_torch/batchnorm.py",
        "return means.squeeze(-1), mean(squares, -1)",
        "return means.squeeze(-1), mean(squares, -1) * (lines.shape[-1] / max(1, lines.shape[-1] - 1))",
        (REFERENCE,),
    ),
    Mutant(
        "ε left out of the output's scale",
        "sita_adapters/statistics.py",
        "scale = gamma / xp.sqrt(variance + epsilon)",
        "scale = gamma / xp.sqrt(variance)",
        (f"{CORE}::test_both_ways_to_apply_a_blend_are_the_normalisation",),
    ),
    Mutant(
        "ε left out of BatchNorm's kernel",
        "backends/sita_torch/batchnorm.py",
        "*statistics, False, 0.0, layer.eps, True)",
        "*statistics, False, 0.0, 0.0, True)",
        (REFERENCE,),
    ),
    Mutant(
        "γ and β swapped",
        "backends/sita_torch/batchnorm.py",
        "torch.batch_norm(flat, weights[0], weights[1],",
        "torch.batch_norm(flat, weights[1], weights[0],",
        (REFERENCE,),
    ),
    Mutant(
        "statistics shared by the batch without being asked for",
        "sita_adapters/blending.py",
        'shared = context.ops, context.plan, context.adaptation.recipe.share == "batch"',
        "shared = context.ops, context.plan, True",
        (INDEPENDENCE,),
    ),
    Mutant(
        "the image weighed as one of its views",
        "sita_adapters/plan.py",
        "weights[[image, *own], image] = 0.5",
        "weights[[image, *own], image] = 0.5 / len(views)",
        (f"{CORE}::test_plans_equal_the_definition",),
    ),
    Mutant(
        "shared views under the highest prior",
        "sita_adapters/plan.py",
        'lowest = min(cast("tuple[float, ...]", recipe.prior_values))',
        'lowest = max(cast("tuple[float, ...]", recipe.prior_values))',
        (f"{CORE}::test_plans_equal_the_definition",),
    ),
)

ANSWER = (
    Mutant(
        "the weights of a mix swapped",
        "sita_adapters/combining.py",
        "return u / xp.sum(u, axis=1, keepdims=True)",
        "return 1 - u / xp.sum(u, axis=1, keepdims=True)",
        (MIX,),
    ),
    Mutant(
        "confidence left out of a mix",
        "sita_adapters/combining.py",
        "u = shares * shares if confidences is None else shares * shares * confidences",
        "u = shares * shares",
        (MIX,),
    ),
    Mutant(
        "probabilities mixed instead of their logarithms",
        "sita_adapters/combining.py",
        "    mixed = mix_arrays(to_logits(ops.precise(array), kind, ops.xp), weights, ops)\n",
        "    return mix_arrays(array, weights, ops)\n",
        (f"{CORE}::test_mixed_scores_equal_a_float64_loop",),
    ),
    Mutant(
        "every layer counts the same in the shift of an image",
        "sita_adapters/diagnostics.py",
        "areas = [area_weight(each.positions, measurements[0].positions) for each in measurements]",
        "areas = [1.0 for each in measurements]",
        ("tests/torch/test_exact.py::test_small_networks_equal_the_reference",),
    ),
    Mutant(
        "a tie broken the other way",
        "sita_adapters/voting.py",
        "votes * count - ranks",
        "votes * count + ranks",
        (f"{CORE}::test_a_tie_goes_to_the_most_confident_of_the_tied",),
    ),
    Mutant(
        "one candidate too many kept",
        "sita_adapters/voting.py",
        "kept = ranks < top_k",
        "kept = ranks <= top_k",
        (f"{CORE}::test_vote_equals_the_loop_on_many_random_images",),
    ),
    Mutant(
        "the entropy's sign turned",
        "sita_adapters/voting.py",
        "return -xp.sum(xp.exp(log_p)",
        "return xp.sum(xp.exp(log_p)",
        (f"{CORE}::test_vote_equals_the_loop_on_many_random_images",),
    ),
    Mutant(
        "a candidate that is NaN the most confident",
        "sita_adapters/voting.py",
        'xp.where(entropies == entropies, entropies, float("inf"))',
        'xp.where(entropies == entropies, entropies, -float("inf"))',
        (f"{CORE}::test_a_candidate_that_is_nan_is_the_least_confident",),
    ),
    Mutant(
        "observe records twice",
        "sita_adapters/observe.py",
        "for name in _INTEGERS if name in values})",
        "for name in _INTEGERS if name in values})\n        self._calls *= 2",
        ("tests/contract/test_observe.py::test_votes_are_recorded",),
    ),
)

ROWS = (
    Mutant(
        "the rows of images mixed",
        "backends/sita_torch/ops.py",
        "torch.stack(list(rows), dim=1).flatten(0, 1)",
        "torch.stack(list(rows), dim=0).flatten(0, 1)",
        (INDEPENDENCE,),
    ),
    Mutant(
        "the candidates taken one row before",
        "sita_adapters/combining.py",
        "rows[:, row] for row in plan.candidates",
        "rows[:, row - 1] for row in plan.candidates",
        (REFERENCE,),
    ),
    Mutant(
        "the images always on axis 0",
        "sita_adapters/probe.py",
        "axes.append(differing[0] if fits else None)",
        "axes.append(0 if fits else None)",
        ("tests/torch/test_outputs.py::test_the_axis_of_the_images_is_found",),
    ),
    Mutant(
        "images that influence each other in the output not noticed",
        "sita_adapters/probe.py",
        "            found.append(index)",
        "            found += [index] if index >= len(results[1].arrays) else []",
        (f"{CASES}::test_images_that_influence_each_other_are_refused",),
    ),
    Mutant(
        "entries of an image that are not side by side at a layer not noticed",
        "sita_adapters/probe.py",
        "            found.append(index)",
        "            found += [index] if index < len(results[1].arrays) else []",
        ("tests/torch/test_errors.py::test_a_model_that_scatters_an_images_entries_is_found_out",),
    ),
    Mutant(
        "the running call shared by all threads",
        "sita_adapters/engine.py",
        "class _Thread(threading.local):",
        "class _Thread:",
        (
            "tests/contract/test_independence.py::test_threads_with_different_batch_sizes_get_the_single_threaded_answers",
        ),
    ),
    Mutant(
        "the running call left behind",
        "sita_adapters/engine.py",
        "    finally:\n        thread.context = outer\n",
        "    finally:\n        pass\n",
        ("tests/torch/test_model.py::test_a_forward_that_raises_leaves_both_models_usable",),
    ),
)

SOURCE = (
    Mutant(
        "a hook left behind by unwrap",
        "backends/sita_torch/batchnorm.py",
        "            del layer._forward_pre_hooks[key]\n",
        "            pass\n",
        ("tests/torch/test_model.py::test_unwrap_gives_back_every_entry_point",),
    ),
    Mutant(
        "a guard left behind by unwrap",
        "backends/sita_torch/clone.py",
        "            del hooks[key]\n",
        "            pass\n",
        ("tests/torch/test_model.py::test_unwrap_gives_back_every_entry_point",),
    ),
    Mutant(
        "a layer skipped by attach",
        "backends/sita_torch/backend.py",
        "attach(layer, adaptation, name, adapted=name in chosen)",
        "attach(layer, adaptation, name, adapted=name in sorted(chosen)[1:])",
        (REFERENCE,),
    ),
    Mutant(
        "weights copied, not shared",
        "backends/sita_torch/clone.py",
        "data = tensor.detach() if shared else",
        "data = tensor.detach().clone() if shared else",
        ("tests/contract/test_source.py::test_no_parameter_is_held_twice",),
    ),
    Mutant(
        "a forward pass that writes a buffer not noticed",
        "backends/sita_torch/probe.py",
        "    if changed:\n",
        "    if False:\n",
        (f"{CASES}::test_models_with_state_or_chance_are_refused",),
    ),
    Mutant(
        "a layer that is no BatchNorm not noticed",
        "backends/sita_torch/probe.py",
        "if wrong := [name for name, axis in axes.items() if axis is None]:",
        "wrong: list[str] = []\n    if wrong:",
        (f"{CASES}::test_layers_that_are_no_batchnorm_by_what_they_compute_can_be_left_out",),
    ),
    Mutant(
        "an exported file not checked",
        "workbench/sita_workbench/exported/check.py",
        "if not np.mean(~(gaps <= TOLERANCE)) <= (_STRAY_PIXELS if may_stray else 0.0):",
        "if False:",
        ("tests/workbench/test_exported.py::test_a_file_that_answers_differently_is_not_kept",),
    ),
)

KERAS = (
    Mutant(
        "Keras: the layer's own normalization",
        "backends/sita_keras/batchnorm.py",
        "if context.plan.blends:",
        "if False:",
        (REFERENCE,),
        "tensorflow",
    ),
    Mutant(
        "Keras: γ and β swapped",
        "backends/sita_keras/batchnorm.py",
        "        gamma=KERAS.cast(layer.gamma, mean) if layer.scale else 1.0,\n"
        "        beta=KERAS.cast(layer.beta, mean) if layer.center else 0.0,\n",
        "        gamma=KERAS.cast(layer.beta, mean) if layer.center else 1.0,\n"
        "        beta=KERAS.cast(layer.gamma, mean) if layer.scale else 0.0,\n",
        (REFERENCE,),
        "tensorflow",
    ),
    Mutant(
        "Keras: the rows of images mixed",
        "sita_adapters/ops.py",
        "self.xp.stack(rows, axis=1)",
        "self.xp.stack(rows, axis=0)",
        (INDEPENDENCE,),
        "tensorflow",
    ),
    Mutant(
        "Keras: the last images dropped by rounds",
        "sita_adapters/ops.py",
        "starts = range(0, batch[0].shape[0], size)",
        "starts = range(0, batch[0].shape[0] - size + 1, size)",
        (ROUNDS,),
        "torch",
    ),
    Mutant(
        "Keras: the last image dropped by rounds in a graph",
        "backends/sita_keras/ops.py",
        "mapped = _map_in_order(answer_one, images)",
        "mapped = _map_in_order(answer_one, images[:-1])",
        (f"{ROUNDS}[keras-jax-augbn-3]",),
        "jax",
    ),
)

MUTANTS = (*STATISTICS, *ANSWER, *ROWS, *SOURCE, *KERAS)
