"""Training steps and inference iterations: windows, the marks that show them, lengths, findings."""
