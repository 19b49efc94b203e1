"""Sections of the page of a run, one module for each subject; `report.page` defines their order.

A section is a function of a `Context`. It returns its contents, or the reason why it is empty. `headline`
makes the numbers at the top and the findings, `reference` the tables at the end.
"""
