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
INDEPENDENCE = "tests/contract/test_independence.py::test_an_images_answer_does_not_depend_on_its_batch"
ANY_MODEL = "tests/torch/test_any_model.py"
ROUNDS = "tests/contract/test_outputs.py::test_fewer_rows_at_once_give_the_same_answers"

STATISTICS = (
    Mutant(
        "λ swapped with 1 − λ",
        "sita_adapters/statistics.py",
        "return mix(mean, source_mean, priors), mix(variance, source_variance, priors)",
        "return mix(source_mean, mean, priors), mix(source_variance, variance, priors)",
        (f"{CORE}::test_blend_equals_a_float64_loop",),
    ),
    Mutant(
        "ε left out of the shift",
        "sita_adapters/shift.py",
        "variance + epsilon, source_variance + epsilon",
        "variance, source_variance",
        ("tests/contract/test_rules.py::test_rules_equal_the_reference",),
    ),
    Mutant(
        "a rule that forgets how many places there are",
        "sita_adapters/shift.py",
        "strengths * area / (half_areas + area)",
        "strengths",
        ("tests/contract/test_rules.py::test_rules_equal_the_reference",),
    ),
    Mutant(
        "the source's row put behind the row that departs",
        "sita_adapters/engine.py",
        "[*[one] * plan.first, statistic, *[one] * after]",
        "[statistic, *[one] * plan.first, *[one] * after]",
        ("tests/torch/test_exact.py::test_the_shortest_way_equals_the_general_one",),
    ),
    Mutant(
        "the shortest way measures the row before",
        "backends/sita_torch/lone_row.py",
        "x[plan.first :: plan.rows]",
        "x[:: plan.rows]",
        ("tests/contract/test_rules.py::test_the_default_is_the_mean_of_the_source_and_a_bold_row",),
    ),
    Mutant(
        "the default's weights swapped",
        "sita_adapters/recipe.py",
        "combine=(0.4, 0.6)",
        "combine=(0.6, 0.4)",
        ("tests/contract/test_rules.py::test_the_default_is_the_mean_of_the_source_and_a_bold_row",),
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
        "backends/sita_torch.batchnorm.py",
        "            return mean, variance\n",
        "            return mean, variance * (self.lines.shape[2] / (self.lines.shape[2] - 1))\n",
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
        "backends/sita_torch.batchnorm.py",
        "mean, variance, False, 0.0, epsilon, True)",
        "mean, variance, False, 0.0, 0.0, True)",
        (REFERENCE,),
    ),
    Mutant(
        "γ and β swapped",
        "backends/sita_torch.batchnorm.py",
        "torch.batch_norm(flat, gamma, beta,",
        "torch.batch_norm(flat, beta, gamma,",
        (REFERENCE,),
    ),
    Mutant(
        "statistics shared by the batch without being asked for",
        "sita_adapters/engine.py",
        'shared = call.adaptation is not None and call.adaptation.recipe.share == "batch"',
        "shared = call.adaptation is not None",
        (INDEPENDENCE,),
    ),
    Mutant(
        "the image weighed as one of its views",
        "sita_adapters/plan.py",
        "np.array([0.5] + [0.5 / n] * n)",
        "np.full(n + 1, 1 / (n + 1))",
        (f"{CORE}::test_plans_equal_the_definition",),
    ),
    Mutant(
        "shared views under the highest prior",
        "sita_adapters/plan.py",
        'lowest = min(range(count), key=lambda place: cast("float", lambdas[place]))',
        'lowest = max(range(count), key=lambda place: cast("float", lambdas[place]))',
        (f"{CORE}::test_plans_equal_the_definition",),
    ),
)

