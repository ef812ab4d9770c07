"""Saving and resuming through torch.distributed.checkpoint, under any plan of the same model.

Every rank knows which box of a whole tensor it holds (`runtime.shards`), so it writes its boxes
under the tensor's full name and reads whatever saved boxes overlap those that it needs. The plan
that saved leaves no trace but in how the files are cut. Each element is written once: by the rank
at coordinate 0 of every axis that copies it, in the first stage that has the tensor.

A checkpoint appears whole or not at all: everything is written to a folder `DIR.tmp-PID` beside it,
which is renamed at the end; a run that is killed while saving leaves that folder behind. Its file
`.metadata` is a pickle, as torch has it: resume only from what you trust. Import this module before
forking workers that will use it; it is slow to load.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from torch import Size, Tensor, empty
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load as read_state
from torch.distributed.checkpoint.state_dict_saver import save as write_state

from autoplan.errors import InputError, LaunchError, Problem
from autoplan.files.checkpoint import Checkpoint, write_checkpoint
from autoplan.ir.program import Program, SlotSpec, StageProgram
from autoplan.runtime.distributed import World
from autoplan.runtime.kernels.place import DTYPES
from autoplan.runtime.requests import coordinate_of
from autoplan.runtime.session import Pieces
from autoplan.runtime.shards import local_slices

Alive = Callable[[], None]
"""Called for every box that is written or read: a big checkpoint is no hang."""


@dataclass(frozen=True)
class Checkpoints:
    """Where a run begins and what it leaves.

    Attributes:
        first_step: index of the run's first step.
        resume: folder to begin from, or None to begin with the seed.
        save: folder to leave, or None.
        left: what that folder is to say of itself.
    """

    first_step: int
    resume: Path | None
    save: Path | None
    left: Checkpoint

    @property
    def saves(self) -> bool:
        """Whether the run leaves a checkpoint."""
        return self.save is not None

    def load(self, program: Program, rank: int, alive: Alive) -> dict[tuple[str, ...], Tensor]:
        """A rank's pieces by source; none where the run begins with the seed.

        Raises:
            InputError: a file is damaged.
        """
        return {} if self.resume is None else load(self.resume, program, rank, alive)

    def store(
        self, program: Program, pieces: Mapping[int, Pieces], world: World | None, alive: Alive
    ) -> None:
        """Write the checkpoint.

        Args:
            program: whose layouts the pieces have.
            pieces: of the ranks of this process.
            world: the processes that have the others, all of which must call this; None if this
                one has them all.
            alive: called as it goes on.

        Raises:
            InputError: it cannot be written; nothing is left then.
            LaunchError: a peer is lost.
        """
        assert self.save is not None, "only who saves may store"
        boxes = [box for rank in pieces for box in _owned(program, rank, pieces[rank])]
        leads = world is None or world.index == 0
        folder = self.save.with_name(f"{self.save.name}.tmp-{os.getpid()}")
        try:
            if leads:
                shutil.rmtree(folder, ignore_errors=True)  # of a killed process with this number
            folder = Path(world.share(str(folder))) if world else folder
            _write(folder, _Saver(boxes, alive), alone=world is None)
            if leads:
                write_checkpoint(folder, self.left)
                _replace(folder, self.save)
        except (CheckpointException, OSError) as error:
            raise _failed("--save", self.save, error, "a folder that can be written") from None
        except RuntimeError as error:  # what happens to files comes as the errors above
            raise LaunchError(f"communication failed while saving: {error}") from error
        finally:
            if leads:
                shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a whole tensor.

    Attributes:
        name: of the tensor in the checkpoint.
        whole: its shape.
        chunk: offsets and sizes of the part.
        piece: its values.
    """

    name: str
    whole: Size
    chunk: ChunkStorageMetadata
    piece: Tensor

    @classmethod
    def of(cls, program: Program, rank: int, spec: SlotSpec, piece: Tensor) -> Box:
        """A rank's part of the tensor of a slot."""
        stage = program.stages[program.stage_of[rank]]
        coordinate = coordinate_of(stage, rank)
        part = local_slices(spec.dims, spec.layout, stage.mesh.sizes, coordinate, program.extent)
        offsets = Size([s.start for s in part])
        whole = Size([program.extent[dim] for dim in spec.dims])
        return cls(spec.kept_as, whole, ChunkStorageMetadata(offsets, piece.shape), piece)


