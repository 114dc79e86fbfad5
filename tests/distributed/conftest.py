"""The ranks that tests share."""

from collections.abc import Callable, Iterator

import pytest

from tests.distributed.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[[int], Ranks]]:
    """Gives the pool of so many ranks, started when it is first asked for."""
    pools: dict[int, Ranks] = {}

    def pool(count: int) -> Ranks:
        if count not in pools:
            pools[count] = Ranks(count)
        return pools[count]

    yield pool
    for started in pools.values():
        started.close()
