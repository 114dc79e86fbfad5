"""The oracle itself is right: against finite differences, and against itself by another route."""

import math
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.oracle.conventional import (
    KINDS,
    folder_names,
    group_advantages,
    grpo_gradient,
    relative_difference,
    response_logprobs,
    save_folder,
    tiny_model,
)

STEP = 1e-5


def example_groups(**first_response: Any) -> list[dict[str, Any]]:
    """Two groups of unequal sizes, with a mask, an unscored response, and old log-probs that clip some tokens."""
    first = {
        "prompt_ids": [5, 17, 3, 88, 41, 0, 9, 96, 23, 7, 7, 60],
        "responses": [
            {"ids": [1, 2, 30, 4], "reward": 1.0, "loss_mask": [1, 0, 1, 1], **first_response},
            {"ids": [55], "reward": 0.0},
            {"ids": [8, 0, 14], "reward": None},
            {"ids": [70, 71, 72], "reward": 0.25},
        ],
    }
    second = {"prompt_ids": [11], "responses": [{"ids": [4, 90], "reward": -1.0}, {"ids": [33, 2, 1], "reward": 2.0}]}
    return [first, second]


def with_old_logprobs(model: Any, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Gives each response log-probs of an older policy, some of them far enough away to be clipped."""
    shifts = [0.5, -0.5, 0.02, -0.03]
    for group in groups:
        for response in group["responses"]:
            logprobs, _ = response_logprobs(model, group["prompt_ids"], response["ids"])
            response["old_logprobs"] = [value + shifts[i % 4] for i, value in enumerate(logprobs.tolist())]
    return groups


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_gradient_equals_finite_differences_of_the_loss(kind: str, aggregation: str) -> None:
    model = tiny_model(kind, seed=1)
    groups = with_old_logprobs(model, example_groups())
    settings: dict[str, Any] = {"aggregation": aggregation, "max_response_tokens": 5, "temperature": 0.8}
    gradients = grpo_gradient(model, groups, **settings).gradients
    for name in sorted(gradients)[:: 4 if aggregation == "token" else 9]:
        entry = gradients[name].abs().argmax()
        weight = model.get_parameter(name).data.view(-1)
        losses = []
        for sign in (1, -1):
            weight[entry] += sign * STEP
            losses.append(grpo_gradient(model, groups, **settings).loss)
            weight[entry] -= sign * STEP
        slope = (losses[0] - losses[1]) / (2 * STEP)
        assert slope == pytest.approx(float(gradients[name].view(-1)[entry]), rel=1e-5, abs=1e-8), name


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_parameter_has_a_gradient_that_matters(kind: str) -> None:
    gradients = grpo_gradient(tiny_model(kind), example_groups()).gradients
    norms = {name: float(gradient.norm()) for name, gradient in gradients.items()}
    assert min(norms.values()) > 1e-4 * max(norms.values()), norms


@pytest.mark.parametrize("window", [1, 5, 11])
@pytest.mark.parametrize("kind", list(KINDS))
def test_the_cached_route_with_its_graph_kept_equals_one_plain_forward(kind: str, window: int) -> None:
    model = tiny_model(kind)
    group = example_groups()[0]
    response_ids = group["responses"][0]["ids"]
    routes = [
        response_logprobs(model, group["prompt_ids"], response_ids, prompt_gradient=gradient, detach_constant=False)
        for gradient in ("full", window)
    ]
    names, parameters = zip(*model.named_parameters(), strict=True)
    plain, cached = (torch.autograd.grad(logprobs.sum(), parameters) for logprobs, _ in routes)
    torch.testing.assert_close(routes[1], routes[0], rtol=1e-12, atol=1e-12)
    assert relative_difference(dict(zip(names, cached, strict=True)), dict(zip(names, plain, strict=True))) < 1e-12


@pytest.mark.parametrize("window", [12, 1000])
def test_a_window_as_long_as_the_prompt_is_full(window: int) -> None:
    model = tiny_model("llama")
    full = grpo_gradient(model, example_groups())
    windowed = grpo_gradient(model, example_groups(), prompt_gradient=window)
    assert relative_difference(windowed.gradients, full.gradients) < 1e-12


@pytest.mark.parametrize("kind", ["llama", "qwen3_tied"])
def test_windows_lie_between_stop_and_full_and_are_all_different(kind: str) -> None:
    model = tiny_model(kind)
    groups = example_groups()[:1]
    full = grpo_gradient(model, groups)
    stop, one, six = (grpo_gradient(model, groups, prompt_gradient=window) for window in ("stop", 1, 6))
    assert relative_difference(one.gradients, stop.gradients) == 0
    assert relative_difference(stop.gradients, full.gradients) > 0.01
    assert relative_difference(six.gradients, full.gradients) > 0.01
    assert relative_difference(six.gradients, stop.gradients) > 0.01
    assert stop.loss == pytest.approx(full.loss, rel=1e-12)


@pytest.mark.parametrize("prompt_gradient", ["stop", 6])
def test_a_detached_prompt_is_the_derivative_at_constant_prompt_state(prompt_gradient: str | int) -> None:
    model, frozen = tiny_model("qwen3", seed=2), tiny_model("qwen3", seed=2)
    group = example_groups()[0]
    prompt_ids, response_ids = group["prompt_ids"], group["responses"][0]["ids"]
    logprobs, _ = response_logprobs(model, prompt_ids, response_ids, prompt_gradient=prompt_gradient)
    name = "model.layers.0.self_attn.k_proj.weight"
    (gradient,) = torch.autograd.grad(logprobs.sum(), [model.get_parameter(name)])
    entry = gradient.abs().argmax()

    def logprobs_on_frozen_state(shift: float) -> float:
        constant_tokens = len(prompt_ids) - (1 if prompt_gradient == "stop" else int(prompt_gradient))
        with torch.no_grad():
            cache = frozen.model(torch.tensor([prompt_ids[:constant_tokens]]), use_cache=True).past_key_values
            weight = model.get_parameter(name).data.view(-1)
            weight[entry] += shift
            rest = torch.tensor([[*prompt_ids[constant_tokens:], *response_ids]])
            logits = model(rest, cache=cache).logits[0, -len(response_ids) - 1 : -1]
            weight[entry] -= shift
        return float(logits.log_softmax(-1).gather(-1, torch.tensor(response_ids)[:, None]).sum())

    slope = (logprobs_on_frozen_state(STEP) - logprobs_on_frozen_state(-STEP)) / (2 * STEP)
    assert slope == pytest.approx(float(gradient.view(-1)[entry]), rel=1e-5)


def test_masked_tokens_and_unscored_responses_weigh_nothing_whatever_their_old_logprobs() -> None:
    model = tiny_model("llama")
    plain = grpo_gradient(model, with_old_logprobs(model, example_groups()))
    groups = with_old_logprobs(model, example_groups())
    groups[0]["responses"][0]["old_logprobs"][1] = -math.inf
    groups[0]["responses"][2]["reward"] = math.nan
    other = grpo_gradient(model, groups)
    assert other.loss == plain.loss
    assert relative_difference(other.gradients, plain.gradients) == 0


def test_a_group_without_spread_gives_loss_and_gradient_zero() -> None:
    groups = [{"prompt_ids": [3, 4], "responses": [{"ids": [5, 6], "reward": 0.1}, {"ids": [7], "reward": 0.1}]}]
    result = grpo_gradient(tiny_model("llama"), groups)
    assert result.loss == 0
    assert all(not gradient.any() for gradient in result.gradients.values())


def test_advantages_follow_the_formula_with_bessels_correction() -> None:
    assert group_advantages([1.0, None, 3.0, math.nan], "none", 0.0) == [-1.0, 0.0, 1.0, 0.0]
    assert group_advantages([1.0, 3.0], "group_std", 0.5) == pytest.approx([-1 / (2**0.5 + 0.5), 1 / (2**0.5 + 0.5)])
    assert group_advantages([1.0, None], "group_std", 0.0) == [0.0, 0.0]


def test_the_same_seed_gives_the_same_weights_in_every_dtype() -> None:
    models = [tiny_model("qwen2", dtype=dtype) for dtype in (torch.float64, torch.float32, torch.bfloat16)]
    for other in models[1:]:
        for name, parameter in models[0].named_parameters():
            assert torch.equal(parameter, other.get_parameter(name).double()), name


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_saved_folder_loads_as_the_same_model(kind: str, tmp_path: Any) -> None:
    model = tiny_model(kind, dtype=torch.float32)
    loaded = AutoModelForCausalLM.from_pretrained(
        save_folder(model, tmp_path), dtype=torch.float32, experts_implementation="eager"
    )
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=0)


@pytest.mark.parametrize("kind", list(KINDS))
def test_folder_names_are_those_of_a_saved_folder(kind: str, tmp_path: Any) -> None:
    model = tiny_model(kind, dtype=torch.float32)
    saved = load_file(save_folder(model, tmp_path) / "model.safetensors")
    named = folder_names(dict(model.named_parameters()))
    assert named.keys() == saved.keys()
    assert all(torch.equal(named[name], saved[name]) for name in saved)


@pytest.mark.parametrize("kind", ["qwen3_moe", "qwen3_moe_mixed"])
def test_float64_experts_are_those_of_transformers_to_float32(kind: str) -> None:
    model, plain = tiny_model(kind), tiny_model(kind, dtype=torch.float32)
    ids = torch.randint(97, (1, 60), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits.float(), plain(ids).logits, rtol=1e-4, atol=1e-5)
