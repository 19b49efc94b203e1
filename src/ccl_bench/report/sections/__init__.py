"""The sections of the page of a run, one module for each subject; `report.page` has their order.

A section is a function of a `Context`. It returns what it shows, or why it has nothing to show. `headline`
makes the numbers at the top and the findings, `reference` the tables for looking things up.
"""
