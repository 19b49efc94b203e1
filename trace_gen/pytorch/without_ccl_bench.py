"""The same window with torch alone, for environments in which ccl-bench is not installed.

Copy `window` and `write_step_times` into a training script. Afterwards, anywhere:

    ccl-bench collect --output runs/ddp --source traces
"""

import json
import time
from pathlib import Path

import torch
import torch.distributed as dist

SKIP, TIMED, WARMUP, ACTIVE = 5, 5, 5, 5


def window(folder: Path, rank: int) -> torch.profiler.profile:
    """Return a profiler for the steps after those that are timed; each rank writes a file of its own."""
    trace = folder / f"iteration_{SKIP + TIMED + WARMUP + ACTIVE}" / f"rank{rank}_trace.json"
    trace.parent.mkdir(parents=True, exist_ok=True)
    return torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=SKIP + TIMED, warmup=WARMUP, active=ACTIVE, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(trace)),
        record_shapes=True,
    )


def write_step_times(folder: Path, rank: int, ranks: int, seconds: list[float]) -> None:
    """Write the steps without the profiler, of all ranks, into one file."""
    everyone: list[list[float]] = [[]] * ranks
    dist.all_gather_object(everyone, seconds[SKIP : SKIP + TIMED])
    if rank == 0:
        text = json.dumps({str(number): each for number, each in enumerate(everyone)})
        (folder / "step_times_per_rank.json").write_text(text)


def main() -> None:
    """Record a loop that does little."""
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, ranks, folder = dist.get_rank(), dist.get_world_size(), Path("traces")
    device, seconds = torch.device("cuda" if torch.cuda.is_available() else "cpu"), []
    with window(folder, rank) as profiler:
        for _ in range(SKIP + TIMED + WARMUP + ACTIVE):
            began = time.perf_counter()
            x = torch.ones(512, 512, device=device)
            dist.all_reduce(x @ x)
            if device.type == "cuda":
                torch.cuda.synchronize()  # or the clock shows when work was submitted, not when it finished
            seconds.append(time.perf_counter() - began)
            profiler.step()
    write_step_times(folder, rank, ranks, seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
