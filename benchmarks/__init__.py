"""ElasticJob measured against what people use today, in the same run, on the same machine.

`python -m benchmarks.rescale | controlplane | hub | collectives | runtime`, or `python -m benchmarks` for all of
them. `harness` says what a result line means.
"""
