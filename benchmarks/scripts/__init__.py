"""Programs that the benchmarks start as separate processes. None of them imports the benchmarks package."""
