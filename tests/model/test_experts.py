"""A model with experts leaves nothing behind."""

import gc
import os
import weakref

import torch
from machine import draw, small_machine
from transformers import LlamaConfig, Qwen3MoeConfig

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}


def test_a_model_is_freed_after_its_last_segment() -> None:
    for config_class, sizes in ((LlamaConfig, {}), (Qwen3MoeConfig, EXPERTS)):
        with small_machine(config_class=config_class, **sizes) as machine:
            model = weakref.ref(machine.engine.model)
            machine.accumulate(draw(20), [draw(5)], [torch.ones(5)])
        del machine
        gc.collect()
        assert model() is None


def test_no_layer_holds_a_tensor_of_the_last_segment() -> None:
    with small_machine(config_class=Qwen3MoeConfig, **EXPERTS) as machine:
        layers = machine.engine.model.module.decoder.layers
        before = [dict(vars(layer.mlp.token_dispatcher)) for layer in layers]
        machine.accumulate(draw(20), [draw(5)], [torch.ones(5)])
        assert [dict(vars(layer.mlp.token_dispatcher)).keys() for layer in layers] == [notes.keys() for notes in before]
        for layer, notes in zip(layers, before, strict=True):
            assert all(getattr(layer.mlp.token_dispatcher, name) is value for name, value in notes.items())


def test_process_groups_end_with_their_world() -> None:
    def threads() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/task"))

    counts = []
    for _ in range(3):
        with small_machine(config_class=Qwen3MoeConfig, **EXPERTS) as machine:
            machine.accumulate(draw(20), [draw(5)], [torch.ones(5)])
        del machine
        counts.append(threads())
    assert counts[1] == counts[2]
