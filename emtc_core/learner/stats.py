"""What one update reports; values stay on the device until somebody reads them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class LearnerStats(Mapping[str, Tensor]):
    """Scalar tensors of one update by their registered metric names; reading one waits for the device."""

    values_by_name: dict[str, Tensor]
    episode_error: Tensor | None = None
    """[B] masked mean squared TD error per episode: the priorities of prioritised replay."""
    shares: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Part and whole by metric name; over several updates a share is the sum of parts over the sum of wholes."""

    def __getitem__(self, name: str) -> Tensor:
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    def read(self) -> dict[str, float]:
        """Fetch every value in one transfer."""
        numbers = torch.stack([v.detach().float() for v in self.values()]).tolist()
        return dict(zip(self, numbers, strict=True))
