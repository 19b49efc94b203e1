"""What several metrics say in the same words: shares of steps, per-step means, details of a kind."""
