"""One command over everything that `benchmarks/` measures of a rescale: every system, at its defaults and at its best.

`cells` holds the values and the statistics, `planning` the order of the measurements, `page` the Markdown: all pure.
`measuring` and `costs` run the launchers. `python -m benchmarks.scoreboard` puts them together.
"""
