"""XLA programs: communication and matrix products of an instruction, from protocol buffer or text."""
