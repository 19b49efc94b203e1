"""Qwen3 with pipeline parallelism: torchtitan 0.2.2 has the model and the pipeline, and does not join them.

torchtitan imports this module where a configuration names it as `experimental.custom_import`.
"""

from dataclasses import replace

from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.models.qwen3 import get_train_spec
from torchtitan.protocols.train_spec import register_train_spec

register_train_spec("qwen3", replace(get_train_spec(), pipelining_fn=pipeline_llm))
