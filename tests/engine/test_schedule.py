"""The learning rate at its corners."""

import pytest

from megatron_longstraw.config.schema import OptimizerConfig
from megatron_longstraw.engine.schedule import learning_rate


def rates(total=10, **settings):
    return [learning_rate(update, total, OptimizerConfig(lr=2.0, **settings)) for update in range(total)]


def test_constant_is_constant():
    assert rates() == [2.0] * 10


def test_warm_up_rises_to_the_learning_rate():
    assert rates(warmup_steps=3)[:4] == [0.5, 1.0, 1.5, 2.0]


def test_linear_would_reach_zero_after_the_last_update():
    assert rates(schedule="linear", warmup_steps=5)[5:] == pytest.approx([2.0, 1.6, 1.2, 0.8, 0.4])


def test_cosine_is_half_way_at_the_middle():
    assert rates(schedule="cosine")[5] == pytest.approx(1.0)
    assert rates(schedule="cosine")[0] == 2.0


def test_the_rate_is_zero_beyond_the_end():
    assert learning_rate(12, 10, OptimizerConfig(lr=2.0, schedule="cosine")) == pytest.approx(0.0)
