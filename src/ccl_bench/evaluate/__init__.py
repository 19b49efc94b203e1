"""Evaluation: from a run and the names of metrics to results.

`load` reads the tables that metrics need, `compute` computes results, `inspect` and `validate` describe runs,
`report_data`, `drill_down` and `strip` collect the data of reports, and `hang` analyses hanging jobs.
"""
