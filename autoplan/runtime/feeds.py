"""What the loader delivers: the parts of a step's data that a rank reads."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor

from autoplan.ir.program import Program, SlotSpec, StageProgram
from autoplan.runtime.data import Batches
from autoplan.runtime.kernels.place import DTYPES
from autoplan.runtime.requests import coordinate_of
from autoplan.runtime.shards import local_slices

STEPS_KEPT = 2
"""In lock-step a stage may begin a step while another still ends the one before."""


class Loader:
    """Cuts a step's batch into micro-batches and parts; all ranks of a process may share one."""

    def __init__(self, program: Program, batches: Batches) -> None:
        self._program = program
        self._batches = batches
        self._batch = lru_cache(STEPS_KEPT)(self._read)

    def local(
        self, stage: StageProgram, rank: int, spec: SlotSpec, step: int, micro_batch: int
    ) -> Tensor:
        """A rank's part of one feed, in a buffer of its own.

        Args:
            stage: of the rank.
            rank: who reads.
            spec: the slot: its source names the feed, its layout the part.
            step: index of the step.
            micro_batch: index, or -1 for a feed that all micro-batches share.
        """
        part = local_slices(
            spec.dims,
            spec.layout,
            stage.mesh.sizes,
            coordinate_of(stage, rank),
            self._program.extent,
        )
        whole = self._whole(spec.source[-1], step, micro_batch)
        return (
            whole[part].to(DTYPES[spec.register.dtype]).clone(memory_format=torch.contiguous_format)
        )

    def _whole(self, feed: str, step: int, micro_batch: int) -> Tensor:
        batch, seq_len = self._program.batch, self._program.seq_len
        if feed == "positions":
            return torch.arange(seq_len).expand(batch, seq_len)
        feeds = self._batch(step)
        if feed == "count":
            return feeds[feed]
        return feeds[feed][micro_batch * batch : (micro_batch + 1) * batch]

    def _read(self, step: int) -> Mapping[str, Tensor]:
        ids, targets, count = self._batches.batch(step)
        known = {"ids": ids, "targets": targets, "count": torch.tensor(count)}
        return {**known, **self._batches.more(step)}
