"""A device behind the host, played on the host: it does nothing before somebody waits for it, and its recordings run what was recorded."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from worker.execution.device.graphs import Body, GraphKey
from worker.execution.device.queue import Bytes, Work, joined, parted, shapes_of
from worker.sampling.sending import Array


class LaggingQueue:
    """A DeviceQueue that lags as far as it may: what is submitted runs when its result, or a later one's, is asked for. So whatever the
    host does too early, or changes too late, shows in the results. `around` gives what work is done inside of.
    """

    device = torch.device("cpu")

    def __init__(self, around: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
        self.around = around
        self.submitted = 0
        self._waiting: list[LaggingReceipt] = []
        self.most_waiting = 0

    def settle(self) -> None:
        """Nothing lies anywhere else."""

    def submit(self, data: Bytes, work: Work) -> "LaggingReceipt":
        self.submitted += 1
        receipt = LaggingReceipt(self, torch.from_numpy(data.copy()), work)
        data.fill(0xAB)  # the sender's copy is its own no more
        self._waiting.append(receipt)
        self.most_waiting = max(self.most_waiting, len(self._waiting))
        return receipt

    def run_until(self, receipt: "LaggingReceipt") -> None:
        while receipt in self._waiting:
            self._waiting.pop(0).run()


class LaggingReceipt:
    def __init__(self, queue: LaggingQueue, sent: torch.Tensor, work: Work):
        self._queue, self._sent, self._work = queue, sent, work
        self._found: list[Array] = []
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            with self._queue.around():
                found: Sequence[torch.Tensor] = self._work(self._sent)
            if found:
                self._found = parted(joined(found), shapes_of(found))
        except Exception as error:  # noqa: BLE001 - it is the waiter's
            self._error = error

    def result(self) -> list[Array]:
        self._queue.run_until(self)
        if self._error is not None:
            raise self._error
        return self._found


class Recordings:
    """Graphs as a GPU has them: the second step of a key is recorded, and later ones run that very body on their own inputs."""

    def __init__(self) -> None:
        self._met: set[GraphKey] = set()
        self._held: dict[GraphKey, tuple[Body, torch.Tensor]] = {}
        self.replayed: list[GraphKey] = []

    def run(self, key: GraphKey, inputs: torch.Tensor, body: Body) -> torch.Tensor:
        if key not in self._met:
            self._met.add(key)
            return body(inputs)
        if key not in self._held:
            self._held[key] = (body, inputs.clone())
        recorded, fixed = self._held[key]
        assert fixed.shape == inputs.shape, "steps of one key have inputs of one size"
        fixed.copy_(inputs)
        self.replayed.append(key)
        return recorded(fixed)
