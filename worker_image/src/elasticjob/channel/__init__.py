"""The channel between a script and the agent of its pod: progress, signals and the stacks of a hang."""
