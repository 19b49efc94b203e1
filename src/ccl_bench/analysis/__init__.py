"""Analysis: computes derived tables from raw tables; it opens no file.

`derived` declares tables, `intervals` holds the arithmetic of time and of windows, `facts` what is known
beside the traces. `steps`, `device`, `communication`, `pipeline`, `memory`, `serving` and `execution_trace`
define the tables of their field; the `findings` of each report what is doubtful in them.
"""
