"""What people see of results: pages made from results and inspections, never from traces.

`page` makes the page of a run from its `sections`, which read a `context` and draw `charts`. `page_model`
defines what a page is made of, and `render` writes it as HTML, Markdown or text. `comparison` does the same
for runs side by side. `results`, `catalogue`, `inspection` and `console` make what commands print.
"""
