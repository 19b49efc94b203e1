"""A caching allocator as PyTorch's is written, which keeps count of what it does.

Written after CUDACachingAllocator.cpp and without a look at the replay that it is to check: best fit
within a pool and stream, splits, joins with free neighbours, segments of fixed size or of pages.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

KIB, MIB = 1 << 10, 1 << 20


@dataclass
class Block:
    address: int
    size: int
    requested: int = 0
    state: str = "inactive"
    frames: list = field(default_factory=list)


@dataclass
class Segment:
    address: int
    kind: str
    stream: int
    expandable: bool
    blocks: list[Block]

    @property
    def size(self) -> int:
        return sum(block.size for block in self.blocks)

    def summed(self, *states: str) -> int:
        return sum(block.size for block in self.blocks if block.state in states)


class Allocator:
    """One device."""

    def __init__(
        self, *, expandable: bool = False, max_split: int = -1, start: int = 0x7F00_0000_0000
    ) -> None:
        self.expandable = expandable
        self.max_split = max_split
        self.segments: list[Segment] = []
        self.events: list[dict] = []
        self.truth: list[tuple[int, int, int, int]] = []
        """Allocated, active, requested and reserved bytes after each event."""
        self._next = start
        self._time = 1_700_000_000_000_000

    def state(self) -> tuple[int, int, int, int]:
        blocks = [block for segment in self.segments for block in segment.blocks]
        allocated = [block for block in blocks if block.state == "active_allocated"]
        active = sum(block.size for block in blocks if block.state != "inactive")
        sums = sum(b.size for b in allocated), active, sum(b.requested for b in allocated)
        return (*sums, sum(segment.size for segment in self.segments))

    def _event(self, action: str, address: int, size: int, stream: int = 0, **more) -> None:
        self._time += 10
        self.events.append(
            {"action": action, "addr": address, "size": size, "stream": stream, "time_us": self._time}
            | {"frames": []}
            | more
        )
        self.truth.append(self.state())

    def alloc(self, size: int, *, stream: int = 0, frames: list | None = None, **more) -> int:
        rounded = max(512, -(-size // 512) * 512)
        kind = "small" if rounded <= MIB else "large"
        segment, block = self._best(rounded, kind, stream) or self._grown(rounded, kind, stream)
        left = block.size - rounded
        splits = left >= 512 if kind == "small" or self.expandable else left > MIB
        if kind == "large" and 0 <= self.max_split <= rounded:
            splits = self.expandable and splits
        if splits:
            place = segment.blocks.index(block)
            segment.blocks.insert(place + 1, Block(block.address + rounded, left))
            block.size = rounded
        block.state, block.requested, block.frames = "active_allocated", size, frames or []
        self._event("alloc", block.address, size, stream, frames=frames or [], **more)
        return block.address

    def _best(self, rounded: int, kind: str, stream: int) -> tuple[Segment, Block] | None:
        fitting = [
            (block.size, block.address, segment, block)
            for segment in self.segments
            if (segment.kind, segment.stream) == (kind, stream)
            for block in segment.blocks
            if block.state == "inactive" and block.size >= rounded
        ]
        if not fitting:
            return None
        _, _, segment, block = min(fitting, key=lambda item: item[:2])
        return segment, block

    def _grown(self, rounded: int, kind: str, stream: int) -> tuple[Segment, Block]:
        page = 2 * MIB if kind == "small" else 20 * MIB
        if not self.expandable:
            size = page if kind == "small" or rounded < 10 * MIB else -(-rounded // (2 * MIB)) * 2 * MIB
            return self._segment("segment_alloc", size, kind, stream)
        own = [s for s in self.segments if (s.kind, s.stream) == (kind, stream)]
        if not own:
            return self._segment("segment_map", -(-rounded // page) * page, kind, stream)
        segment, last = own[0], own[0].blocks[-1]
        if last.state != "inactive":
            last = Block(last.address + last.size, 0)
            segment.blocks.append(last)
        size = -(-(rounded - last.size) // page) * page
        last.size += size
        self._event("segment_map", last.address + last.size - size, size, stream)
        return segment, last

    def _segment(self, action: str, size: int, kind: str, stream: int) -> tuple[Segment, Block]:
        block = Block(self._next, size)
        self._next += 1 << 36 if self.expandable else size
        segment = Segment(block.address, kind, stream, self.expandable, [block])
        self.segments.append(segment)
        self._event(action, segment.address, size, stream)
        return segment, block

    def _found(self, address: int) -> tuple[Segment, Block]:
        return next((s, b) for s in self.segments for b in s.blocks if b.address == address)

    def request_free(self, address: int) -> None:
        segment, block = self._found(address)
        block.state = "active_pending_free"
        self._event("free_requested", address, block.requested, segment.stream)

    def complete_free(self, address: int) -> None:
        segment, block = self._found(address)
        requested, block.state = block.requested, "inactive"
        place = segment.blocks.index(block)
        around = segment.blocks[max(place - 1, 0) : place + 2]
        joined = [b for b in around if b is block or b.state == "inactive"]
        segment.blocks = [b for b in segment.blocks if b not in joined[1:]]
        joined[0].size = sum(b.size for b in joined)
        self._event("free_completed", address, requested, segment.stream)

    def free(self, address: int) -> None:
        self.request_free(address)
        self.complete_free(address)

    def empty_cache(self) -> None:
        for segment in [s for s in self.segments if len(s.blocks) == 1 and s.blocks[0].state == "inactive"]:
            size = segment.size
            self.segments.remove(segment)
            self._event("segment_unmap" if segment.expandable else "segment_free", segment.address, size)

    def oom(self, size: int, free: int) -> None:
        self._event("oom", 0, size, device_free=free)
        self.events[-1].pop("addr")

    def forget(self, count: int) -> None:
        """Lose the first events, as a ring does."""
        del self.events[:count], self.truth[:count]


def segments_of(allocator: Allocator, device: int = 0) -> list[dict]:
    """Return the segments as `torch.cuda.memory_snapshot()` does."""
    return [
        {
            "device": device,
            "address": segment.address,
            "total_size": segment.size,
            "allocated_size": segment.summed("active_allocated"),
            "active_size": segment.summed("active_allocated", "active_pending_free"),
            "requested_size": sum(b.requested for b in segment.blocks if b.state == "active_allocated"),
            "stream": segment.stream,
            "segment_type": segment.kind,
            "segment_pool_id": (0, 0),
            "is_expandable": segment.expandable,
            "frames": [],
            "blocks": [
                {"address": b.address, "size": b.size, "requested_size": b.requested, "state": b.state}
                | {"frames": b.frames}
                for b in segment.blocks
            ],
        }
        for segment in allocator.segments
    ]


def snapshot_of(*allocators: Allocator) -> dict:
    """Return a snapshot of devices."""
    limit = next((a.max_split for a in allocators), -1)
    return {
        "segments": [
            s for device, allocator in enumerate(allocators) for s in segments_of(allocator, device)
        ],
        "device_traces": [allocator.events for allocator in allocators],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": limit},
    }


def old_layout(snapshot: dict) -> dict:
    """Return a snapshot as PyTorch 2.0 writes it: no addresses or sizes asked for of blocks, no times."""
    segments = [
        {key: s[key] for key in ("device", "address", "total_size", "stream", "segment_type")}
        | {"allocated_size": s["allocated_size"], "active_size": s["active_size"]}
        | {"blocks": [_old_block(block) for block in s["blocks"]]}
        for s in snapshot["segments"]
    ]
    traces = [[{k: v for k, v in e.items() if k != "time_us"} for e in t] for t in snapshot["device_traces"]]
    return {"segments": segments, "device_traces": traces}


def _old_block(block: dict) -> dict:
    old = {"size": block["size"], "state": block["state"]}
    if block["state"] == "inactive":
        return old
    history = {"addr": block["address"], "real_size": block["requested_size"], "frames": block["frames"]}
    return old | {"history": [history]}


def write(path: Path, snapshot: object, protocol: int = 4) -> Path:
    """Write a snapshot as `torch.cuda.memory._dump_snapshot` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(snapshot, protocol))
    return path
