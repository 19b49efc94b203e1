"""A DeepSpeed loop that records itself: ZeRO-3, two micro-batches a step.

ccl-bench collect --output runs/zero3 -- deepspeed --num_gpus 4 trace_gen/deepspeed/train.py
"""

import deepspeed
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from ccl_bench.collect import Schedule, profile

SCHEDULE = Schedule(skip=5, timed=5, warmup=5, active=5, observed=1)
MICRO_BATCH, TOKENS, WIDTH, ACCUMULATED = 8, 1024, 2048, 2
CONFIG = {
    "train_micro_batch_size_per_gpu": MICRO_BATCH,
    "gradient_accumulation_steps": ACCUMULATED,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
}


def main() -> None:
    """Train; a step of the recording is a step of the optimizer, not a micro-batch."""
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    batch = MICRO_BATCH * ACCUMULATED * engine.dp_world_size
    with profile(schedule=SCHEDULE, metadata={"global_batch_size": batch, "seq_len": TOKENS}) as recording:
        for _ in range(SCHEDULE.length * ACCUMULATED):
            x = torch.randn(MICRO_BATCH, TOKENS, WIDTH, device=engine.device, dtype=torch.bfloat16)
            loss = F.mse_loss(engine(x), x)
            engine.backward(loss)
            is_whole_step = engine.is_gradient_accumulation_boundary()  # the engine counts on in step()
            engine.step()
            if is_whole_step:
                recording.step(tokens=batch * TOKENS, loss=loss)


if __name__ == "__main__":
    main()
