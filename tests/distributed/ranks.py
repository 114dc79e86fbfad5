"""Gloo ranks that stay alive between tests, since importing Megatron takes seconds; a hang becomes an error."""

import multiprocessing
import os
import socket
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

SECONDS = 120


class Ranks:
    """So many processes that run the same function together.

    Args:
        count: ranks of the world.
    """

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connections: list[Connection] = []
        self._processes = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, count, theirs), daemon=True)
            process.start()
            self._connections.append(ours)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Runs a function of a module on every rank; returns what each returned, in plain data.

        Raises:
            AssertionError: a rank raised, died or did not answer in time.
        """
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for connection in self._connections:
            connection.send((function, arguments, port))
        answers = []
        for rank, connection in enumerate(self._connections):
            assert connection.poll(SECONDS), f"rank {rank} gives no answer"
            answers.append(connection.recv())
        failures = [f"rank {rank}:\n{text}" for rank, (failed, text) in enumerate(answers) if failed]
        assert not failures, "\n".join(failures)
        return [answer for _, answer in answers]

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.kill()
            process.join()


def _serve(rank: int, count: int, connection: Connection) -> None:
    warnings.filterwarnings("ignore")
    import torch

    from megatron_longstraw.device import cpu

    torch.set_num_threads(1)
    cpu.install()
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
    while True:
        function, arguments, port = connection.recv()
        os.environ["MASTER_PORT"] = str(port)
        try:
            answer = (False, function(*arguments))
        except BaseException:  # noqa: BLE001 - whatever a rank raises is the test's failure
            answer = (True, traceback.format_exc())
        connection.send(answer)
