"""Train on 4 ranks, sharded (FSDP2) over 2 and tensor-parallel over 2, and record the run.

torchrun --standalone --nproc_per_node 4 train_fsdp_tp.py [--backend gloo|rgloo] [OUT]
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from llama import Config, Llama, batch
from run import Plan, record
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.profiler import record_function

CONFIG = Config(layers=2)
PLAN = Plan("FSDP2 over 2 ranks x tensor parallel over 2", "pytorch FSDP2", global_batch=16, dp_shard=2, tp=2)


def main() -> None:
    """Build the mesh, the model and the step, and hand the step over to be recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", help="run directory; what ccl-bench collect names by default")
    parser.add_argument("--backend", choices=("gloo", "rgloo"), default="gloo")
    options = parser.parse_args()
    if options.backend == "rgloo":
        import recording_gloo

        recording_gloo.register()
    dist.init_process_group(options.backend)
    mesh = init_device_mesh("cpu", (PLAN.dp_shard, PLAN.tp), mesh_dim_names=("dp_shard", "tp"))

    torch.manual_seed(0)
    model = Llama(CONFIG, range(CONFIG.layers))
    column, row = ColwiseParallel(), RowwiseParallel()
    split = {"attention.qkv": column, "attention.out": row, "mlp.gate_up": column, "mlp.down": row}
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], split)
        fully_shard(block, mesh=mesh["dp_shard"])
    fully_shard(model, mesh=mesh["dp_shard"])
    # The fused and foreach kernels refuse parameters that live on different meshes.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False, fused=False)
    replica, size = mesh.get_local_rank("dp_shard"), PLAN.global_batch // PLAN.dp_shard

    def step(i: int) -> float:
        tokens, targets = batch(CONFIG, size, seed=i * PLAN.dp_shard + replica)
        with record_function("forward"):
            loss = F.cross_entropy(model(tokens), targets)
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    record(step, CONFIG, PLAN, options.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
