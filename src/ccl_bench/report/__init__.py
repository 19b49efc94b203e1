"""Reports: pages made from results and inspections, never from traces.

`page` builds the page of a run from its `sections`, which read a `context` and draw `charts`. `page_model`
defines the parts of a page, and `render` writes it as HTML, Markdown or text. `comparison` does the same
for runs side by side. `results`, `catalogue`, `inspection`, `diagnosis`, `hang` and `what_if` format the
output of commands, and `console` lays it out.
"""