def load(
    folder: Path, program: Program, rank: int, alive: Alive = lambda: None
) -> dict[tuple[str, ...], Tensor]:
    """Read what a rank holds of parameters and optimizer state.

    Args:
        folder: a checkpoint, whatever plan saved it.
        program: whose layouts to read.
        rank: whose pieces.
        alive: called as it goes on.

    Returns:
        Source of each lasting slot -> the rank's piece, on the CPU.

    Raises:
        InputError: a file is damaged, or lacks a tensor.
    """
    stage = program.stages[program.stage_of[rank]]
    pieces = {}
    for spec in _lasting(stage):
        pieces[spec.source] = empty(spec.register.shape, dtype=DTYPES[spec.register.dtype])
    boxes = [Box.of(program, rank, spec, pieces[spec.source]) for spec in _lasting(stage)]
    reader = FileSystemReader(folder)
    try:
        metadata = reader.read_metadata()  # alone: `load` logs a traceback of what is wrong
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it works without peers is meant
            read_state(
                {}, storage_reader=reader, planner=_Loader(metadata, boxes, alive), no_dist=True
            )
    except (CheckpointException, Exception) as error:  # a damaged pickle may raise anything
        raise _failed("--resume", folder, error, "files as they were saved") from None
    return pieces


class _Saver(DefaultSavePlanner):
    """Writes boxes in place of a state dict; what it inherits merges and checks all ranks' plans.

    Args:
        boxes: of this process, each owned by it.
        alive: called for every box.
    """

    def __init__(self, boxes: list[Box], alive: Alive) -> None:
        super().__init__(flatten_state_dict=False)
        self._boxes = {_index(box): box for box in boxes}
        self._alive = alive

    def create_local_plan(self) -> SavePlan:
        """What this process writes."""
        return SavePlan([_write_item(box) for box in self._boxes.values()])

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        """The values of a box."""
        self._alive()
        return self._boxes[write_item.index].piece.detach()


class _Loader(DefaultLoadPlanner):
    """Reads boxes of any cut into boxes of another.

    Args:
        saved: what there is.
        boxes: of one rank, one for each tensor.
        alive: called for every read.
    """

    def __init__(self, saved: Metadata, boxes: list[Box], alive: Alive) -> None:
        super().__init__(flatten_state_dict=False)
        self._saved = saved.state_dict_metadata
        self._boxes = {box.name: box for box in boxes}
        self._alive = alive

    def create_local_plan(self) -> LoadPlan:
        """All overlaps with what was saved."""
        items: list[ReadItem] = []
        for box in self._boxes.values():
            saved = self._saved.get(box.name)
            if not isinstance(saved, TensorStorageMetadata) or saved.size != box.whole:
                raise ValueError(f"no tensor {box.name} of {list(box.whole)}")
            reads = create_read_items_for_chunk_list(box.name, saved, [box.chunk])
            if sum(prod(read.lengths) for read in reads) != box.piece.numel():
                raise ValueError(f"not all of {box.name}")
            items += reads
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """Where the values of a box go."""
        self._alive()
        return self._boxes[index.fqn].piece


def _index(box: Box) -> MetadataIndex:
    return MetadataIndex(box.name, box.chunk.offsets)


def _write_item(box: Box) -> WriteItem:
    properties = TensorProperties.create_from_tensor(box.piece)
    data = TensorWriteData(box.chunk, properties, box.whole)
    return WriteItem(_index(box), WriteItemType.SHARD, tensor_data=data)


def _write(folder: Path, planner: _Saver, alone: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it works without peers is meant
        # Copying ahead would open a device context, also in a run on the CPUs.
        writer = FileSystemWriter(folder, per_thread_copy_ahead=0)
        write_state({}, storage_writer=writer, planner=planner, no_dist=alone)


def _owned(program: Program, rank: int, pieces: Pieces) -> Iterator[Box]:
    """The boxes that a rank writes."""
    stage = program.stages[program.stage_of[rank]]
    coordinate = coordinate_of(stage, rank)
    earlier = {spec.kept_as for s in program.stages[: stage.stage] for spec in s.resident}
    for spec in _lasting(stage):
        pairs = zip(spec.layout, coordinate, strict=True)
        first = all(at == 0 for placement, at in pairs if placement.kind != "S")
        if first and spec.kept_as not in earlier:
            yield Box.of(program, rank, spec, pieces[spec.source])


def _lasting(stage: StageProgram) -> Iterator[SlotSpec]:
    return (spec for spec in stage.resident if spec.kept_as)


def _replace(folder: Path, target: Path) -> None:
    """Rename a complete checkpoint; one that stood there goes when the new one is in place."""
    old = target.with_name(f"{target.name}.old-{os.getpid()}")
    replaced = target.exists()
    if replaced:
        target.rename(old)
    folder.rename(target)
    if replaced:
        shutil.rmtree(old)


def _failed(flag: str, folder: Path, error: BaseException, allowed: str) -> InputError:
    causes = [str(cause[0]) for cause in getattr(error, "failures", {}).values()] or [str(error)]
    reason = " ".join(causes[0].split()) or "no reason given"
    return InputError(Problem(flag, "", f"`{folder}` ({reason})", allowed))
