"""Order a rank's actions under each schedule.

Each function returns the actions of `rank` of `ranks`, which holds `virtual` stages, for so many
micro-batches. The orders are those that torch runs under the same names, which a test compares.
"""

from __future__ import annotations

from collections import Counter, deque

from src.config.schedules import Placement
from src.partition.schedules.actions import Action, Kind


def sequential(rank: int, microbatches: int) -> list[Action]:
    """Order each micro-batch's backward pass before the next one's forward pass."""
    return [Action(rank, kind, m) for m in range(microbatches) for kind in (Kind.FORWARD, Kind.BACKWARD)]


def gpipe(rank: int, ranks: int, virtual: int, microbatches: int) -> list[Action]:
    """Order all forward passes before all backward passes (Huang 2019, section 2.3)."""
    return [Action(rank, kind, m) for kind in (Kind.FORWARD, Kind.BACKWARD) for m in range(microbatches)]


def one_forward_one_backward(rank: int, ranks: int, virtual: int, microbatches: int) -> list[Action]:
    """Order a backward pass after each forward one, once the pipeline is full (Narayanan 2019)."""
    numbers = [(rank, microbatch) for microbatch in range(microbatches)]
    return _alternating(numbers, numbers, ahead=ranks - 1 - rank)


def looped_bfs(rank: int, ranks: int, virtual: int, microbatches: int) -> list[Action]:
    """Have all micro-batches pass a stage before the rank's next one (Lamy-Poirier 2022, section 4)."""
    stages = Placement.LOOP.stages(rank, ranks, virtual)
    forward = [Action(stage, Kind.FORWARD, m) for stage in stages for m in range(microbatches)]
    backward = [
        Action(stage, Kind.BACKWARD, m) for stage in reversed(stages) for m in reversed(range(microbatches))
    ]
    return forward + backward


def interleaved(rank: int, ranks: int, virtual: int, microbatches: int) -> list[Action]:
    """Order 1F1B over several stages a rank, by rounds of micro-batches (Narayanan 2021, section 2.2)."""
    forward, backward, size = _rounds(rank, ranks, virtual, microbatches)
    return _alternating(forward, backward, ahead=(virtual - 1) * size + 2 * (ranks - 1 - rank))


def zero_bubble(rank: int, ranks: int, virtual: int, microbatches: int) -> list[Action]:
    """Order as `interleaved`, with backward passes for weights where it would be idle (Qi 2023, ZB-H1)."""
    forward, backward, size = _rounds(rank, ranks, virtual, microbatches)
    ahead = (virtual - 1) * size + ranks - 1 - rank
    return _alternating(forward, backward, ahead=ahead, weights_behind=rank)


def zbv(rank: int, ranks: int, virtual: int, microbatches: int) -> list[Action]:
    """Order two stages a rank, in a V: no rank waits once it has begun, if passes take equally long.

    See Qi et al. 2023, section 6. A shorter step has the order of the shortest that fills the pipeline,
    without what it hasn't.
    """
    filled = max(2 * ranks - 1, microbatches)
    down, up = Placement.V.stages(rank, ranks, 2)
    order = _Order(down, up)
    order.add("F0", 2 * (ranks - rank) - 1)
    order.add("F1 F0", rank)
    order.add("F1 I1 W1", ranks - rank)
    while order.done("F1") < filled:
        order.add("F0" if order.done("F0") < filled else "")
        order.add("I0 W0 F1 I1 W1")
    order.add("I0 I1", rank)
    order.add("I0 W0", ranks - rank)
    order.add("W1", order.done("I1") - order.done("W1"))
    order.add("W0", order.done("I0") - order.done("W0"))
    return [action for action in order.actions if action.microbatch < microbatches]


