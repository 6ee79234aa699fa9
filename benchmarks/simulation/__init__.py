"""The operator at sizes that no machine here can run: a discrete-event model with measured constants.

`engine` is the simulation, `measured` reads what was measured from `benchmarks/results`, `constants` has what follows
from it, `scenarios` what happens, `limits` where it breaks, `page` the tables of docs/scale.md: all pure.
`python -m benchmarks.simulation` runs it.
"""