VOTE = (
    Mutant(
        "a tie broken the other way",
        "sita_adapters/voting.py",
        "votes * count - ranks",
        "votes * count + ranks",
        (f"{CORE}::test_a_tie_goes_to_the_most_certain_of_the_tied",),
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
        "certain = xp.log(total) - spread / total",
        "certain = spread / total - xp.log(total)",
        (f"{CORE}::test_vote_equals_the_loop_on_many_random_images",),
    ),
    Mutant(
        "a candidate that is NaN the most certain",
        "sita_adapters/voting.py",
        'xp.where(certain == certain, certain, float("inf"))',
        'xp.where(certain == certain, certain, -float("inf"))',
        (f"{CORE}::test_a_candidate_that_is_nan_is_the_least_certain",),
    ),
    Mutant(
        "observe records twice",
        "sita_adapters/observe.py",
        "self._votes.append(vote)",
        "self._votes.extend([vote, vote])",
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
        "sita_adapters/candidates.py",
        "by_row[:, row] for row in plan.candidate_rows",
        "by_row[:, row - 1] for row in plan.candidate_rows",
        (REFERENCE,),
    ),
    Mutant(
        "the images always on axis 0",
        "sita_adapters/trial.py",
        "        )\n    return axis\n",
        "        )\n    return 0\n",
        (f"{ANY_MODEL}::test_the_axis_of_the_images_is_found",),
    ),
    Mutant(
        "outputs of another size taken for candidates",
        "sita_adapters/candidates.py",
        "if axis is not None and axis != WHOLE and not _entries(array, axis, call):",
        "if False:",
        (f"{ANY_MODEL}::test_outputs_of_another_size_than_in_the_trial_are_an_error",),
    ),
    Mutant(
        "images that mix at a layer not noticed",
        "sita_adapters/trial.py",
        "if not _agree((x, y), (two, three), noise):",
        "if False:",
        (f"{ANY_MODEL}::test_images_that_mix_are_an_error",),
    ),
    Mutant(
        "images that mix in the output not noticed",
        "sita_adapters/trial.py",
        "if not _agree(by_image, runs, _noise(x) + runs[0].room):",
        "if False:",
        (f"{ANY_MODEL}::test_images_that_mix_are_an_error",),
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
        "    finally:\n        _thread.call = outer\n",
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
        "backends/sita_torch/guards.py",
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
        "buffers shared with the source",
        "backends/sita_torch/clone.py",
        "alias(item) if isinstance(item, nn.Parameter) or id(item) in shared else _copy(item)",
        "alias(item)",
        (f"{ANY_MODEL}::test_what_a_forward_writes_reaches_neither_the_source_nor_the_next_call",),
    ),
    Mutant(
        "weights copied, not shared",
        "backends/sita_torch/clone.py",
        "alias(item) if isinstance(item, nn.Parameter) or id(item) in shared else _copy(item)",
        "_copy(item)",
        ("tests/contract/test_source.py::test_no_parameter_is_held_twice",),
    ),
    Mutant(
        "the link never refreshed",
        "backends/sita_torch/link.py",
        "        theirs, ours = self.shared\n",
        "        return\n        theirs, ours = self.shared\n",
        (f"{ANY_MODEL}::test_buffers_follow_the_source_as_weights_do",),
    ),
    Mutant(
        "an exported file not checked",
        "workbench/sita_workbench/exported/check.py",
        "if not np.mean(~(gaps <= TOLERANCE)) <= allowed:",
        "if False:",
        ("tests/workbench/test_exported.py::test_a_file_that_answers_differently_is_not_kept",),
    ),
)

KERAS = (
    Mutant(
        "Keras: the layer's own normalisation",
        "backends/sita_keras/batchnorm.py",
        "if call is not None and not symbolic:",
        "if False:",
        (REFERENCE,),
        "tensorflow",
    ),
    Mutant(
        "Keras: γ and β swapped",
        "backends/sita_keras/batchnorm.py",
        "        gamma=KERAS.cast(layer.gamma, source[0]) if layer.scale else 1.0,\n"
        "        beta=KERAS.cast(layer.beta, source[0]) if layer.center else 0.0,\n",
        "        gamma=KERAS.cast(layer.beta, source[0]) if layer.center else 1.0,\n"
        "        beta=KERAS.cast(layer.gamma, source[0]) if layer.scale else 0.0,\n",
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
        "Keras: the trial not held",
        "backends/sita_keras/backend.py",
        "layer.findings = try_out(layer, image, settings.example)",
        "layer.findings = None",
        ("tests/keras/test_odd.py::test_layers_that_are_not_called_are_reported",),
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
        "arrays = _map_in_order(answer_one, images)",
        "arrays = _map_in_order(answer_one, images[:-1])",
        (f"{ROUNDS}[keras-jax-augbn-3]",),
        "jax",
    ),
)

MUTANTS = (*STATISTICS, *VOTE, *ROWS, *SOURCE, *KERAS)