def dualpipe_v(rank: int, ranks: int, virtual: int, microbatches: int) -> list[Action]:
    """Order two stages a rank, in a V, as DualPipe does.

    See DeepSeek-AI 2024, DeepSeek-V3 Technical Report, section 3.2.1, and the authors' code (DualPipeV).
    A forward pass and a backward pass that the authors overlap on one GPU are done one after the other.
    """
    down, up = Placement.V.stages(rank, ranks, 2)
    order = _Order(down, up)
    after = ranks - 1 - rank
    order.add("F0", 2 * after)
    order.add("F0 F1", rank + 1)
    order.add("I1 W F1", after)
    order.add("F0 B1 F1 B0", microbatches - 2 * ranks + rank + 1)
    order.add("B1 F1 B0", after)
    # From the middle on, passes for weights wait until all that others wait for is done.
    half = (rank + 1) // 2
    for turn in range(rank + 1):
        order.add("I1" if turn > half or (turn == half and rank % 2) else "B1")
        order.add("I0" if turn >= half else "B0")
    order.add("W I0", after)
    order.add("W", rank + 1)
    return order.actions


def _rounds(
    rank: int, ranks: int, virtual: int, microbatches: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]], int]:
    """Return (stage, micro-batch) of forward passes, of backward ones, and the micro-batches of a round."""
    stages = Placement.LOOP.stages(rank, ranks, virtual)
    size = microbatches // max(1, microbatches // ranks)
    starts = range(0, microbatches, size)
    forward = [(stage, m) for start in starts for stage in stages for m in range(start, start + size)]
    backward = [
        (stage, m) for start in starts for stage in reversed(stages) for m in range(start, start + size)
    ]
    return forward, backward, size


def _alternating(
    forward: list[tuple[int, int]],
    backward: list[tuple[int, int]],
    *,
    ahead: int,
    weights_behind: int | None = None,
) -> list[Action]:
    """Return `ahead` forward passes, then one backward pass after each, then the other backward passes.

    Where `weights_behind` is given, backward passes are of inputs alone, and each but the first that many is
    followed by the oldest of weights that is left.
    """
    kind = Kind.BACKWARD if weights_behind is None else Kind.INPUT_BACKWARD
    passes = [Action(stage, Kind.FORWARD, m) for stage, m in forward]
    order, following = passes[:ahead], passes[ahead:]
    left: deque[tuple[int, int]] = deque()
    for number, (stage, microbatch) in enumerate(backward):
        order += following[number : number + 1]
        order.append(Action(stage, kind, microbatch))
        left.append((stage, microbatch))
        if weights_behind is not None and number >= weights_behind:
            stage, microbatch = left.popleft()
            order.append(Action(stage, Kind.WEIGHT_BACKWARD, microbatch))
    if weights_behind is not None:
        order += [Action(stage, Kind.WEIGHT_BACKWARD, m) for stage, m in left]
    return order


class _Order:
    """The order of a rank with two stages, written as words: `F0` is a forward pass of its first one.

    Each pass is of the next micro-batch of its kind; `W` alone is of the oldest backward pass for inputs
    whose weights' one is left, if there is one.

    Attributes:
        actions: what was written so far.
    """

    def __init__(self, *stages: int) -> None:
        self.actions: list[Action] = []
        self._stages = stages
        self._done: Counter[str] = Counter()
        self._left: deque[str] = deque()

    def done(self, word: str) -> int:
        """Return how many micro-batches have done a pass; a whole backward pass is both of its parts."""
        return self._done[word]

    def add(self, words: str, times: int = 1) -> None:
        """Write words separated by spaces, so many times."""
        for word in words.split() * times:
            self._write(word)

    def _write(self, word: str) -> None:
        if word == "W":
            if not self._left:
                return
            word = f"W{self._left.popleft()}"
        kind, place = Kind(word[0]), word[1]
        if kind is Kind.INPUT_BACKWARD:
            self._left.append(place)
        counted = (f"I{place}", f"W{place}") if kind is Kind.BACKWARD else (word,)
        self.actions.append(Action(self._stages[int(place)], kind, self._done[counted[0]]))
        self._done.update(counted)
