"""An example of what other packages can add to ccl-bench."""
