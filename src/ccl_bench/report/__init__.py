"""What people see of results: made from results and inspections, never from traces."""
