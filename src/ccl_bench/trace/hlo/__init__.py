"""XLA's programs: what an instruction communicates and multiplies, from its protocol buffer or its text."""
