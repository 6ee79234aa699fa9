"""Programs that the benchmarks start as processes of their own. None of them imports the benchmarks package."""
