"""CCL-Bench: a trace-based benchmark of LLM infrastructure."""

__version__ = "0.1.0"
