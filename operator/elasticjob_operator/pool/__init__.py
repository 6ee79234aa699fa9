"""Who gets how many pods of a shared pool: models of throughput, and an allocator that compares what they promise.

Values in, values out: the operator's pool loop and the simulator in `benchmarks/pool` call the same functions. Nothing
here knows of Kubernetes objects, of clocks or of randomness; `now` is an argument.
"""
