"""Have what split layers draw at random be each rank's own, and what whole layers draw be the same on all.

Between a split of features and their sum, ranks hold different features: the same mask on all of them would
drop features together. So each draws from a stream of its own there, which follows from the common one
(Megatron-LM, https://arxiv.org/abs/1909.08053, appendix B.2).
"""

from __future__ import annotations

import hashlib

import torch


class Region:
    """The layers between a split of features and their sum.

    Attributes:
        draws: whether something was drawn within it, while it was watched.
        watches: whether it looks for that, and leaves the generators alone.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.draws, self.watches = False, True
        self._device: torch.device | None = None
        # The seed of the rank's own stream.
        self._own = 0
        self._state = torch.empty(0)

    def begin(self, device: torch.device) -> None:
        """Begin to draw from the rank's own stream, unless that is done; features are on `device`."""
        if self._is_within or not (self.watches or self.draws) or device.type == "meta":
            return
        self._device = device
        if not self.watches:
            state = _state(device).numpy().tobytes()
            # The next region's stream is another one, whether or not something is drawn until then.
            torch.rand((), device=device)
        self._state = _state(device)
        if not self.watches:
            digest = hashlib.blake2b(state, digest_size=7, salt=self._rank.to_bytes(8, "little"))
            self._own = int.from_bytes(digest.digest(), "little")
            _seed(device, self._own)

    @property
    def _is_within(self) -> bool:
        """Return whether it has begun, and not ended.

        Layers that are computed again, as far as a backward pass needs them, may not come to its end; then
        the generator is put back, and draws from another stream than its own.
        """
        if self._device is None:
            return False
        return self.watches or _initial_seed(self._device) == self._own

    def end(self) -> None:
        """Draw from the common stream again."""
        if self._device is None or not self._is_within:
            return
        if self.watches:
            self.draws |= not torch.equal(self._state, _state(self._device))
        else:
            _restore(self._device, self._state)
        self._device = None


def _state(device: torch.device) -> torch.Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)


def _initial_seed(device: torch.device) -> int:
    return torch.initial_seed() if device.type == "cpu" else torch.cuda.initial_seed()


def _restore(device: torch.device, state: torch.Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.cuda.set_rng_state(state, device)


def _seed(device: torch.device, number: int) -> None:
    # `torch.manual_seed` looks for devices of all kinds, which takes fifty times as long.
    if device.type == "cpu":
        torch.default_generator.manual_seed(number)
    else:
        torch.cuda.manual_seed(number)
