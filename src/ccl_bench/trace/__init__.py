"""Files to tables: what lies in a run directory, whose it is, and what each trace holds."""
