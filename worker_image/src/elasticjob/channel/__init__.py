"""The channel between a training script and the agent of its pod: progress, signals and stack dumps."""
