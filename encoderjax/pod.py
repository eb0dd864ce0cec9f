"""The devices that a step is for, which need not be here."""

import dataclasses
from typing import Any

from encoderjax.compiling import Builder, Compiled
from encoderjax.errors import UserError
from encoderjax.estimate import abstract_builder, by_formula
from encoderjax.phases import Stage
from encoderjax.training.hardware import GPUS, published_link, published_peak
from encoderjax.training.mesh import make_mesh
from encoderjax.training.topology import (
    available_memory,
    chips_of,
    topology_devices,
)


@dataclasses.dataclass(frozen=True)
class Pod:
    """A number of chips of a kind.

    Attributes:
      device: their kind.
      available: bytes of one of them.
      peak: FLOP/s of all together.
      link: bytes/s that one can send.
      devices: none where there is no compiler for them here.
      quick: whether to compile with little optimisation.
    """

    device: str
    chips: int
    available: int
    peak: float
    link: float
    devices: tuple[Any, ...] = ()
    quick: bool = False

    @classmethod
    def of(cls, topology: str, *, quick: bool = False) -> "Pod":
        """Returns the pod of a name such as `v5e:16x16` or `h100:64`."""
        kind, _, count = topology.partition(":")
        devices: tuple[Any, ...] = ()
        if kind in GPUS:
            if not (count.isdigit() and int(count)):
                raise UserError(f"--topology={topology} must be {kind}:NUMBER")
            device, available = GPUS[kind]
        else:
            devices = tuple(topology_devices(topology))
            device, available = devices[0].device_kind, available_memory(devices[0])
        peak, link = published_peak(device), published_link(device)
        if peak is None or link is None:
            raise UserError(f"--topology={topology}: no published speed of {device}")
        chips = chips_of(topology)
        return cls(device, chips, available, peak * chips, link, devices, quick)

    def builder(self, stages: tuple[Stage, ...]) -> Builder:
        """Returns the shapes of a run on the mesh that its config asks for."""
        if not self.devices:
            return abstract_builder(stages, self.chips)
        mesh = make_mesh(stages[0].experiment.config.mesh, self.devices)
        return Builder.of(stages, mesh)

    def step(self, builder: Builder, stage: Stage) -> Compiled:
        """Returns what the step of a phase takes: compiled where that can be done."""
        if self.devices:
            return builder.compiled(stage, quick=self.quick)
        return by_formula(builder, stage, self.available)
